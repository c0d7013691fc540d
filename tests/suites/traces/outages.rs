//! Spans are not kept.

use http::StatusCode;
use telemetry_rig::agent::AgentProgram;
use telemetry_rig::rig::StoreKind;
use telemetry_rig::stores::Fault;
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;
use telemetry_runner_client::DropReason;

use super::agent::export;
use super::{DEADLINE, dropped, rig, series, tally, write, writer};

pub(crate) async fn a_store_that_is_away_costs_the_spans_of_that_time_and_there_is_no_burst_when_it_returns()
-> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let client = &rig.runner(0).client;
    let writer = writer(rig.runner(0)).await?;
    write(&writer, 0..10);
    assert_eq!(client.flush(DEADLINE).await.delivered, 10);

    rig.trace_store().kill().await?;
    write(&writer, 10..522);
    dropped(client, DropReason::Unreachable, 512).await?;
    // The relay asked for patience: from here on as many wait as may, and the newest are dropped.
    write(&writer, 1_000..11_000);
    let during = tally(client);
    assert!(during.waiting <= 2_048, "{during:?}");
    assert!(during.dropped(DropReason::QueueFull) >= 10_000 - 2 * 2_048, "{during:?}");
    assert!(series(client, "telemetry_queued_bytes{signal=\"traces\"}") < f64::from(8 << 20));
    dropped(client, DropReason::Unreachable, 512 + 2_048).await?;
    rig.trace_store().restart().await?;

    // The first that arrive are new.
    let mut number = 200_000;
    let arrives = async || {
        write(&writer, number..number + 1);
        number += 1;
        client.flush(std::time::Duration::from_millis(100)).await;
        let stored = rig.built_in_store().spans().len();
        if stored > 10 { Ok(stored) } else { Err(format!("{stored} spans")) }
    };
    wait::until("a span after the outage", DEADLINE, arrives).await?;
    let old = |name: &str| name[1..].parse::<u32>().is_ok_and(|number| (10..200_000).contains(&number));
    let burst: Vec<String> =
        rig.built_in_store().spans().into_iter().map(|span| span.name).filter(|name| old(name)).collect();
    assert!(burst.is_empty(), "{} spans were pushed later", burst.len());
    Ok(())
}

pub(crate) async fn a_store_that_is_away_costs_the_agent_no_memory() -> TestResult {
    const EXPORTS: usize = 300;
    const SPANS: usize = 600;
    const MIB: u64 = 1 << 20;
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let agent = AgentProgram::start(&rig, "r7").await?;
    agent.becomes("the policy", |status| !status["coordinator_takes"].is_null()).await?;
    let post = async |body| agent.http().post("/v1/traces", Some("application/x-protobuf"), body).await;
    let body = export(&"x".repeat(1_000), SPANS);
    assert_eq!(post(body.clone()).await?.0, StatusCode::OK);
    rig.built_in_store().always(Some(Fault::Hang));
    let before = agent.usage()?.memory_bytes;
    let mut taken = 0;
    for _ in 0..EXPORTS {
        taken += usize::from(post(body.clone()).await?.0 == StatusCode::OK);
    }
    let after = agent.usage()?.memory_bytes;
    let sent = (EXPORTS * body.len()) as u64;
    // What may wait, and what a body takes on its way; of 180,000 spans and 170 MiB.
    assert!(sent > 160 * MIB && taken < 20, "{sent} bytes, and {taken} of {EXPORTS} were taken");
    assert!(after <= before + 32 * MIB, "{} MiB, and {} before", after / MIB, before / MIB);
    let traces = &agent.status().await?["signals"]["traces"];
    assert!(traces["waiting"].as_u64() <= Some(2_048), "{traces}");
    Ok(())
}

pub(crate) async fn a_relay_that_is_away_costs_the_spans_of_that_time_and_those_after_it_arrive() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let client = &rig.runner(0).client;
    let writer = writer(rig.runner(0)).await?;
    write(&writer, 0..10);
    assert_eq!(client.flush(DEADLINE).await.delivered, 10);
    rig.relay().kill().await?;
    write(&writer, 10..20);
    client.flush(DEADLINE).await;
    assert_eq!(tally(client).dropped(DropReason::Unreachable), 10);
    rig.relay().restart().await?;
    let mut number = 20;
    let arrives = async || {
        write(&writer, number..number + 1);
        number += 1;
        match client.flush(DEADLINE).await.delivered {
            0 => Err("dropped".to_owned()),
            _ => Ok(()),
        }
    };
    wait::until("a span after the outage", DEADLINE, arrives).await?;
    let names: Vec<String> = rig.built_in_store().spans().into_iter().map(|span| span.name).collect();
    assert!((10..20).all(|number| !names.contains(&format!("s{number}"))), "{names:?}");
    Ok(())
}
