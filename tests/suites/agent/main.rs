//! What unmodified tools write to the agent is in the stores once, under the runner, whatever dies on the way.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use telemetry_proto::RunnerId;
use telemetry_rig::program::Program;
use telemetry_rig::rig::{Rig, StoreKind};
use telemetry_rig::suite::TestResult;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

telemetry_rig::suite! {
    what_tools_write_to_the_agent_is_stored_once needs [RunnerAgent];
    what_tools_write_to_the_agent_is_in_the_real_stores_once needs [VictoriaMetrics, VictoriaLogs, RunnerAgent];
}

async fn what_tools_write_to_the_agent_is_stored_once() -> TestResult {
    is_stored_once(Rig::builder().start().await?).await
}

async fn what_tools_write_to_the_agent_is_in_the_real_stores_once() -> TestResult {
    is_stored_once(Rig::builder().stores(StoreKind::Real).start().await?).await
}

const LOGS: &str = "/insert/jsonline?_msg_field=log&_time_field=date";
const METRICS: &str = "/api/v1/import/prometheus";
/// Requests before, during and after an outage of the relay.
const REQUESTS: u32 = 20;

async fn is_stored_once(rig: Rig) -> TestResult {
    let folder = tempfile::tempdir()?;
    let id = RunnerId::new("r1")?;
    let issued = rig.cluster().issue(&id)?;
    std::fs::write(folder.path().join("runner.pem"), &issued.chain_pem)?;
    std::fs::write(folder.path().join("runner-key.pem"), &issued.key_pem)?;
    std::fs::write(folder.path().join("ca.pem"), rig.cluster().root_pem())?;
    let agent = Agent::start(folder.path(), rig.relay_address()).await?;
    write(&agent, 0).await?;
    // A relay that dies between the store's answer and its own forgets that the batch was stored. Not in this test.
    let first = usize::try_from(REQUESTS)?;
    rig.metrics_store().wait_for_samples(first).await?;
    rig.log_store().wait_for_log_lines(first).await?;
    agent.has_delivered(2 * first).await?;
    rig.relay().kill().await?;
    write(&agent, 1).await?;
    agent.kill().await?;
    let agent = Agent::start(folder.path(), rig.relay_address()).await?;
    rig.relay().restart().await?;
    write(&agent, 2).await?;

    let expected = usize::try_from(3 * REQUESTS)?;
    let samples = rig.metrics_store().wait_for_samples(expected).await?;
    let mut points = BTreeMap::new();
    for sample in &samples {
        assert_eq!((sample.name.as_str(), sample.label("miren_runner")), ("written", "r1"));
        *points.entry(sample.label("number").to_owned()).or_insert(0) += 1;
    }
    let lines = rig.log_store().wait_for_log_lines(expected).await?;
    let mut records = BTreeMap::new();
    for line in &lines {
        assert_eq!(line.field("miren_runner"), "r1");
        *records.entry(line.field("number").to_owned()).or_insert(0) += 1;
    }
    let once: BTreeMap<String, i32> = (0..3 * REQUESTS).map(|number| (number.to_string(), 1)).collect();
    assert_eq!((points, records), (once.clone(), once));
    agent.kill().await?;
    Ok(())
}

/// As curl writes metrics, and as the http output of Fluent Bit writes logs.
async fn write(agent: &Agent, part: u32) -> TestResult {
    for number in part * REQUESTS..(part + 1) * REQUESTS {
        let point = format!("written{{entity=\"e\",number=\"{number}\"}} 1\n");
        agent.post(METRICS, "text/plain", &point).await?;
        let date = time::OffsetDateTime::from(SystemTime::now());
        let date = date.format(&time::format_description::well_known::Rfc3339)?;
        let line = format!(
            "{{\"date\":\"{date}\",\"log\":\"written\",\"number\":\"{number}\",\"entity\":\"e\",\"stream\":\"stdout\"}}\n"
        );
        agent.post(LOGS, "application/x-ndjson", &line).await?;
    }
    Ok(())
}

/// The agent's program.
struct Agent {
    process: Child,
    address: SocketAddr,
}

impl Agent {
    async fn start(folder: &Path, relay: SocketAddr) -> Result<Self, Box<dyn std::error::Error>> {
        let mut process = Command::new(Program::RunnerAgent.find()?)
            .current_dir(folder)
            .args(["run", "--certificate", "runner.pem", "--key", "runner-key.pem", "--ca", "ca.pem"])
            .args(["--spool", "spool", "--listen", "127.0.0.1:0"])
            .args(["--coordinator", &format!("localhost:{}", relay.port())])
            .env_remove("RUST_LOG")
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let log = process.stderr.take().ok_or("no log")?;
        let mut lines = BufReader::new(log).lines();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(30) {
            let line = lines.next_line().await?.ok_or("the agent ended")?;
            let event: serde_json::Value = serde_json::from_str(&line)?;
            if let (Some("agent started"), Some(address)) = (event["message"].as_str(), event["address"].as_str()) {
                let address = address.parse()?;
                // Whoever does not read a pipe stops its writer in the end.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok(Self { process, address });
            }
        }
        Err("the agent does not start".into())
    }

    /// Waits until the agent knows that so many items are delivered.
    async fn has_delivered(&self, items: usize) -> TestResult {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(30) {
            let answer = self.exchange("GET /status HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
            let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            let status: serde_json::Value = serde_json::from_str(body)?;
            let delivered = |signal: &str| status["signals"][signal]["delivered"].as_u64().unwrap_or_default();
            if delivered("metrics") + delivered("logs") == u64::try_from(items)? {
                return Ok(());
            }
        }
        Err("the agent does not deliver".into())
    }

    async fn exchange(&self, request: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// Posts, and is told that it was taken.
    async fn post(&self, path: &str, content_type: &str, body: &str) -> TestResult {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let answer = self.exchange(&request).await?;
        assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
        Ok(())
    }

    /// As kill -9.
    async fn kill(mut self) -> TestResult {
        Ok(self.process.kill().await?)
    }
}
