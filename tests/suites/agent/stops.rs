//! Agents that end, in good order and otherwise.

use std::time::{Duration, Instant};

use http::StatusCode;
use serde_json::Value;
use telemetry_rig::agent::AgentProgram;
use telemetry_rig::rig::Rig;
use telemetry_rig::stores::Fault;
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;

use super::{all_is_stored_once, points_are_stored_once, write, write_point};

/// An agent is killed before it is told anything, while batches wait, while one is under way, and after they were delivered.
/// What was answered with 204 is never lost by the end of a process: the window of `sync_every_records` is a power loss's.
/// What is found at the next start is counted as recovered, to the last item.
pub(crate) async fn lesson_14_a_kill_at_any_stage_loses_at_most_what_was_not_answered_and_counts_what_it_finds()
-> TestResult {
    let rig = Rig::builder().start().await?;
    let agent = AgentProgram::start(&rig, "r1").await?;
    agent.restart().await?;
    assert_eq!(recovered(&agent.status().await?), 0, "killed with nothing");

    // Stored, and no way to the relay.
    rig.relay().kill().await?;
    for number in 0..10 {
        write_point(&agent, number).await?;
    }
    agent.restart().await?;
    assert_eq!(recovered(&agent.status().await?), 10, "killed while batches wait");

    // Under way: the store has a batch and says nothing.
    rig.built_in_store().always(Some(Fault::Hang));
    rig.relay().restart().await?;
    store_was_asked(&rig, 1).await?;
    agent.kill().await?;
    rig.built_in_store().always(None);
    agent.restart().await?;
    assert_eq!(recovered(&agent.status().await?), 10, "killed while a batch is under way");
    agent.has_delivered(10).await?;
    points_are_stored_once(&rig, 10).await?;

    // Delivered: what was acknowledged may not be on the disk yet, and comes again as a duplicate then.
    agent.restart().await?;
    for number in 10..20 {
        write_point(&agent, number).await?;
    }
    let settled = |status: &Value| status["signals"]["metrics"]["waiting"] == 0;
    agent.becomes("nothing waiting", settled).await?;
    points_are_stored_once(&rig, 20).await
}

async fn store_was_asked(rig: &Rig, times: usize) -> TestResult {
    let asked = async || match rig.built_in_store().requests().len() {
        seen if seen >= times => Ok(()),
        seen => Err(seen.to_string()),
    };
    Ok(wait::until(format!("{times} requests to the store"), Duration::from_secs(30), asked).await?)
}

fn recovered(status: &Value) -> u64 {
    let metrics = &status["signals"]["metrics"];
    let number = |name: &str| metrics[name].as_u64().unwrap_or_default();
    let dropped: u64 = metrics["dropped"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
    assert_eq!(
        number("written") + number("recovered"),
        number("delivered") + number("waiting") + dropped,
        "the account adds up: {metrics}"
    );
    number("recovered")
}

/// alloy 4509: retries blocked SIGTERM.
pub(crate) async fn lesson_20_an_agent_that_stops_while_its_retries_wait_ends_in_time_and_delivers_all_after_its_restart()
-> TestResult {
    let rig = Rig::builder().start().await?;
    let agent = AgentProgram::start(&rig, "r1").await?;
    // First the store refuses, so that a retry waits, and then the relay is away too.
    rig.built_in_store().always(Some(Fault::Answer(StatusCode::SERVICE_UNAVAILABLE)));
    write(&agent, 0).await?;
    store_was_asked(&rig, 2).await?;
    rig.relay().kill().await?;
    write(&agent, 1).await?;
    let began = Instant::now();
    agent.stop().await?;
    assert!(began.elapsed() < Duration::from_secs(15), "it took {:?} to stop", began.elapsed());
    assert!(agent.log()?.contains("agent stopped"));

    rig.built_in_store().always(None);
    rig.relay().restart().await?;
    agent.restart().await?;
    all_is_stored_once(&rig, 2 * super::REQUESTS).await
}
