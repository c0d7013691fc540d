//! The table of symptoms, causes and remedies in `docs/traces.md`: each row is a test here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use http::StatusCode;
use telemetry_proto::{Reason, Signal};
use telemetry_relay::forward::BackendSettings;
use telemetry_rig::rig::{Rig, RigRelay, StoreKind};
use telemetry_rig::stores::{BuiltInStore, Fault};
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;
use telemetry_runner_client::trace::{Entry, Journey, Settlement};
use telemetry_runner_client::{DropReason, LateTokenSource, Token};

use super::{DEADLINE, POLL, becomes, dropped, rig, scraped, series, tally, write, writer};

pub(crate) async fn no_spans_at_all_where_the_coordinator_takes_no_traces() -> TestResult {
    let rig = Rig::builder().client(|client| client.policy_interval(POLL)).start().await?;
    let client = &rig.runner(0).client;
    let writer = client.spans();
    let mut policy = client.policy().watch();
    let policy = policy.wait_for(Option::is_some).await?.clone().ok_or("no policy")?;
    assert!(!policy.takes(Signal::Traces) && policy.traces.is_none());
    write(&writer, 0..10);
    assert_eq!(series(client, "telemetry_written_total{signal=\"traces\"}"), 0.0);
    Ok(())
}

pub(crate) async fn no_spans_at_all_where_the_coordinator_can_not_be_asked() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    rig.relay().kill().await?;
    let client = &rig.runner(0).client;
    let writer = client.spans();
    assert!(client.connected().await.is_err());
    write(&writer, 0..10);
    assert!(client.policy().current().is_none());
    assert_eq!(series(client, "telemetry_written_total{signal=\"traces\"}"), 0.0);
    rig.relay().restart().await?;
    becomes(&writer, true).await?;
    Ok(())
}

pub(crate) async fn no_spans_of_background_work_and_few_of_the_data_path() -> TestResult {
    // The ratio that is in force where nobody said anything.
    let rig = Rig::builder().traces(StoreKind::BuiltIn).start().await?;
    let client = &rig.runner(0).client;
    let writer = writer(rig.runner(0)).await?;
    for _ in 0..1_000 {
        writer.entry(Entry::Background, "sweep", None).end();
        writer.entry(Entry::DataPath, "read", None).end();
    }
    writer.entry(Entry::Control, "create", None).end();
    client.flush(DEADLINE).await;
    let names: Vec<String> = rig.built_in_store().spans().into_iter().map(|span| span.name).collect();
    let count = |name: &str| names.iter().filter(|stored| *stored == name).count();
    assert_eq!((count("sweep"), count("create")), (0, 1));
    assert!(count("read") < 50, "{}", count("read"));
    assert_eq!(
        client.policy().current().and_then(|policy| policy.traces).map(|traces| traces.sample_ratio),
        Some(0.01)
    );
    Ok(())
}

pub(crate) async fn spans_of_others_and_not_of_a_runner_that_was_removed() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).runners(2).start().await?;
    let writers = [writer(rig.runner(0)).await?, writer(rig.runner(1)).await?];
    rig.removed().publish([rig.runner(1).id.clone()].into());
    write(&writers[0], 0..10);
    rig.runner(0).client.flush(DEADLINE).await;
    // The first request may be lost with its connection; the next has its answer.
    let is_refused = async || {
        write(&writers[1], 0..10);
        rig.runner(1).client.flush(DEADLINE).await;
        match tally(&rig.runner(1).client).dropped(DropReason::NoCredential) {
            0 => Err(format!("{:?}", tally(&rig.runner(1).client))),
            _ => Ok(()),
        }
    };
    wait::until("a refusal", DEADLINE, is_refused).await?;
    let spans = rig.built_in_store().spans();
    assert!(spans.len() == 10 && spans.iter().all(|span| span.runner() == "r1"), "{spans:?}");
    Ok(())
}

