//! What is recorded. Decided once, at the entry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "tracing-layer")]
use parking_lot::Mutex;
use telemetry_proto::Signal;
use telemetry_proto::policy::{Policy, TracesPolicy};
use tokio::sync::watch;
#[cfg(feature = "tracing-layer")]
use tracing::dispatcher::WeakDispatch;

use super::id::{TraceId, halves};

/// What kind of work begins at an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Entry {
    /// A control request: recorded always.
    Control,
    /// A request of the data path: recorded for the coordinator's share of trace IDs.
    DataPath,
    /// Work that nobody asked for: never recorded.
    #[default]
    Background,
}

/// Whether a data-path trace is recorded: for a share `ratio` (0 to 1) of all trace IDs, and the same IDs in every
/// process. The rule is that of OpenTelemetry's `TraceIdRatioBased` as its SDKs have it: the last 8 bytes decide.
#[must_use]
pub fn is_sampled(trace_id: TraceId, ratio: f64) -> bool {
    is_below(trace_id, bound(ratio))
}

/// What the policy says of spans.
#[derive(Debug)]
pub(crate) struct Switch {
    /// Read on every request: the bound of what is sampled, or [`Switch::OFF`].
    bound: AtomicU64,
    /// The subscriber of `tracing` that has our layer.
    #[cfg(feature = "tracing-layer")]
    subscriber: Mutex<Option<WeakDispatch>>,
}

impl Switch {
    /// No bound has this value.
    const OFF: u64 = u64::MAX;

    pub(crate) const fn off() -> Self {
        Self {
            bound: AtomicU64::new(Self::OFF),
            #[cfg(feature = "tracing-layer")]
            subscriber: Mutex::new(None),
        }
    }

    pub(crate) fn set(&self, policy: Option<TracesPolicy>) {
        let bound = policy.map_or(Self::OFF, |policy| bound(policy.sample_ratio));
        let before = self.bound.swap(bound, Ordering::Relaxed);
        #[cfg(feature = "tracing-layer")]
        if (before == Self::OFF) != (bound == Self::OFF) {
            self.ask_layer_again();
        }
        #[cfg(not(feature = "tracing-layer"))]
        let _ = before;
    }

    #[cfg(feature = "tracing-layer")]
    pub(super) fn set_subscriber(&self, subscriber: &tracing::Dispatch) {
        *self.subscriber.lock() = Some(subscriber.downgrade());
    }

    /// Whether anyone wants its spans is remembered beside each `span!`. The answer of our layer is another one now.
    #[cfg(feature = "tracing-layer")]
    fn ask_layer_again(&self) {
        let subscriber = self.subscriber.lock().as_ref().and_then(WeakDispatch::upgrade);
        if let Some(subscriber) = subscriber {
            // A subscriber that is the only one is asked as the default of the thread that asks.
            tracing::dispatcher::with_default(&subscriber, tracing::callsite::rebuild_interest_cache);
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.bound.load(Ordering::Relaxed) != Self::OFF
    }

    /// Whether this trace is recorded. `None`: traces are off.
    pub(super) fn decide(&self, entry: Entry, trace_id: impl FnOnce() -> TraceId) -> Option<(TraceId, bool)> {
        let bound = self.bound.load(Ordering::Relaxed);
        if bound == Self::OFF {
            return None;
        }
        let trace_id = trace_id();
        let sampled = match entry {
            Entry::Control => true,
            Entry::DataPath => is_below(trace_id, bound),
            Entry::Background => false,
        };
        Some((trace_id, sampled))
    }
}

/// Keeps the switch as the policy says, until there is none any more.
pub(crate) async fn follow(mut policy: watch::Receiver<Option<Arc<Policy>>>, switch: Arc<Switch>) {
    loop {
        let wanted = policy.borrow_and_update().as_ref().filter(|p| p.takes(Signal::Traces)).and_then(|p| p.traces);
        switch.set(wanted);
        if policy.changed().await.is_err() {
            return;
        }
    }
}

/// The first of the 63-bit numbers that are not sampled. What is no share is taken for the nearest; NaN for none.
fn bound(ratio: f64) -> u64 {
    const WHOLE: u64 = 1 << 63;
    if ratio >= 1.0 {
        return WHOLE;
    }
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "2^63 is exact, the product is below it, and what is below 0 becomes 0"
    )]
    let bound = (ratio * WHOLE as f64) as u64;
    bound
}

fn is_below(trace_id: TraceId, bound: u64) -> bool {
    let [_, low] = halves(u128::from_be_bytes(trace_id.to_bytes()));
    u64::from_be_bytes(low) >> 1 < bound
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(low: u64) -> TraceId {
        TraceId::from_bytes(((1 << 64) | u128::from(low)).to_be_bytes()).unwrap()
    }

    #[test]
    fn the_share_is_met_and_a_larger_share_holds_all_of_a_smaller_one() {
        let ids: Vec<TraceId> = (0..100_000).map(|_| TraceId::random()).collect();
        let sampled = |ratio: f64| ids.iter().filter(|id| is_sampled(**id, ratio)).count();
        assert_eq!((sampled(0.0), sampled(1.0)), (0, 100_000));
        for (ratio, expected) in [(0.01, 1_000), (0.1, 10_000), (0.5, 50_000)] {
            assert!(sampled(ratio).abs_diff(expected) < expected / 5, "{ratio}: {}", sampled(ratio));
        }
        assert!(ids.iter().all(|id| !is_sampled(*id, 0.01) || is_sampled(*id, 0.1)));
    }

    // opentelemetry-go TraceIDRatioBased, opentelemetry-rust TraceIdRatioBased.
    #[test]
    fn the_last_eight_bytes_decide_as_in_the_sdks_of_opentelemetry() {
        let half = 1 << 62;
        assert!(is_sampled(id((half << 1) - 1), 0.5) && !is_sampled(id(half << 1), 0.5));
        assert!(is_sampled(id(0), 1e-18) && !is_sampled(id(u64::MAX), 0.999_999));
        assert!(is_sampled(id(u64::MAX), 1.0));
    }

    #[test]
    fn what_is_no_share_is_taken_for_the_nearest() {
        for (ratio, expected) in [(-1.0, false), (f64::NAN, false), (f64::NEG_INFINITY, false), (7.0, true)] {
            assert_eq!(is_sampled(id(0), ratio), expected, "{ratio}");
        }
        assert!(is_sampled(id(u64::MAX), f64::INFINITY));
    }

    #[test]
    fn the_kind_of_an_entry_decides_and_nothing_does_while_traces_are_off() {
        let switch = Switch::off();
        let decide = |entry| switch.decide(entry, || id(0)).map(|(_, sampled)| sampled);
        assert_eq!(decide(Entry::Control), None);
        switch.set(Some(TracesPolicy { sample_ratio: 0.0 }));
        assert_eq!(
            [Entry::Control, Entry::DataPath, Entry::Background].map(decide),
            [Some(true), Some(false), Some(false)]
        );
        switch.set(Some(TracesPolicy { sample_ratio: 1.0 }));
        assert_eq!(
            [Entry::Control, Entry::DataPath, Entry::Background].map(decide),
            [Some(true), Some(true), Some(false)]
        );
        switch.set(None);
        assert_eq!(decide(Entry::Control), None);
    }
}
