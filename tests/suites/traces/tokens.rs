//! Who may write spans.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use telemetry_proto::{Clock, Reason, Signal};
use telemetry_rig::rig::{Rig, StoreKind};
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;
use telemetry_runner_client::{
    DropReason, IssueError, IssuedToken, Jitter, LateTokenSettings, LateTokenSource, Point, Token,
};

use super::{DEADLINE, becomes, dropped, rig, tally, write, writer};

pub(crate) async fn a_token_for_other_signals_opens_no_traces_and_one_for_traces_opens_no_other() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let client = rig.raw_client(0).await?;
    let token =
        |signals: &[&str]| rig.token_for(&rig.runner(0).id).claim("signals", signals.to_vec()).sign(rig.signing_key());
    let without_claim = rig.token_for(&rig.runner(0).id).without("signals").sign(rig.signing_key());
    let send = |signal: Signal, token: &str| client.write(signal).token(token).body("").send();
    for token in [token(&["metrics"]), token(&["metrics", "logs"]), without_claim.clone()] {
        send(Signal::Traces, &token).await?.expect_refusal(Reason::TokenSignalNotGranted)?;
    }
    for signal in [Signal::Metrics, Signal::Logs] {
        send(signal, &token(&["traces"])).await?.expect_refusal(Reason::TokenSignalNotGranted)?;
    }
    assert!(rig.built_in_store().requests().is_empty());
    // Each opens its own, and one may open several.
    for token in [token(&["traces"]), token(&["metrics", "traces"])] {
        assert_ne!(send(Signal::Traces, &token).await?.reason(), Some(Reason::TokenSignalNotGranted));
    }
    assert_ne!(send(Signal::Metrics, &without_claim).await?.reason(), Some(Reason::TokenSignalNotGranted));
    Ok(())
}

pub(crate) async fn a_runner_without_the_grant_for_traces_drops_its_spans_as_no_credential_and_its_metrics_go_on()
-> TestResult {
    let tokens = LateTokenSource::new();
    let granted = tokens.clone();
    let rig = rig(StoreKind::BuiltIn)
        .client(move |client| client.policy_interval(super::POLL).trace_token_source(Arc::new(granted.clone())))
        .start()
        .await?;
    let runner = rig.runner(0);
    runner.arm();
    // The issuer grants this runner metrics and logs only.
    tokens.arm(runner.client.issuer());
    write(&writer(runner).await?, 0..10);
    runner.client.metrics().write(Point::new("p", 1.0))?;
    let report = runner.client.flush(DEADLINE).await;
    assert_eq!((report.delivered, report.dropped, report.waiting), (1, 10, 0));
    assert_eq!(tally(&runner.client).dropped(DropReason::NoCredential), 10);
    assert!(rig.built_in_store().spans().is_empty());
    Ok(())
}

/// A clock that is ahead by what the test says.
#[derive(Default)]
struct Ahead(AtomicU64);

impl Clock for Ahead {
    fn now(&self) -> SystemTime {
        SystemTime::now() + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

pub(crate) async fn a_token_serves_until_it_ends_while_its_issuer_is_away_and_then_spans_end_as_no_credential()
-> TestResult {
    let clock = Arc::new(Ahead::default());
    let tokens = LateTokenSource::with(LateTokenSettings::default(), Arc::clone(&clock) as _, Arc::new(Jitter::new()));
    let source = tokens.clone();
    let rig: Rig = rig(StoreKind::BuiltIn)
        .client(move |client| client.policy_interval(super::POLL).trace_token_source(Arc::new(source.clone())))
        .start()
        .await?;
    let runner = rig.runner(0);
    let token = rig.token_for(&runner.id).claim("signals", vec!["traces"]).sign(rig.signing_key());
    let ends = SystemTime::now() + Duration::from_secs(3_600);
    let away = AtomicBool::new(false);
    // Mints once, and is away from then on.
    tokens.arm(Arc::new(move || {
        let answer = match away.swap(true, Ordering::SeqCst) {
            false => Token::new(&token, Some(ends)).map(IssuedToken::from).map_err(IssueError::from),
            true => Err(IssueError::Timeout),
        };
        std::future::ready(answer)
    }));
    let writer = writer(runner).await?;
    becomes(&writer, true).await?;
    for (minutes, number) in [(0, 0), (30, 10), (59, 20)] {
        clock.0.store(minutes * 60, Ordering::SeqCst);
        write(&writer, number..number + 10);
        assert_eq!(runner.client.flush(DEADLINE).await.delivered, 10, "after {minutes} min");
    }
    assert_eq!(tally(&runner.client).dropped_in_all(), 0, "as nothing at all before");
    clock.0.store(61 * 60, Ordering::SeqCst);
    write(&writer, 30..40);
    runner.client.flush(DEADLINE).await;
    let tally = dropped(&runner.client, DropReason::NoCredential, 10).await?;
    assert_eq!((tally.delivered, tally.dropped_in_all()), (30, 10));
    assert_eq!(rig.built_in_store().spans().len(), 30);
    Ok(())
}

pub(crate) async fn while_the_coordinator_is_away_spans_end_as_no_credential_only_after_the_token_has_ended()
-> TestResult {
    let clock = Arc::new(Ahead::default());
    let of_client = Arc::clone(&clock);
    let rig = rig(StoreKind::BuiltIn)
        .client(move |client| client.policy_interval(super::POLL).clock(Arc::clone(&of_client) as _));
    let rig = rig.start().await?;
    let client = &rig.runner(0).client;
    let writer = writer(rig.runner(0)).await?;
    write(&writer, 0..10);
    assert_eq!(client.flush(DEADLINE).await.delivered, 10);

    // The relay, and the issuer with it, whose token lives for an hour.
    rig.relay().kill().await?;
    for (minutes, number) in [(0, 10), (30, 20), (59, 30)] {
        clock.0.store(minutes * 60, Ordering::SeqCst);
        write(&writer, number..number + 10);
        client.flush(DEADLINE).await;
        let tally = tally(client);
        let dropped = [DropReason::NoCredential, DropReason::Unreachable].map(|reason| tally.dropped(reason));
        assert_eq!(dropped, [0, number.into()], "after {minutes} min: {tally:?}");
    }
    clock.0.store(61 * 60, Ordering::SeqCst);
    write(&writer, 40..50);
    client.flush(DEADLINE).await;
    let after = dropped(client, DropReason::NoCredential, 10).await?;
    assert_eq!((after.dropped(DropReason::Unreachable), after.delivered, after.waiting), (30, 10, 0));

    // Back again, all is as before.
    clock.0.store(0, Ordering::SeqCst);
    rig.relay().restart().await?;
    let mut number = 50;
    let arrives = async || {
        write(&writer, number..number + 1);
        number += 1;
        match client.flush(DEADLINE).await.delivered {
            0 => Err(format!("{:?}", tally(client))),
            _ => Ok(()),
        }
    };
    wait::until("a span after the outage", DEADLINE, arrives).await?;
    Ok(())
}
