//! The names that dashboards and rules ask for.

use std::collections::{BTreeMap, BTreeSet};
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
    for program in [&relay, &agent] {
        let (_, text) = program.get("/metrics").await?;
        let faults = lint(&String::from_utf8(text.to_vec())?);
        assert!(faults.is_empty(), "{faults:#?}");
    }
    let bad = "# TYPE a_ms gauge\na_ms 1\n# HELP b_total x\n# TYPE b_total gauge\nb_total{id=\"1\"} 1\nc 1\n";
    assert_eq!(lint(bad).len(), 5, "{:#?}", lint(bad));
    Ok(())
}

/// The labels that series may have, each of which has a bounded number of values: of the contract, of the configuration, or of
/// the connected runners where they are few.
const LABELS: &[&str] =
    &["kind", "le", "outcome", "reason", "route", "runner", "signal", "tenant", "transport", "verdict", "version"];

/// What is against the rules of Prometheus and `OpenMetrics`: a family without HELP or TYPE, a unit that is no base unit or not
/// at the end, a counter that is not `_total`, a label of which nobody knows how many values it may have.
fn lint(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let (mut help, mut types) = (BTreeSet::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some((name, said)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            if said.trim().is_empty() || !help.insert(name) {
                faults.push(format!("{name}: HELP is empty, or there twice"));
            }
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            types.insert(name, kind);
        }
    }
    for (name, kind) in &types {
        if !help.contains(name) {
            faults.push(format!("{name}: no HELP"));
        }
        let words: Vec<_> = name.split('_').collect();
        let others = ["ms", "milliseconds", "us", "minutes", "hours", "days", "kb", "mb", "kib", "mib", "percent"];
        if words.iter().any(|word| others.contains(word)) {
            faults.push(format!("{name}: not in base units"));
        }
        for unit in ["seconds", "bytes"] {
            let before_last = words.split_last().map(|(_, before)| before).unwrap_or_default();
            let is_total = words.last() == Some(&"total") && before_last.last() == Some(&unit);
            if before_last.contains(&unit) && !is_total {
                faults.push(format!("{name}: the unit is not at the end"));
            }
        }
        if *kind == "gauge" && name.ends_with("_total") {
            faults.push(format!("{name}: a gauge that ends like a counter"));
        }
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let series = line.split(['{', ' ']).next().unwrap_or_default();
        let family = ["_total", "_bucket", "_sum", "_count", "_created", "_info"]
            .iter()
            .filter_map(|end| series.strip_suffix(end))
            .chain([series])
            .find(|family| types.contains_key(family));
        match family.map(|family| (family, types[family])) {
            None => faults.push(format!("{series}: no TYPE")),
            Some((_, "counter")) if !series.ends_with("_total") => {
                faults.push(format!("{series}: a counter without _total"));
            }
            Some(_) => {}
        }
        let labels = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(labels, _)| labels);
        for label in labels.split("\",").filter_map(|label| label.split_once("=\"")).map(|(label, _)| label) {
            if !LABELS.contains(&label) {
                faults.push(format!("{series}: how many values may {label} have?"));
            }
        }
    }
    faults.sort();
    faults.dedup();
    faults
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
