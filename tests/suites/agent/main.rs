//! What unmodified tools write to the agent is in the stores once, under the runner, whatever dies on the way.

mod renewal;
mod stops;
mod tools;

use std::collections::BTreeMap;
use std::time::SystemTime;

use http::StatusCode;
use telemetry_rig::agent::AgentProgram;
use telemetry_rig::rig::{Rig, StoreKind};
use telemetry_rig::suite::TestResult;

use renewal::*;
use stops::*;
use tools::*;

telemetry_rig::suite! {
    what_tools_write_to_the_agent_is_stored_once needs [RunnerAgent];
    what_tools_write_to_the_agent_is_in_the_real_stores_once needs [VictoriaMetrics, VictoriaLogs, RunnerAgent];
    vmagents_points_are_in_the_real_store_once_under_the_runner needs [VictoriaMetrics, VictoriaLogs, RunnerAgent, VmAgent];
    prometheus_samples_are_in_the_real_store_once_under_the_runner
        needs [VictoriaMetrics, VictoriaLogs, RunnerAgent, Prometheus];
    syslog_ngs_lines_are_in_the_real_store_once_under_the_runner
        needs [VictoriaMetrics, VictoriaLogs, RunnerAgent, SyslogNg];
    curl_writes_through_the_unix_socket_into_the_real_stores needs [VictoriaMetrics, VictoriaLogs, RunnerAgent, Curl];
    lesson_14_a_kill_at_any_stage_loses_at_most_what_was_not_answered_and_counts_what_it_finds needs [RunnerAgent];
    lesson_20_an_agent_that_stops_while_its_retries_wait_ends_in_time_and_delivers_all_after_its_restart
        needs [RunnerAgent];
    the_agent_renews_its_certificate_at_two_thirds_of_its_life_and_goes_on_with_it_after_a_restart
        needs [Relay, RunnerAgent];
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
    let agent = AgentProgram::start(&rig, "r1").await?;
    write(&agent, 0).await?;
    // A relay that dies between the store's answer and its own forgets that the batch was stored. Not in this test.
    let first = usize::try_from(REQUESTS)?;
    rig.metrics_store().wait_for_samples(first).await?;
    rig.log_store().wait_for_log_lines(first).await?;
    agent.has_delivered(2 * u64::from(REQUESTS)).await?;
    rig.relay().kill().await?;
    write(&agent, 1).await?;
    agent.restart().await?;
    rig.relay().restart().await?;
    write(&agent, 2).await?;
    all_is_stored_once(&rig, 3 * REQUESTS).await
}

/// Points and lines with the numbers below `count` are in the stores, each once, under the runner.
async fn all_is_stored_once(rig: &Rig, count: u32) -> TestResult {
    points_are_stored_once(rig, count).await?;
    let lines = rig.log_store().wait_for_log_lines(usize::try_from(count)?).await?;
    assert!(lines.iter().all(|line| line.field("miren_runner") == "r1"));
    each_once("lines", count, lines.iter().map(|line| line.field("number")))
}

async fn points_are_stored_once(rig: &Rig, count: u32) -> TestResult {
    let samples = rig.metrics_store().wait_for_samples(usize::try_from(count)?).await?;
    for sample in &samples {
        assert_eq!((sample.name.as_str(), sample.label("miren_runner")), ("written", "r1"));
    }
    each_once("points", count, samples.iter().map(|sample| sample.label("number")))
}

/// Says what is missing and what is there twice, and not thousands of lines.
fn each_once<'a>(what: &str, count: u32, numbers: impl Iterator<Item = &'a str>) -> TestResult {
    let mut stored: BTreeMap<u32, u32> = BTreeMap::new();
    for number in numbers {
        *stored.entry(number.parse()?).or_default() += 1;
    }
    let missing: Vec<u32> = (0..count).filter(|number| !stored.contains_key(number)).take(5).collect();
    let repeated: Vec<_> = stored.iter().filter(|(_, times)| **times > 1).take(5).collect();
    assert!(
        missing.is_empty() && repeated.is_empty() && stored.len() == usize::try_from(count)?,
        "{what}: {} of {count} stored; missing: {missing:?}; more than once: {repeated:?}",
        stored.len()
    );
    Ok(())
}

/// As curl writes metrics, and as the http output of Fluent Bit writes logs.
async fn write(agent: &AgentProgram, part: u32) -> TestResult {
    for number in part * REQUESTS..(part + 1) * REQUESTS {
        write_point(agent, number).await?;
        let date = time::OffsetDateTime::from(SystemTime::now());
        let date = date.format(&time::format_description::well_known::Rfc3339)?;
        let line = format!(
            "{{\"date\":\"{date}\",\"log\":\"written\",\"number\":\"{number}\",\"entity\":\"e\",\"stream\":\"stdout\"}}\n"
        );
        let (status, why) = agent.http().post(LOGS, Some("application/x-ndjson"), line).await?;
        assert_eq!(status, StatusCode::NO_CONTENT, "{why:?}");
    }
    Ok(())
}

async fn write_point(agent: &AgentProgram, number: u32) -> TestResult {
    let point = format!("written{{entity=\"e\",number=\"{number}\"}} 1\n");
    let (status, why) = agent.http().post(METRICS, Some("text/plain"), point).await?;
    assert_eq!(status, StatusCode::NO_CONTENT, "{why:?}");
    Ok(())
}
