//! Networks of every kind between a runner and a relay: everything arrives once, and how fast is measured.
//!
//! They are made by a proxy, so that they can be had everywhere; the small MTU also by two network namespaces, where those can be had.

#[cfg(target_os = "linux")]
mod namespaces;

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use telemetry_rig::networks::{Condition, Transfer, conditions};
use telemetry_rig::suite::{Suite, TestResult};

/// The variable that says how many seconds the outage lasts.
const OUTAGE: &str = "TELEMETRY_NETWORKS_OUTAGE_SECONDS";
/// Shorter than a test may take.
const WITHIN: Duration = Duration::from_secs(50);

fn main() -> ExitCode {
    let outage = env::var(OUTAGE).ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(5);
    let suite = conditions(Duration::from_secs(outage)).into_iter().fold(Suite::new(), |suite, condition| {
        let expected = format!("{}: everything arrives once", condition.does);
        suite.expecting(&format!("networks: {}", condition.name), expected, &[], move || through(condition))
    });
    #[cfg(target_os = "linux")]
    let suite = namespaces::add(suite);
    suite.documented("networks").run()
}

async fn through(condition: Condition) -> TestResult {
    let transfer = condition.measure(WITHIN).await.map_err(|error| error.to_string())?;
    once(condition.name, &transfer);
    Ok(())
}

fn once(name: &str, transfer: &Transfer) {
    println!("{name}: {:.2} MiB/s, {transfer:?}", transfer.throughput());
    assert_eq!((transfer.lost, transfer.twice), (0, 0), "lost and twice");
}
