//! `telemetry-chaos`, shortened: nothing lost, nothing twice, whatever fails.

use std::time::Duration;

use telemetry_rig::chaos::{self, FaultKind, Report, Settings, Show};
use telemetry_rig::rig::StoreKind;
use telemetry_rig::suite::TestResult;
use tokio::sync::watch;

telemetry_rig::suite! {
    nothing_is_lost_or_twice_while_everything_fails needs [RunnerAgent];
    nothing_is_lost_or_twice_while_everything_fails_before_the_real_stores needs [VictoriaMetrics, VictoriaLogs, RunnerAgent];
    what_a_killed_relay_forgot_is_counted_apart_and_only_that needs [RunnerAgent];
    an_interrupt_drains_and_reports needs [RunnerAgent];
}

async fn nothing_is_lost_or_twice_while_everything_fails() -> TestResult {
    holds(&run(StoreKind::BuiltIn, 3, 6, FaultKind::ALL.to_vec()).await?)
}

async fn nothing_is_lost_or_twice_while_everything_fails_before_the_real_stores() -> TestResult {
    holds(&run(StoreKind::Real, 3, 6, FaultKind::ALL.to_vec()).await?)
}

async fn what_a_killed_relay_forgot_is_counted_apart_and_only_that() -> TestResult {
    let report = run(StoreKind::BuiltIn, 5, 6, vec![FaultKind::RelayKill]).await?;
    holds(&report)?;
    // One of the kills waits until a store has answered and the relay has not: what it forgot comes again.
    assert!(report.total.duplicated_by_relay_kill > 0, "{report}");
    assert_eq!(report.total.duplicated_by_store_kill, 0, "{report}");
    Ok(())
}

async fn an_interrupt_drains_and_reports() -> TestResult {
    let (interrupt, interrupted) = watch::channel(false);
    let settings = settings(StoreKind::BuiltIn, 1, 600, vec![FaultKind::Packets]);
    let show = Show::new(true);
    let run = chaos::run(&settings, interrupted, &show);
    let end = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        interrupt.send_replace(true);
    };
    let report = tokio::join!(run, end).0?;
    assert!(report.interrupted && report.seconds < 30.0, "{report}");
    holds(&report)
}

async fn run(stores: StoreKind, seed: u64, seconds: u64, kinds: Vec<FaultKind>) -> Result<Report, chaos::ChaosError> {
    let (_interrupt, interrupted) = watch::channel(false);
    chaos::run(&settings(stores, seed, seconds, kinds), interrupted, &Show::new(true)).await
}

fn settings(stores: StoreKind, seed: u64, seconds: u64, kinds: Vec<FaultKind>) -> Settings {
    Settings { length: Duration::from_secs(seconds), seed, stores, kinds, drain: Duration::from_secs(35) }
}

fn holds(report: &Report) -> TestResult {
    assert!(report.ok, "{report}");
    let total = &report.total;
    assert!(total.written > 500, "{report}");
    let apart = total.lost_by_store_kill + total.lost_in_window + total.dropped.values().sum::<u64>();
    assert!(total.stored + apart >= total.written, "{report}");
    Ok(())
}
