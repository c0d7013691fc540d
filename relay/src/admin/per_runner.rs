//! Series of each runner that is connected, for installations that are small enough for them.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::status::RunnerStatus;

/// With more connected runners than this there are no series of each, unless the operator says otherwise: 400 series.
pub const DEFAULT_RUNNER_SERIES: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunnerLabel {
    runner: String,
}

/// The series of these runners and of no others: who goes leaves nothing behind. All are gauges, since what is counted is
/// counted per connection and goes with it.
pub(super) fn series(runners: &[RunnerStatus]) -> Registry {
    let mut registry = Registry::default();
    let relay = registry.sub_registry_with_prefix("telemetry_relay_runner");
    let family = |of: fn(&RunnerStatus) -> u64| {
        let family = Family::<RunnerLabel, Gauge>::default();
        for runner in runners {
            let label = RunnerLabel { runner: runner.id.clone() };
            family.get_or_create(&label).set(i64::try_from(of(runner)).unwrap_or(i64::MAX));
        }
        family
    };
    relay.register("connections", "Open connections of a runner", family(|r| r.connection.connections as u64));
    relay.register("requests", "Requests on a runner's open connections", family(|r| r.connection.requests));
    relay.register("refused_requests", "Those of them that were refused", family(|r| r.connection.refused));
    relay.register_with_unit(
        "forwarded",
        "Bodies that a store acknowledged, on a runner's open connections",
        Unit::Bytes,
        family(|r| r.connection.bytes),
    );
    registry
}
