//! The last quarter of an hour, sampled.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::metrics::RelayTotals;

/// How often the totals are read.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// How far back the history goes.
pub const HISTORY_SPAN: Duration = Duration::from_secs(15 * 60);

/// [`HISTORY_SPAN`] over [`SAMPLE_EVERY`].
const MAX_MOMENTS: usize = 180;

/// What happened between two samples. Rates are per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Moment {
    /// When it ended, in seconds since 1970.
    pub at: u64,
    /// Requests a second.
    pub requests: f64,
    /// Refused requests a second.
    pub refused: f64,
    /// Bytes a second of bodies that a store acknowledged.
    pub bytes: f64,
    /// The mean time that a store took for a batch, in seconds; `null` without any batch.
    pub store_seconds: Option<f64>,
}

#[derive(Debug, Default)]
pub(super) struct History {
    moments: VecDeque<Moment>,
    last: Option<(SystemTime, RelayTotals)>,
}

impl History {
    /// Takes a sample.
    pub(super) fn sample(&mut self, now: SystemTime, totals: RelayTotals) {
        if let Some((before, last)) = self.last.replace((now, totals)) {
            let Ok(elapsed) = now.duration_since(before) else { return };
            if elapsed.is_zero() {
                return;
            }
            if self.moments.len() == MAX_MOMENTS {
                self.moments.pop_front();
            }
            self.moments.push_back(moment(now, elapsed.as_secs_f64(), last, totals));
        }
    }

    /// The moments, the oldest first.
    pub(super) fn moments(&self) -> Vec<Moment> {
        self.moments.iter().copied().collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
fn moment(now: SystemTime, elapsed: f64, last: RelayTotals, totals: RelayTotals) -> Moment {
    let rate = |of: fn(&RelayTotals) -> u64| of(&totals).saturating_sub(of(&last)) as f64 / elapsed;
    let batches = totals.store_requests.saturating_sub(last.store_requests);
    let micros = totals.store_micros.saturating_sub(last.store_micros);
    Moment {
        at: super::status::unix(now),
        requests: rate(|t| t.requests),
        refused: rate(|t| t.refused),
        bytes: rate(|t| t.forwarded_bytes),
        store_seconds: (batches > 0).then(|| micros as f64 / 1e6 / batches as f64),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn rates_are_differences_over_time_and_the_oldest_are_forgotten() {
        let mut history = History::default();
        for second in 0..=2_000_u64 {
            let totals = RelayTotals {
                requests: second * 50,
                forwarded_bytes: second * 500,
                store_requests: second,
                store_micros: second * 2_000,
                ..RelayTotals::default()
            };
            history.sample(UNIX_EPOCH + Duration::from_secs(second * 5), totals);
        }
        let moments = history.moments();
        assert_eq!(moments.len(), MAX_MOMENTS);
        assert_eq!(SAMPLE_EVERY * 180, HISTORY_SPAN);
        let last = moments[MAX_MOMENTS - 1];
        assert_eq!((last.at, last.requests, last.bytes, last.refused), (10_000, 10.0, 100.0, 0.0));
        assert_eq!(last.store_seconds, Some(0.002));
    }
}
