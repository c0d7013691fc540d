//! Many runners at once: what a relay and its admin listener make of thousands of connections.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use telemetry_certs::{Credentials, Roots};
use telemetry_proto::{RunnerId, Signal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::browser::{Browser, View};
use crate::http::HttpClient;
use crate::net::free_address;
use crate::program::Program;
use crate::raw::RawClient;
use crate::rig::Rig;
use crate::wait;

/// Handshakes at a time: the relay allows 64 from one address, and asks for a Retry from then on.
const AT_ONCE: usize = 32;
/// How often each runner writes.
const EVERY: Duration = Duration::from_secs(10);
const CONNECT_WITHIN: Duration = Duration::from_secs(60);
/// How often each answer is measured.
const ROUNDS: usize = 9;

/// What was seen.
#[derive(Debug, Clone, Serialize)]
pub struct CrowdReport {
    /// Runners that are connected, as the relay says.
    pub runners: u64,
    /// How long it took until all were.
    pub connected_in: Duration,
    /// The relay's memory before, in bytes.
    pub memory_before: u64,
    /// And with everyone connected.
    pub memory_bytes: u64,
    /// The size of `/metrics`, in bytes.
    pub metrics_bytes: usize,
    /// How long it took: half of the answers took no longer.
    pub metrics_median: Duration,
    /// And the slowest.
    pub metrics_worst: Duration,
    /// The size of `/status`, in bytes.
    pub status_bytes: usize,
    /// Half of its answers took no longer.
    pub status_median: Duration,
    /// The page, where there is a browser.
    pub page: Option<PageReport>,
}

/// What a browser made of the page.
#[derive(Debug, Clone, Serialize)]
pub struct PageReport {
    /// From its address to its first table of runners.
    pub shown_in: Duration,
    /// What one update takes to draw.
    pub drawn_in: Duration,
    /// The rows of its table of runners.
    pub rows: usize,
}

/// Connects `runners` to a relay of their own, lets each write now and then, and asks the admin listener.
///
/// # Errors
/// A runner does not get in, or an answer does not come.
pub async fn run(runners: usize, mut progress: impl FnMut(usize)) -> Result<CrowdReport, Box<dyn Error + Send + Sync>> {
    let admin = free_address()?;
    let rig = Rig::builder().runners(0).relay_program(&format!("[admin]\naddress = \"{admin}\"")).start().await?;
    let memory_before = rig.relay_program().usage()?.memory_bytes;
    let began = Instant::now();
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut connecting = JoinSet::new();
    for number in 1..=runners {
        let id = RunnerId::new(&format!("runner-{number:05}"))?;
        let one = One {
            credentials: rig.cluster().issue_runner(&id)?,
            token: rig.token_for(&id).sign(rig.signing_key()),
            roots: rig.cluster().roots().clone(),
            address: rig.relay_address(),
        };
        let places = Arc::clone(&places);
        connecting.spawn(async move {
            let _place = places.acquire_owned().await.map_err(|error| error.to_string())?;
            one.connect().await
        });
    }
    let mut connected = Vec::new();
    while let Some(one) = connecting.join_next().await {
        connected.push(one??);
        progress(connected.len());
    }
    let connected_in = began.elapsed();
    let mut writing = JoinSet::new();
    for (client, token) in connected {
        writing.spawn(write_now_and_then(client, token));
    }

    let http = HttpClient::new(admin);
    let status = wait::until("everyone in the status", CONNECT_WITHIN, async || {
        let (_, body) = http.get("/status").await.map_err(|error| error.to_string())?;
        let status: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        match status["runners_connected"].as_u64() {
            Some(count) if count == runners as u64 => Ok(status),
            count => Err(format!("{count:?} runners are connected")),
        }
    })
    .await?;
    let (metrics_bytes, metrics_median, metrics_worst) = measure(&http, "/metrics").await?;
    let (status_bytes, status_median, _) = measure(&http, "/status").await?;
    let page = match Program::Chromium.find() {
        Ok(_) => Some(look(&format!("http://{admin}/")).await?),
        Err(_) => None,
    };
    Ok(CrowdReport {
        runners: status["runners_connected"].as_u64().unwrap_or_default(),
        connected_in,
        memory_before,
        memory_bytes: rig.relay_program().usage()?.memory_bytes,
        metrics_bytes,
        metrics_median,
        metrics_worst,
        status_bytes,
        status_median,
        page,
    })
}

/// A runner that is not connected yet.
struct One {
    credentials: Credentials,
    token: String,
    roots: Roots,
    address: std::net::SocketAddr,
}

impl One {
    /// Connects, and writes once.
    async fn connect(self) -> Result<(RawClient, String), String> {
        let attempt = async {
            let client = RawClient::connect(self.address, &self.roots, Some(&self.credentials)).await?;
            let response = client.write(Signal::Metrics).token(&self.token).body("up 1\n").send().await?;
            Ok::<_, crate::raw::RawError>((client, response.status))
        };
        match timeout(CONNECT_WITHIN, attempt).await {
            Ok(Ok((client, status))) if status.is_success() => Ok((client, self.token)),
            Ok(Ok((_, status))) => Err(format!("a runner's write was answered with {status}")),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("a runner did not get in".to_owned()),
        }
    }
}

/// For ever. A write that fails shows in what the relay says of its runners.
async fn write_now_and_then(client: RawClient, token: String) {
    loop {
        sleep(EVERY.mul_f64(0.5 + fastrand::f64())).await;
        let _ = client.write(Signal::Metrics).token(&token).body("up 1\n").send().await;
    }
}

/// Size, median and worst time.
async fn measure(http: &HttpClient, path: &str) -> Result<(usize, Duration, Duration), crate::http::HttpError> {
    let (mut times, mut size) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        size = http.get(path).await?.1.len();
        times.push(began.elapsed());
    }
    times.sort();
    Ok((size, times[ROUNDS / 2], times[ROUNDS - 1]))
}

