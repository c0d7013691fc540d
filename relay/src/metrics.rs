//! What the relay counts about requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use telemetry_proto::{Reason, Signal, Verdict};

use crate::operational::OperationalMetrics;

use crate::traces::RemovedCounts;

/// Upper bounds of the latency histograms, in seconds.
const LATENCY_BUCKETS: [f64; 14] =
    [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Counters, gauges and histograms of the service. Cheap to clone; every label set is bounded.
#[derive(Debug, Clone)]
pub struct RelayMetrics {
    requests: Family<RequestLabels, Counter>,
    received_bytes: Family<SignalLabel, Counter>,
    forwarded_bytes: Family<SignalLabel, Counter>,
    control_lines_dropped: Counter,
    spans: Counter,
    removed_from_spans: Family<ClassLabel, Counter>,
    running: Gauge,
    own_seconds: Family<SignalLabel, Histogram, fn() -> Histogram>,
    store_seconds: Family<SignalLabel, Histogram, fn() -> Histogram>,
    tokens_minted: Counter,
    certificates_renewed: Counter,
    operational: OperationalMetrics,
    totals: Arc<Totals>,
}

/// Sums over all labels, to be read back: for rates over time.
#[derive(Debug, Default)]
struct Totals {
    requests: AtomicU64,
    refused: AtomicU64,
    forwarded_bytes: AtomicU64,
    store_requests: AtomicU64,
    store_micros: AtomicU64,
}

/// The sums since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RelayTotals {
    /// Requests on all routes.
    pub requests: u64,
    /// Those of them that were refused.
    pub refused: u64,
    /// Bytes of bodies that a store acknowledged.
    pub forwarded_bytes: u64,
    /// Batches that were sent to a store.
    pub store_requests: u64,
    /// The time that the stores took for them, in microseconds.
    pub store_micros: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    verdict: &'static str,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SignalLabel {
    signal: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabel {
    class: &'static str,
}

impl From<Signal> for SignalLabel {
    fn from(signal: Signal) -> Self {
        Self { signal: signal.as_str() }
    }
}

impl RelayMetrics {
    /// Metrics that count from zero and are not registered yet.
    #[must_use]
    pub fn new() -> Self {
        let latency: fn() -> Histogram = || Histogram::new(LATENCY_BUCKETS);
        Self {
            requests: Family::default(),
            received_bytes: Family::default(),
            forwarded_bytes: Family::default(),
            control_lines_dropped: Counter::default(),
            spans: Counter::default(),
            removed_from_spans: Family::default(),
            running: Gauge::default(),
            own_seconds: Family::new_with_constructor(latency),
            store_seconds: Family::new_with_constructor(latency),
            tokens_minted: Counter::default(),
            certificates_renewed: Counter::default(),
            operational: OperationalMetrics::default(),
            totals: Arc::default(),
        }
    }

    /// Registers everything under `telemetry_relay_`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("telemetry_relay");
        registry.register("requests", "Requests by route, verdict and reason", self.requests.clone());
        let unit = Unit::Bytes;
        registry.register_with_unit(
            "received",
            "Bytes of complete bodies, as received",
            unit,
            self.received_bytes.clone(),
        );
        registry.register_with_unit(
            "forwarded",
            "Bytes of bodies that a store acknowledged, as received",
            Unit::Bytes,
            self.forwarded_bytes.clone(),
        );
        registry.register(
            "control_lines_dropped",
            "Lines dropped because they claimed to be the coordinator's own",
            self.control_lines_dropped.clone(),
        );
        registry.register("spans", "Spans in complete bodies", self.spans.clone());
        registry.register(
            "removed_from_spans",
            "What was removed from spans, by the class of its key or position",
            self.removed_from_spans.clone(),
        );
        registry.register("requests_running", "Requests that are being served", self.running.clone());
        registry.register_with_unit(
            "own_time",
            "Time of a write within the relay, waiting for its body and for a permit included",
            Unit::Seconds,
            self.own_seconds.clone(),
        );
        registry.register_with_unit(
            "store_time",
            "Time from sending a batch to a store to its whole answer",
            Unit::Seconds,
            self.store_seconds.clone(),
        );
        registry.register("tokens_minted", "Workload tokens minted", self.tokens_minted.clone());
        let renewed = self.certificates_renewed.clone();
        registry.register("certificates_renewed", "Certificates of runners that were renewed", renewed);
        self.operational.register(registry);
    }

    /// What the operational stream counts.
    #[must_use]
    pub const fn operational(&self) -> &OperationalMetrics {
        &self.operational
    }

    /// Counts a request from now until the guard is dropped.
    pub(crate) fn running(&self) -> Running {
        self.running.inc();
        Running(self.running.clone())
    }

    pub(crate) fn count(&self, route: &'static str, verdict: Verdict, reason: Option<Reason>) {
        let labels = RequestLabels { route, verdict: verdict.as_str(), reason: reason.map_or("", Reason::as_str) };
        self.requests.get_or_create(&labels).inc();
        self.totals.requests.fetch_add(1, Ordering::Relaxed);
        self.totals.refused.fetch_add(reason.is_some().into(), Ordering::Relaxed);
    }

    pub(crate) fn received(&self, signal: Signal, bytes: u64) {
        self.received_bytes.get_or_create(&signal.into()).inc_by(bytes);
    }

    pub(crate) fn forwarded(&self, signal: Signal, bytes: u64) {
        self.forwarded_bytes.get_or_create(&signal.into()).inc_by(bytes);
        self.totals.forwarded_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn dropped_control_lines(&self, lines: u64) {
        self.control_lines_dropped.inc_by(lines);
    }

    pub(crate) fn rewrote(&self, spans: u64, removed: &RemovedCounts) {
        self.spans.inc_by(spans);
        for (class, count) in removed.iter().filter(|(_, count)| *count > 0) {
            self.removed_from_spans.get_or_create(&ClassLabel { class: class.as_str() }).inc_by(count);
        }
    }

    pub(crate) fn minted(&self) {
        self.tokens_minted.inc();
    }

    pub(crate) fn renewed(&self) {
        self.certificates_renewed.inc();
    }

    pub(crate) fn took(&self, signal: Signal, own: Duration, store: Duration) {
        self.own_seconds.get_or_create(&signal.into()).observe(own.as_secs_f64());
        self.store_seconds.get_or_create(&signal.into()).observe(store.as_secs_f64());
        self.totals.store_requests.fetch_add(1, Ordering::Relaxed);
        self.totals.store_micros.fetch_add(u64::try_from(store.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The sums since the start.
    #[must_use]
    pub fn totals(&self) -> RelayTotals {
        let read = |total: &AtomicU64| total.load(Ordering::Relaxed);
        RelayTotals {
            requests: read(&self.totals.requests),
            refused: read(&self.totals.refused),
            forwarded_bytes: read(&self.totals.forwarded_bytes),
            store_requests: read(&self.totals.store_requests),
            store_micros: read(&self.totals.store_micros),
        }
    }

    /// How many requests were refused for `reason`, over all routes. For tests and the status page.
    #[must_use]
    pub fn refused(&self, reason: Reason) -> u64 {
        ["metrics", "logs", "traces", "policy", "token", "certificate", "none"]
            .into_iter()
            .filter_map(|route| {
                let verdict = reason.verdict().as_str();
                self.requests.get(&RequestLabels { route, verdict, reason: reason.as_str() }).map(|c| c.get())
            })
            .sum()
    }
}

impl Default for RelayMetrics {
    fn default() -> Self {
        Self::new()
    }
}

/// A request that is being served.
#[derive(Debug)]
pub(crate) struct Running(Gauge);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}
