//! What is counted of each tenant.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;
use telemetry_proto::{Reason, Signal, Verdict};

/// Upper bounds of the histogram of waits, in seconds. A wait ends at 10 s by default.
const WAIT_BUCKETS: [f64; 9] = [0.0001, 0.001, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0];

/// Every way in which a request can end: acknowledged, known, or refused for a reason.
const OUTCOMES: usize = 2 + Reason::ALL.len();
const DELIVERED: usize = 0;
const DUPLICATE: usize = 1;

/// The counters of one tenant. They have a fixed size, and live as long as the tenant is configured.
#[derive(Debug)]
pub(crate) struct Meter {
    of_signal: [SignalMeter; 3],
    waits: Histogram,
}

#[derive(Debug)]
struct SignalMeter {
    outcomes: [AtomicU64; OUTCOMES],
    received_bytes: AtomicU64,
    forwarded_bytes: AtomicU64,
}

impl Default for SignalMeter {
    fn default() -> Self {
        Self {
            outcomes: [const { AtomicU64::new(0) }; OUTCOMES],
            received_bytes: AtomicU64::default(),
            forwarded_bytes: AtomicU64::default(),
        }
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self { of_signal: Default::default(), waits: Histogram::new(WAIT_BUCKETS) }
    }
}

impl Meter {
    /// A request ended with this verdict, or was refused for this reason.
    pub(crate) fn ended(&self, signal: Signal, outcome: Result<Verdict, Reason>) {
        let index = match outcome {
            Ok(Verdict::Duplicate) => DUPLICATE,
            Ok(_) => DELIVERED,
            Err(reason) => 2 + reason as usize,
        };
        self.of_signal[signal as usize].outcomes[index].fetch_add(1, Ordering::Relaxed);
    }

    /// A body was received whole.
    pub(crate) fn received(&self, signal: Signal, bytes: u64) {
        self.of_signal[signal as usize].received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A store acknowledged a body.
    pub(crate) fn forwarded(&self, signal: Signal, bytes: u64) {
        self.of_signal[signal as usize].forwarded_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A request waited so long for a place at the stores, whether it got one or not.
    pub(crate) fn waited(&self, time: Duration) {
        self.waits.observe(time.as_secs_f64());
    }

    pub(super) const fn waits(&self) -> &Histogram {
        &self.waits
    }

    pub(super) fn received_bytes(&self, signal: Signal) -> u64 {
        self.of_signal[signal as usize].received_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn forwarded_bytes(&self, signal: Signal) -> u64 {
        self.of_signal[signal as usize].forwarded_bytes.load(Ordering::Relaxed)
    }

    /// How often each outcome was: those that were at least once, and deliveries from the beginning.
    pub(crate) fn outcomes(&self, signal: Signal) -> impl Iterator<Item = (Verdict, Option<Reason>, u64)> {
        let counts = self.of_signal[signal as usize].outcomes.iter().map(|count| count.load(Ordering::Relaxed));
        counts.enumerate().filter(|(index, count)| *count > 0 || *index == DELIVERED).map(|(index, count)| {
            let (verdict, reason) = outcome(index);
            (verdict, reason, count)
        })
    }
}

fn outcome(index: usize) -> (Verdict, Option<Reason>) {
    match index.checked_sub(2).and_then(|index| Reason::ALL.get(index)) {
        Some(reason) => (reason.verdict(), Some(*reason)),
        None if index == DUPLICATE => (Verdict::Duplicate, None),
        None => (Verdict::Delivered, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_counter_of_its_own() {
        let meter = Meter::default();
        for (index, reason) in Reason::ALL.iter().enumerate() {
            meter.ended(Signal::Logs, Err(*reason));
            assert_eq!(meter.of_signal[1].outcomes[2 + index].load(Ordering::Relaxed), 1, "{reason}");
            assert_eq!(outcome(2 + index), (reason.verdict(), Some(*reason)));
        }
        meter.ended(Signal::Logs, Ok(Verdict::Duplicate));
        meter.ended(Signal::Logs, Ok(Verdict::Delivered));
        assert!(meter.of_signal[1].outcomes.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }
}
