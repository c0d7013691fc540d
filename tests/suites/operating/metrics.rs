//! The names that dashboards and rules ask for.

use std::collections::BTreeSet;
use std::process::Stdio;

use telemetry_proto::{RunnerId, Signal};
use telemetry_rig::http::HttpClient;
use telemetry_rig::net::free_address;
use telemetry_rig::program::Program;
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;
use telemetry_runner_client::{LogRecord, Point};
use tokio::process::Command;

use super::read;

/// Every series that the programs show, once something of each kind has happened.
pub(crate) async fn every_metric_of_the_dashboard_and_the_rules_exists() -> TestResult {
    let (admin, listen) = (free_address()?, free_address()?);
    let rig = Rig::builder().relay_program(&format!("[admin]\naddress = \"{admin}\"")).start().await?;
    let runner = rig.runner(0);
    runner.arm();
    runner.client.metrics().write(Point::new("up", 1.0))?;
    runner.client.logs().write(&LogRecord::new("app", "stdout", "ready"))?;
    runner.client.flush(std::time::Duration::from_secs(30)).await;
    rig.raw_client(0).await?.write(Signal::Metrics).body("up 1\n").send().await?;
    // No certificate: refused, now or at the first request.
    if let Ok(stranger) = rig.raw_client_with(None).await {
        let _ = stranger.write(Signal::Metrics).body("up 1\n").send().await;
    }

    let folder = tempfile::tempdir()?;
    let issued = rig.cluster().issue(&RunnerId::new("agent")?)?;
    std::fs::write(folder.path().join("runner.pem"), &issued.chain_pem)?;
    std::fs::write(folder.path().join("runner-key.pem"), &issued.key_pem)?;
    std::fs::write(folder.path().join("ca.pem"), rig.cluster().root_pem())?;
    let _agent = Command::new(Program::RunnerAgent.find()?)
        .current_dir(folder.path())
        .args(["run", "--certificate", "runner.pem", "--key", "runner-key.pem", "--ca", "ca.pem", "--spool", "spool"])
        .args(["--listen", &listen.to_string()])
        .args(["--coordinator", &format!("localhost:{}", rig.relay_address().port())])
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let agent = HttpClient::new(listen);
    wait::until("the agent", std::time::Duration::from_secs(30), async || {
        let posted = agent.post("/api/v1/import/prometheus", Some("text/plain"), "up 1\n").await;
        posted.map(drop).map_err(|error| error.to_string())
    })
    .await?;

    let dashboard: serde_json::Value = serde_json::from_str(&read("deploy/grafana/telemetry.json")?)?;
    let mut used = BTreeSet::new();
    expressions(&dashboard, &mut used);
    assert!(used.len() > 20, "the dashboard asks for {} series only", used.len());
    names(&read("deploy/alerts/telemetry.yml")?, &mut used);

    let relay = HttpClient::new(admin);
    let seen = wait::until("every series", std::time::Duration::from_secs(30), async || {
        let mut shown = BTreeSet::new();
        for program in [&relay, &agent] {
            let (_, text) = program.get("/metrics").await.map_err(|error| error.to_string())?;
            let text = String::from_utf8_lossy(&text);
            let series = text.lines().filter(|line| !line.starts_with('#'));
            shown.extend(series.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned));
        }
        let missing: Vec<_> = used.iter().filter(|name| !shown.contains(*name)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("no {missing:?}")) }
    });
    seen.await?;
    Ok(())
}

/// The names in everything that is asked for.
fn expressions(value: &serde_json::Value, into: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(text) if key == "expr" || key == "definition" => names(text, into),
                    _ => expressions(value, into),
                }
            }
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| expressions(value, into)),
        _ => {}
    }
}

/// What looks like a series of ours.
fn names(text: &str, into: &mut BTreeSet<String>) {
    let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
    let ours = |word: &&str| word.starts_with("telemetry_") || word.starts_with("process_");
    into.extend(words.filter(ours).map(str::to_owned));
}
