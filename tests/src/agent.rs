//! The program `runner-agent`, as a child process.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use telemetry_certs::Issued;
use telemetry_proto::RunnerId;
use tempfile::TempDir;

use crate::http::HttpClient;
use crate::net::free_address;
use crate::process::{Process, ProcessError, Usage};
use crate::program::Program;
use crate::rig::{Rig, RigError};
use crate::wait::{self, TimedOut};

const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// `runner-agent run` with a spool and a Unix socket, as one runner. Killed when dropped.
#[derive(Debug)]
pub struct AgentProgram {
    process: Process,
    address: SocketAddr,
    http: HttpClient,
    // Last: the folder outlives the process.
    folder: TempDir,
}

impl AgentProgram {
    /// Starts the agent of a runner, whose certificate is issued for it, and waits until it listens.
    ///
    /// # Errors
    /// The program is nowhere, or does not listen in time.
    pub async fn start(rig: &Rig, runner: &str) -> Result<Self, RigError> {
        Self::start_with(rig, runner, "").await
    }

    /// As [`start`](Self::start), with more sections of the configuration.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub async fn start_with(rig: &Rig, runner: &str, sections: &str) -> Result<Self, RigError> {
        let runner = RunnerId::new(runner).map_err(|error| RigError::Setup(error.to_string()))?;
        Self::start_as(rig, &rig.cluster().issue(&runner)?, sections).await
    }

    /// As [`start_with`](Self::start_with), with this certificate, in `runner.pem`, and its key, in `runner.key`.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub async fn start_as(rig: &Rig, issued: &Issued, sections: &str) -> Result<Self, RigError> {
        let program = Program::RunnerAgent.find().map_err(|error| RigError::Setup(error.to_string()))?;
        let folder = tempfile::Builder::new().prefix("telemetry-agent-").tempdir()?;
        let address = free_address()?;
        let config = format!(
            "coordinators = [\"localhost:{}\"]\n\
             [identity]\ncertificate = \"runner.pem\"\nkey = \"runner.key\"\nca = \"ca.pem\"\n\
             [spool]\nfolder = \"spool\"\n\
             [listen]\naddress = \"{address}\"\nsocket = \"agent.sock\"\n\
             {sections}\n",
            rig.relay_address().port()
        );
        for (name, text) in [
            ("runner.pem", issued.chain_pem.as_str()),
            ("runner.key", issued.key_pem.as_str()),
            ("ca.pem", rig.cluster().root_pem()),
            ("agent.toml", config.as_str()),
        ] {
            fs::write(folder.path().join(name), text)?;
        }
        let arguments = vec!["run".into(), "--config".into(), folder.path().join("agent.toml").into()];
        let process = Process::new(program, arguments, folder.path().join("log.txt"));
        let agent = Self { process, address, http: HttpClient::new(address), folder };
        agent.restart().await?;
        Ok(agent)
    }

    /// Starts it again on the same port and spool, after a kill if it runs, and waits until it listens.
    ///
    /// # Errors
    /// It does not listen in time.
    pub async fn restart(&self) -> Result<(), ProcessError> {
        let ready = async || match self.http.get("/healthz").await {
            Ok((StatusCode::OK, _)) => Ok(()),
            Ok((status, _)) => Err(status.to_string()),
            Err(error) => Err(error.to_string()),
        };
        self.process.start(ready).await
    }

    /// Crashes it: SIGKILL.
    ///
    /// # Errors
    /// The process can't be ended.
    pub async fn kill(&self) -> Result<(), ProcessError> {
        self.process.kill().await
    }

    /// Ends it in good order: SIGTERM.
    ///
    /// # Errors
    /// The process does not end in time.
    pub async fn stop(&self) -> Result<(), ProcessError> {
        self.process.stop().await
    }

    /// What it holds now.
    ///
    /// # Errors
    /// It does not run.
    pub fn usage(&self) -> std::io::Result<Usage> {
        self.process.usage()
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its Unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    /// The folder that its configuration is in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A client for its address.
    #[must_use]
    pub const fn http(&self) -> &HttpClient {
        &self.http
    }

    /// All that it has logged.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn log(&self) -> std::io::Result<String> {
        self.process.log()
    }

    /// What it says of itself, JSON.
    ///
    /// # Errors
    /// It does not answer as it should.
    pub async fn status(&self) -> Result<Value, String> {
        let (_, body) = self.http.get("/status").await.map_err(|error| error.to_string())?;
        serde_json::from_slice(&body).map_err(|error| error.to_string())
    }

    /// Waits until its status is as `wanted` says.
    ///
    /// # Errors
    /// It is not in time.
    pub async fn becomes(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value, TimedOut> {
        let look = async || match self.status().await? {
            status if wanted(&status) => Ok(status),
            status => Err(status.to_string()),
        };
        wait::until(format!("{what} at the agent"), SETTLED_WITHIN, look).await
    }

    /// Waits until it has delivered so many items of metrics and logs together in this run.
    ///
    /// # Errors
    /// It does not deliver them in time.
    pub async fn has_delivered(&self, items: u64) -> Result<(), TimedOut> {
        let delivered = |status: &Value, signal: &str| status["signals"][signal]["delivered"].as_u64().unwrap_or(0);
        let wanted = |status: &Value| delivered(status, "metrics") + delivered(status, "logs") >= items;
        self.becomes(&format!("{items} items delivered"), wanted).await.map(drop)
    }
}
