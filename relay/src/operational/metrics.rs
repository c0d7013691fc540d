//! What the operational stream counts.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::DropReason;

/// What became of a chunk at one sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SinkOutcome {
    /// `taken`: the sink took it.
    Taken,
    /// `refused`: the sink refused it.
    Refused,
    /// `timed-out`: the sink took too long over it.
    TimedOut,
    /// `panicked`: the sink panicked.
    Panicked,
    /// `queue-full`: too much waited for the sink, so it was dropped.
    QueueFull,
}

impl SinkOutcome {
    /// The stable code.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Refused => "refused",
            Self::TimedOut => "timed-out",
            Self::Panicked => "panicked",
            Self::QueueFull => "queue-full",
        }
    }
}

/// Counters of points: those that went on, those that were dropped and why, and what each sink made of them. Cheap to
/// clone; the label sets are bounded by the reasons and by the names that sinks are attached under.
#[derive(Debug, Clone, Default)]
pub struct OperationalMetrics {
    accepted: Counter,
    dropped: Family<DropLabels, Counter>,
    sinks: Family<SinkLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SinkLabels {
    sink: Arc<str>,
    outcome: &'static str,
}

impl OperationalMetrics {
    /// Registers everything under `operational_`, below the prefix that `registry` has.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("operational");
        registry.register(
            "points",
            "Points of the operational stream that went on to the sinks",
            self.accepted.clone(),
        );
        registry.register(
            "points_dropped",
            "Points of the operational stream that did not go on, by reason",
            self.dropped.clone(),
        );
        registry.register(
            "sink_points",
            "Points of the operational stream by sink and what became of them there",
            self.sinks.clone(),
        );
    }

    /// Points that went on to the sinks.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted.get()
    }

    /// Points that were dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped.get(&DropLabels { reason: reason.as_str() }).map_or(0, |count| count.get())
    }

    /// Points of which this became at the sinks attached as `sink`.
    #[must_use]
    pub fn at_sink(&self, sink: &str, outcome: SinkOutcome) -> u64 {
        let labels = SinkLabels { sink: sink.into(), outcome: outcome.as_str() };
        self.sinks.get(&labels).map_or(0, |count| count.get())
    }

    pub(super) fn accept(&self, points: u64) {
        self.accepted.inc_by(points);
    }

    pub(super) fn drop(&self, reason: DropReason, points: u64) {
        if points > 0 {
            self.dropped.get_or_create(&DropLabels { reason: reason.as_str() }).inc_by(points);
        }
    }

    pub(super) fn end_at_sink(&self, sink: &Arc<str>, outcome: SinkOutcome, points: usize) {
        let labels = SinkLabels { sink: Arc::clone(sink), outcome: outcome.as_str() };
        self.sinks.get_or_create(&labels).inc_by(points as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_stable() {
        let metrics = OperationalMetrics::default();
        metrics.accept(3);
        metrics.drop(DropReason::InFuture, 2);
        metrics.drop(DropReason::Nan, 0);
        metrics.end_at_sink(&"store".into(), SinkOutcome::QueueFull, 4);
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "operational_points_total 3",
            "operational_points_dropped_total{reason=\"in-future\"} 2",
            "operational_sink_points_total{sink=\"store\",outcome=\"queue-full\"} 4",
        ] {
            assert!(text.lines().any(|written| written == line), "{line}\n{text}");
        }
        assert!(!text.contains("\"nan\""), "{text}");
    }
}