pub(crate) async fn a_span_without_what_was_said_about_it_if_that_is_not_listed() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let span = writer(rig.runner(0)).await?.entry(Entry::Control, "create", None);
    span.with("volume_id", "v-1").with("volume.name", "backup").end();
    rig.runner(0).client.flush(DEADLINE).await;
    let spans = rig.built_in_store().spans();
    assert_eq!((spans[0].tag("volume_id"), spans[0].tag("volume.name")), ("v-1", ""));
    let RigRelay::InProcess(relay) = rig.relay() else { return Err("elsewhere".into()) };
    let service = relay.service().ok_or("down")?;
    let removed = scraped(
        |registry| service.metrics().register(registry),
        "telemetry_relay_removed_from_spans_total{class=\"attribute\"}",
    );
    assert_eq!(removed, 1.0);
    Ok(())
}

/// A rig whose runner shows this token with its spans.
async fn with_token(token: impl Fn(&Rig) -> String) -> Result<Rig, Box<dyn std::error::Error>> {
    let tokens = LateTokenSource::new();
    let source = tokens.clone();
    let rig = rig(StoreKind::BuiltIn)
        .client(move |client| client.policy_interval(POLL).trace_token_source(Arc::new(source.clone())))
        .start()
        .await?;
    let token = Token::new(&token(&rig), None)?;
    tokens.arm(Arc::new(move || std::future::ready(Ok(token.clone().into()))));
    Ok(rig)
}

/// Writes ten spans, which end as `no_credential`, and says how often the relay gave this outcome.
async fn refused(rig: &Rig, outcome: &str) -> Result<f64, Box<dyn std::error::Error>> {
    let client = &rig.runner(0).client;
    write(&writer(rig.runner(0)).await?, 0..10);
    client.flush(DEADLINE).await;
    dropped(client, DropReason::NoCredential, 10).await?;
    assert!(rig.built_in_store().requests().is_empty());
    Ok(series(client, &format!("telemetry_requests_total{{signal=\"traces\",outcome=\"{outcome}\"}}")))
}

pub(crate) async fn status_401_where_tokens_are_not_accepted() -> TestResult {
    let expired = |rig: &Rig| {
        let token = rig.token_for(&rig.runner(0).id).claim("signals", vec!["traces"]);
        token.shifted(-7_200).sign(rig.signing_key())
    };
    let rig = with_token(expired).await.map_err(|error| error.to_string())?;
    assert!(refused(&rig, "refresh-token").await.map_err(|error| error.to_string())? >= 1.0);
    let answer = rig.raw_client(0).await?.write(Signal::Traces).token(&expired(&rig)).send().await?;
    answer.expect_refusal(Reason::TokenExpired)?;
    Ok(())
}

pub(crate) async fn status_403_where_tokens_grant_no_traces() -> TestResult {
    let metrics_only =
        |rig: &Rig| rig.token_for(&rig.runner(0).id).claim("signals", vec!["metrics"]).sign(rig.signing_key());
    let rig = with_token(metrics_only).await.map_err(|error| error.to_string())?;
    assert!(refused(&rig, "forbidden").await.map_err(|error| error.to_string())? >= 1.0);
    let answer = rig.raw_client(0).await?.write(Signal::Traces).token(&metrics_only(&rig)).send().await?;
    answer.expect_refusal(Reason::TokenSignalNotGranted)?;
    Ok(())
}

