//! Waiting between attempts.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use parking_lot::Mutex;

/// The longest `Retry-After` that is honoured. Whoever asks for more is asked again after this.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(5 * 60);

/// The randomness that spreads attempts of many runners over time. It guards nothing: tests seed it.
#[derive(Debug)]
pub struct Jitter(Mutex<fastrand::Rng>);

impl Jitter {
    /// Differs from process to process.
    #[must_use]
    pub fn new() -> Self {
        Self(Mutex::new(fastrand::Rng::new()))
    }

    /// The same sequence for the same seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(Mutex::new(fastrand::Rng::with_seed(seed)))
    }

    /// A duration from `shortest` up to `longest`.
    pub(crate) fn between(&self, shortest: Duration, longest: Duration) -> Duration {
        let share = self.0.lock().f64();
        shortest + longest.saturating_sub(shortest).mul_f64(share)
    }

    /// A share from 0 up to 1.
    pub(crate) fn share(&self) -> f64 {
        self.0.lock().f64()
    }

    /// Tells one run of a client from another.
    pub(crate) fn run(&self) -> u64 {
        self.0.lock().u64(..)
    }

    /// The random part of a batch ID.
    pub(crate) fn bits(&self) -> u128 {
        self.0.lock().u128(..)
    }
}

impl Default for Jitter {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits that double from attempt to attempt, each drawn from the upper part of its range. None is shorter than the
/// floor nor longer than the ceiling, and even at the ceiling two senders part.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    floor: Duration,
    ceiling: Duration,
    doublings: u32,
    jitter: Arc<Jitter>,
}

impl Backoff {
    pub(crate) const fn new(floor: Duration, ceiling: Duration, jitter: Arc<Jitter>) -> Self {
        Self { floor, ceiling, doublings: 0, jitter }
    }

    /// How long to wait before the next attempt.
    pub(crate) fn next(&mut self) -> Duration {
        let doubled = self.floor.saturating_mul(1_u32 << self.doublings.min(30));
        self.doublings = self.doublings.saturating_add(1);
        let shortest = doubled.min(self.ceiling.mul_f64(2.0 / 3.0)).max(self.floor.min(self.ceiling));
        self.jitter.between(shortest, shortest.mul_f64(1.5).min(self.ceiling))
    }

    /// Begins again at the floor.
    pub(crate) const fn reset(&mut self) {
        self.doublings = 0;
    }
}

/// Reads `Retry-After` in seconds (RFC 9110 section 10.2.3), at most [`MAX_RETRY_AFTER`]. A date, zero, or several
/// values count as none: the backoff decides then.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let mut values = headers.get_all(RETRY_AFTER).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let text = value.to_str().ok()?.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // More digits than fit mean "very long".
    let seconds = text.parse::<u64>().unwrap_or(u64::MAX);
    (seconds > 0).then(|| Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_within_their_bounds_and_keep_parting_at_the_ceiling() {
        let (floor, ceiling) = (Duration::from_secs(1), Duration::from_secs(60));
        let mut backoff = Backoff::new(floor, ceiling, Arc::new(Jitter::seeded(7)));
        for doublings in 0..100_u32 {
            let wait = backoff.next();
            let shortest = Duration::from_secs(1 << doublings.min(6)).min(Duration::from_secs(40));
            assert!(wait >= shortest && wait <= ceiling.min(shortest.mul_f64(1.5)), "{doublings}: {wait:?}");
        }
        let at_the_ceiling: Vec<Duration> = (0..3).map(|_| backoff.next()).collect();
        assert!(at_the_ceiling[0] != at_the_ceiling[1] && at_the_ceiling[1] != at_the_ceiling[2]);
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(1_500));
    }

    #[test]
    fn the_same_seed_draws_the_same_waits() {
        let draw = || {
            let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60), Jitter::seeded(3).into());
            (0..5).map(|_| backoff.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(), draw());
    }

    #[test]
    fn retry_after_is_whole_seconds_and_bounded() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(RETRY_AFTER, value.parse().unwrap());
            }
            retry_after(&headers)
        };
        assert_eq!(read(&["7"]), Some(Duration::from_secs(7)));
        assert_eq!(read(&["99999999999999999999999"]), Some(MAX_RETRY_AFTER));
        for none in [&[][..], &["0"], &["-1"], &["1.5"], &["Fri, 31 Dec 1999 23:59:59 GMT"], &["1", "2"], &[""]] {
            assert_eq!(read(none), None, "{none:?}");
        }
    }
}