async fn look(url: &str) -> Result<PageReport, Box<dyn Error + Send + Sync>> {
    let mut browser = Browser::start().await?;
    browser.look(View::DESK).await?;
    let began = Instant::now();
    browser.open(url).await?;
    let rows = wait::until("the page", CONNECT_WITHIN, async || match browser.rows("runners").await {
        Ok(rows) if !rows.is_empty() => Ok(rows.len()),
        other => Err(format!("{:?}", other.err())),
    })
    .await?;
    let shown_in = began.elapsed();
    let draw = "(() => { const began = performance.now(); draw(shown); document.body.offsetHeight; \
                return performance.now() - began; })()";
    let drawn = browser.evaluate(draw).await?.as_f64().unwrap_or_default();
    Ok(PageReport { shown_in, drawn_in: Duration::from_secs_f64(drawn / 1e3), rows })
}

/// A table for people.
impl fmt::Display for CrowdReport {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |bytes: u64| bytes as f64 / 1024.0;
        let each = kib(self.memory_bytes.saturating_sub(self.memory_before)) / self.runners.max(1) as f64;
        writeln!(f, "runners connected        {} in {:.1} s", self.runners, self.connected_in.as_secs_f64())?;
        writeln!(f, "relay's memory           {:.0} MiB, {each:.0} KiB a runner", kib(self.memory_bytes) / 1024.0)?;
        writeln!(
            f,
            "/metrics                 {:.0} KiB in {:.1} ms, at worst {:.1} ms",
            kib(self.metrics_bytes as u64),
            self.metrics_median.as_secs_f64() * 1e3,
            self.metrics_worst.as_secs_f64() * 1e3
        )?;
        writeln!(
            f,
            "/status                  {:.0} KiB in {:.1} ms",
            kib(self.status_bytes as u64),
            self.status_median.as_secs_f64() * 1e3
        )?;
        match &self.page {
            Some(page) => writeln!(
                f,
                "page                     shown in {:.0} ms, an update drawn in {:.0} ms ({} rows)",
                page.shown_in.as_secs_f64() * 1e3,
                page.drawn_in.as_secs_f64() * 1e3,
                page.rows
            ),
            None => writeln!(f, "page                     no browser"),
        }
    }
}