pub(crate) async fn status_403_where_traces_were_switched_off_a_moment_ago() -> TestResult {
    let off = Arc::new(AtomicBool::new(false));
    let store = BuiltInStore::start().await?;
    let (address, is_off) = (store.address(), Arc::clone(&off));
    // The runner asks so rarely that it does not notice by itself.
    let rig = Rig::builder()
        .relay(move |relay| match is_off.load(Ordering::SeqCst) {
            true => relay,
            false => relay.store(Signal::Traces, BackendSettings::new(address.into())),
        })
        .client(|client| client.policy_interval(Duration::from_secs(3_600)))
        .start()
        .await?;
    let client = &rig.runner(0).client;
    let writer = writer(rig.runner(0)).await?;
    write(&writer, 0..10);
    assert_eq!(client.flush(DEADLINE).await.delivered, 10);
    off.store(true, Ordering::SeqCst);
    rig.relay().stop().await?;
    rig.relay().restart().await?;
    let notices = async || {
        write(&writer, 10..20);
        client.flush(DEADLINE).await;
        if series(client, "telemetry_requests_total{signal=\"traces\",outcome=\"forbidden\"}") > 0.0 {
            return Ok(());
        }
        Err(format!("{:?}", tally(client)))
    };
    wait::until("a refusal", DEADLINE, notices).await?;
    becomes(&writer, false).await?;
    Ok(())
}

pub(crate) async fn code_0_where_there_is_no_connection() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let client = &rig.runner(0).client;
    let writer = writer(rig.runner(0)).await?;
    // One delivery, so that there is a token in hand.
    write(&writer, 0..1);
    assert_eq!(client.flush(DEADLINE).await.delivered, 1);
    rig.relay().kill().await?;
    write(&writer, 1..11);
    client.flush(DEADLINE).await;
    assert_eq!(tally(client).dropped(DropReason::Unreachable), 10);
    let outcomes = ["not-sent", "lost"]
        .map(|outcome| series(client, &format!("telemetry_requests_total{{signal=\"traces\",outcome=\"{outcome}\"}}")));
    assert_eq!(outcomes.iter().sum::<f64>(), 1.0, "{outcomes:?}");
    Ok(())
}

pub(crate) async fn unreachable_grows_where_the_store_is_away() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let client = &rig.runner(0).client;
    rig.built_in_store().always(Some(Fault::Answer(StatusCode::SERVICE_UNAVAILABLE)));
    write(&writer(rig.runner(0)).await?, 0..10);
    client.flush(DEADLINE).await;
    assert_eq!(tally(client).dropped(DropReason::Unreachable), 10);
    assert_eq!(series(client, "telemetry_requests_total{signal=\"traces\",outcome=\"retry\"}"), 1.0);
    Ok(())
}

pub(crate) async fn queue_full_grows_where_the_store_is_too_slow() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let client = &rig.runner(0).client;
    let writer = writer(rig.runner(0)).await?;
    rig.built_in_store().always(Some(Fault::Hang));
    write(&writer, 0..3_000);
    assert_eq!(series(client, "telemetry_dropped_total{signal=\"traces\",reason=\"queue_full\"}"), 3_000.0 - 2_048.0);
    assert_eq!(series(client, "telemetry_waiting_items{signal=\"traces\"}"), 2_048.0);
    Ok(())
}

pub(crate) async fn a_journey_can_not_be_opened_before_it_is_settled() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let client = &rig.runner(0).client;
    let writer = writer(rig.runner(0)).await?;
    let journey = Journey::of("command-9");
    let trace = journey.root().trace_id.to_string();
    let mut caller = writer.entry(Entry::Control, "create volume", None);
    caller.link(journey.root());
    drop(caller);
    client.flush(DEADLINE).await;
    assert!(rig.trace_store().trace(&trace).await?.is_empty(), "the link leads nowhere yet");
    journey.attempt(&writer, "attach", 1).end();
    client.flush(DEADLINE).await;
    let spans = rig.trace_store().wait_for_trace(&trace, 1).await?;
    assert!(
        spans.iter().all(|span| span.parent_id == journey.root().span_id.to_string()),
        "attempts without their root"
    );
    journey.settle(&writer, "volume", SystemTime::now(), Settlement { code: "attached", failed: false })?;
    client.flush(DEADLINE).await;
    let spans = rig.trace_store().wait_for_trace(&trace, 2).await?;
    assert!(spans.iter().any(|span| span.parent_id.is_empty()));
    Ok(())
}
