//! Other people's programs, unmodified, with the settings that their documentation gives for the stores themselves.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use serde_json::Value;
use telemetry_rig::agent::AgentProgram;
use telemetry_rig::http::HttpClient;
use telemetry_rig::program::Program;
use telemetry_rig::rig::{Rig, StoreKind};
use telemetry_rig::suite::TestResult;
use telemetry_rig::tools::Tool;
use telemetry_rig::wait;
use tokio::process::Command;

use super::{LOGS, METRICS, each_once, points_are_stored_once};

const POINTS: u32 = 500;
const LINES: u32 = 100;
const DEADLINE: Duration = Duration::from_secs(30);

async fn real() -> Result<(Rig, AgentProgram), Box<dyn std::error::Error + Send + Sync>> {
    let rig = Rig::builder().stores(StoreKind::Real).start().await?;
    let agent = AgentProgram::start(&rig, "r1").await?;
    Ok((rig, agent))
}

/// Its own protocol is refused, whereupon it goes over to the one of Prometheus and sends the block again. The relay is away
/// for the second half.
pub(crate) async fn vmagents_points_are_in_the_real_store_once_under_the_runner() -> TestResult {
    let (rig, agent) = real().await?;
    let vmagent = Tool::vmagent(&format!("http://{}/api/v1/write", agent.address())).await?;
    give(&vmagent, 0..POINTS / 2).await?;
    points_are_stored_once(&rig, POINTS / 2).await?;
    agent.has_delivered(u64::from(POINTS / 2)).await?;
    rig.relay().kill().await?;
    give(&vmagent, POINTS / 2..POINTS).await?;
    let waiting = |status: &Value| status["signals"]["metrics"]["waiting"] == POINTS - POINTS / 2;
    agent.becomes("the second half", waiting).await?;
    rig.relay().restart().await?;
    points_are_stored_once(&rig, POINTS).await
}

async fn give(vmagent: &Tool, numbers: std::ops::Range<u32>) -> TestResult {
    let lines: String = numbers.map(|number| format!("written{{entity=\"e\",number=\"{number}\"}} 1\n")).collect();
    let (status, why) = HttpClient::new(vmagent.address()).post(METRICS, None, lines).await?;
    assert_eq!(status, StatusCode::NO_CONTENT, "{why:?}");
    Ok(())
}

/// It scrapes the agent itself; what it has, the store has.
pub(crate) async fn prometheus_samples_are_in_the_real_store_once_under_the_runner() -> TestResult {
    let (rig, agent) = real().await?;
    let url = format!("http://{}/api/v1/write", agent.address());
    let prometheus = Tool::prometheus(&url, agent.address()).await?;
    let client = HttpClient::new(prometheus.address());
    let scraped = async || match samples_of_prometheus(&client).await {
        Ok(samples) if samples.len() >= 3 => Ok(samples),
        Ok(samples) => Err(format!("{samples:?}")),
        Err(error) => Err(error.to_string()),
    };
    let scraped = wait::until("three scrapes", DEADLINE, scraped).await?;
    let sent = async || {
        let stored = rig.metrics_store().samples().await.map_err(|error| error.to_string())?;
        let ours = stored.into_iter().filter(|sample| sample.name == "telemetry_written_total");
        let ours: Vec<_> = ours.filter(|sample| sample.label("signal") == "logs").collect();
        if scraped.iter().all(|(at, _)| ours.iter().any(|sample| sample.timestamp_ms == *at)) {
            Ok(ours)
        } else {
            Err(format!("{} of {}", ours.len(), scraped.len()))
        }
    };
    for sample in wait::until("every sample in the store", DEADLINE, sent).await? {
        assert_eq!((sample.label("miren_runner"), sample.label("job")), ("r1", "rig"));
        if let Some((_, value)) = scraped.iter().find(|(at, _)| *at == sample.timestamp_ms) {
            assert_eq!(sample.value, *value);
        }
    }
    // Not once more, whatever it is asked.
    let stored = rig.metrics_store().samples().await?;
    let mut keys: Vec<_> = stored.iter().map(|sample| (&sample.name, &sample.labels, sample.timestamp_ms)).collect();
    keys.sort();
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "a sample is stored twice");
    Ok(())
}

/// Time in milliseconds and value.
async fn samples_of_prometheus(
    client: &HttpClient,
) -> Result<Vec<(i64, f64)>, Box<dyn std::error::Error + Send + Sync>> {
    const QUERY: &str = "/api/v1/query?query=telemetry_written_total%7Bsignal%3D%22logs%22%7D%5B5m%5D";
    let (_, body) = client.get(QUERY).await?;
    let answer: Value = serde_json::from_slice(&body)?;
    let values = answer["data"]["result"][0]["values"].as_array().cloned().unwrap_or_default();
    let sample = |pair: &Value| {
        #[expect(clippy::cast_possible_truncation, reason = "a time of today in milliseconds")]
        let at = (pair[0].as_f64()? * 1e3).round() as i64;
        Some((at, pair[1].as_str()?.parse().ok()?))
    };
    Ok(values.iter().filter_map(sample).collect())
}

/// The relay is away for the second half.
pub(crate) async fn syslog_ngs_lines_are_in_the_real_store_once_under_the_runner() -> TestResult {
    let (rig, agent) = real().await?;
    let tool = Tool::syslog_ng(&format!("http://{}{LOGS}?_msg_field=log", agent.address())).await?;
    let mut input = OpenOptions::new().append(true).open(tool.input())?;
    (0..LINES / 2).try_for_each(|number| writeln!(input, "number {number}"))?;
    rig.log_store().wait_for_log_lines(usize::try_from(LINES / 2)?).await?;
    agent.has_delivered(u64::from(LINES / 2)).await?;
    rig.relay().kill().await?;
    (LINES / 2..LINES).try_for_each(|number| writeln!(input, "number {number}"))?;
    agent.becomes("the second half", |status| status["signals"]["logs"]["waiting"] == LINES - LINES / 2).await?;
    rig.relay().restart().await?;
    let lines = rig.log_store().wait_for_log_lines(usize::try_from(LINES)?).await?;
    for line in &lines {
        assert_eq!((line.field("miren_runner"), line.stream["entity"].as_str()), ("r1", "e"));
    }
    each_once("lines", LINES, lines.iter().filter_map(|line| line.field("_msg").strip_prefix("number ")))
}

pub(crate) async fn curl_writes_through_the_unix_socket_into_the_real_stores() -> TestResult {
    let (rig, agent) = real().await?;
    let curl = async |path: &str, content_type: &str, body: &str| -> TestResult {
        let output = Command::new(Program::Curl.find()?)
            .args(["--silent", "--show-error", "--fail-with-body", "--max-time", "20", "--unix-socket"])
            .arg(agent.socket())
            .args(["-H", &format!("Content-Type: {content_type}"), "--data-binary", body])
            .arg(format!("http://agent{path}"))
            .output()
            .await?;
        assert!(output.status.success(), "{output:?}");
        Ok(())
    };
    curl(METRICS, "text/plain", "written{entity=\"e\",number=\"0\"} 1\n").await?;
    let now = time::OffsetDateTime::from(SystemTime::now());
    let now = now.format(&time::format_description::well_known::Rfc3339)?;
    let line = format!("{{\"_time\":\"{now}\",\"_msg\":\"m\",\"entity\":\"e\",\"stream\":\"s\",\"number\":\"0\"}}\n");
    curl(LOGS, "application/stream+json", &line).await?;
    super::all_is_stored_once(&rig, 1).await
}
