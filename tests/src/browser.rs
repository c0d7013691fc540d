//! Chromium without a window, over its DevTools protocol on a pipe (`--remote-debugging-pipe`): no port, no driver, nothing
//! to download.

use std::collections::HashMap;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::program::{NotFound, Program};

/// How long one answer may take: a browser that starts on a busy machine takes its time.
const PATIENCE: Duration = Duration::from_secs(40);

/// Chromium reads from descriptor 3 and writes to 4. What it says otherwise is of no use.
const PIPES: &str = r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#;

/// The browser does not do as it is told.
#[derive(Debug, thiserror::Error)]
pub enum BrowserError {
    /// There is none.
    #[error(transparent)]
    Missing(#[from] NotFound),
    /// It does not start, or ends.
    #[error("the browser can't be talked to: {0}")]
    Io(#[from] io::Error),
    /// It sends what is no JSON.
    #[error("the browser sends no JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It does not answer.
    #[error("the browser did not answer {0} in time")]
    Timeout(String),
    /// It refuses, or a script throws.
    #[error("{method}: {answer}")]
    Refused {
        /// What it was asked for.
        method: String,
        /// What it said.
        answer: Value,
    },
}

/// How a page is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// In CSS pixels.
    pub width: u32,
    /// In CSS pixels.
    pub height: u32,
    /// A small device with a touch screen.
    pub phone: bool,
    /// Dark colours are preferred.
    pub dark: bool,
}

impl View {
    /// A desk.
    pub const DESK: Self = Self { width: 1280, height: 900, phone: false, dark: false };
    /// A desk at night.
    pub const DARK: Self = Self { dark: true, ..Self::DESK };
    /// A phone.
    pub const PHONE: Self = Self { width: 390, height: 844, phone: true, dark: false };
}

/// A browser with one page. Killed when dropped.
#[derive(Debug)]
pub struct Browser {
    _process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: Option<String>,
    calls: u64,
    complaints: Vec<String>,
    requests: Vec<String>,
    // Last: the folder outlives the process.
    _profile: TempDir,
}

impl Browser {
    /// Starts it, with an empty page.
    ///
    /// # Errors
    /// There is none, or it does not start.
    pub async fn start() -> Result<Self, BrowserError> {
        let program = Program::Chromium.find()?;
        let profile = tempfile::Builder::new().prefix("telemetry-browser-").tempdir()?;
        let mut process = Command::new("sh")
            .args(["-c", PIPES])
            .arg(program)
            // Its own sandbox needs a user of its own or namespaces, which a container may not have. The page is ours.
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio"])
            .args(["--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        };
        let mut browser = Self {
            _process: process,
            input,
            output: BufReader::new(output),
            session: None,
            calls: 0,
            complaints: Vec::new(),
            requests: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" })).await?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach).await?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "Network.enable"] {
            browser.call(domain, json!({})).await?;
        }
        Ok(browser)
    }

    /// Opens an address. Returns before the page is complete.
    ///
    /// # Errors
    /// Nothing is there.
    pub async fn open(&mut self, url: &str) -> Result<(), BrowserError> {
        let answer = self.call("Page.navigate", json!({ "url": url })).await?;
        if answer.get("errorText").is_some() {
            return Err(BrowserError::Refused { method: "Page.navigate".to_owned(), answer });
        }
        Ok(())
    }

    /// Looks at the page in another way.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn look(&mut self, view: View) -> Result<(), BrowserError> {
        let metrics =
            json!({ "width": view.width, "height": view.height, "deviceScaleFactor": 1, "mobile": view.phone });
        self.call("Emulation.setDeviceMetricsOverride", metrics).await?;
        let scheme = if view.dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", media).await?;
        Ok(())
    }

    /// What an expression comes to on the page.
    ///
    /// # Errors
    /// It throws.
    pub async fn evaluate(&mut self, expression: &str) -> Result<Value, BrowserError> {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.call("Runtime.evaluate", parameters).await?;
        if answer.get("exceptionDetails").is_some() {
            return Err(BrowserError::Refused { method: "Runtime.evaluate".to_owned(), answer });
        }
        Ok(answer["result"]["value"].take())
    }

    /// The rows of the table in the element with this ID: column to text.
    ///
    /// # Errors
    /// There is no page.
    pub async fn rows(&mut self, id: &str) -> Result<Vec<HashMap<String, String>>, BrowserError> {
        let rows = format!(
            "[...document.querySelectorAll('#{id} tbody tr')].map((row) => \
             Object.fromEntries([...row.cells].map((cell) => [cell.dataset.title, cell.textContent])))"
        );
        Ok(serde_json::from_value(self.evaluate(&rows).await?)?)
    }

    /// The text of the element with this ID.
    ///
    /// # Errors
    /// There is none.
    pub async fn text(&mut self, id: &str) -> Result<String, BrowserError> {
        let text = self.evaluate(&format!("document.getElementById('{id}').textContent")).await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// A picture of what is in view, as PNG.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn screenshot(&mut self) -> Result<Vec<u8>, BrowserError> {
        let answer = self.call("Page.captureScreenshot", json!({ "format": "png" })).await?;
        let data = answer["data"].as_str().unwrap_or_default();
        BASE64_STANDARD.decode(data).map_err(|error| io::Error::other(error).into())
    }

    /// Errors and warnings of the console so far, and exceptions that nobody caught.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// The addresses that the page has asked for so far.
    #[must_use]
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    async fn call(&mut self, method: &str, parameters: Value) -> Result<Value, BrowserError> {
        self.calls += 1;
        let id = self.calls;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = serde_json::to_vec(&message)?;
        bytes.push(0);
        let answer = async {
            self.input.write_all(&bytes).await?;
            loop {
                let mut message = Vec::new();
                self.output.read_until(0, &mut message).await?;
                if message.pop() != Some(0) {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                let mut message: Value = serde_json::from_slice(&message)?;
                if message["id"] == id {
                    return match message.get("error") {
                        Some(error) => Err(BrowserError::Refused { method: method.to_owned(), answer: error.clone() }),
                        None => Ok(message["result"].take()),
                    };
                }
                self.note(&message);
            }
        };
        timeout(PATIENCE, answer).await.unwrap_or_else(|_| Err(BrowserError::Timeout(method.to_owned())))
    }

    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.consoleAPICalled"
                if matches!(parameters["type"].as_str(), Some("error" | "warning" | "assert")) =>
            {
                self.complaints.push(parameters["args"].to_string());
            }
            "Runtime.exceptionThrown" => self.complaints.push(parameters["exceptionDetails"].to_string()),
            "Log.entryAdded" if matches!(parameters["entry"]["level"].as_str(), Some("error" | "warning")) => {
                self.complaints.push(parameters["entry"].to_string());
            }
            "Network.requestWillBeSent" => {
                self.requests.push(parameters["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }
}
