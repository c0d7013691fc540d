//! What the listener counts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Counters and gauges of the listener. Cheap to clone; every label set is bounded.
#[derive(Debug, Clone, Default)]
pub struct ListenerMetrics {
    accepted: Counter,
    pub(super) active: Gauge,
    refused: Family<KindLabel, Counter>,
    ended: Family<KindLabel, Counter>,
    pub(super) requests_running: Gauge,
    failed: Family<KindLabel, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

impl ListenerMetrics {
    /// Registers everything under `telemetry_listener_`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("telemetry_listener");
        registry.register(
            "connections_accepted",
            "Connections whose client certificate was accepted",
            self.accepted.clone(),
        );
        registry.register("connections_active", "Connections that are open", self.active.clone());
        registry.register("connections_refused", "Connections refused, by kind", self.refused.clone());
        registry.register("connections_ended", "Connections ended by this side, by kind", self.ended.clone());
        registry.register("requests_running", "Requests that are being served", self.requests_running.clone());
        registry.register("requests_failed", "Requests that were not answered whole, by kind", self.failed.clone());
    }

    /// Connections that are open now.
    #[must_use]
    pub fn active_connections(&self) -> i64 {
        self.active.get()
    }

    /// Requests that are being served now.
    #[must_use]
    pub fn running_requests(&self) -> i64 {
        self.requests_running.get()
    }

    /// Connections refused, of one kind.
    #[must_use]
    pub fn refused(&self, kind: &'static str) -> u64 {
        value(&self.refused, kind)
    }

    /// Connections ended by this side, of one kind.
    #[must_use]
    pub fn ended(&self, kind: &'static str) -> u64 {
        value(&self.ended, kind)
    }

    /// Requests that were not answered whole, of one kind.
    #[must_use]
    pub fn failed(&self, kind: &'static str) -> u64 {
        value(&self.failed, kind)
    }

    pub(super) fn count_accepted(&self) {
        self.accepted.inc();
    }

    pub(super) fn count_refused(&self, kind: &'static str) {
        self.refused.get_or_create(&KindLabel { kind }).inc();
    }

    pub(super) fn count_ended(&self, kind: &'static str) {
        self.ended.get_or_create(&KindLabel { kind }).inc();
    }

    pub(super) fn count_failed(&self, kind: &'static str) {
        self.failed.get_or_create(&KindLabel { kind }).inc();
    }
}

fn value(family: &Family<KindLabel, Counter>, kind: &'static str) -> u64 {
    family.get(&KindLabel { kind }).map_or(0, |counter| counter.get())
}

/// Counts something from now until it is dropped.
pub(super) struct Counted(Gauge);

impl Counted {
    pub(super) fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
