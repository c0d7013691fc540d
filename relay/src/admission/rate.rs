//! Rates with a burst, that can be drawn on in advance.
//!
//! The generic cell rate algorithm (ITU-T I.371 annex A): one time per bucket, from which both the answer and the wait
//! follow. A ready limiter such as `governor` can neither look without taking nor take in advance, and both are needed: a
//! request is admitted by four buckets or charged to none, and one that is refused gets its share booked, so that it is there
//! when the request comes back.

use std::num::NonZeroU64;
use std::time::Duration;

use tokio::time::Instant;

/// However little a rate gives, nothing is charged further ahead than this.
const MAX_DEBT: Duration = Duration::from_secs(3_600);

/// A rate, in requests or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// In the long run, a second.
    pub per_second: NonZeroU64,
    /// At once, after a rest.
    pub burst: NonZeroU64,
}

impl Rate {
    /// The time in which the rate gives `amount`.
    fn time_for(self, amount: u64) -> Duration {
        let nanos = u128::from(amount) * 1_000_000_000 / u128::from(self.per_second.get());
        u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
    }
}

/// The rates of one tenant or one runner. What is `None` is not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rates {
    /// Requests.
    pub requests: Option<Rate>,
    /// Bytes of bodies, as received.
    pub bytes: Option<Rate>,
}

impl Rates {
    pub(super) const fn are_unlimited(&self) -> bool {
        self.requests.is_none() && self.bytes.is_none()
    }
}

/// How much of a rate is used up: the time at which the bucket will be full again. A time in the past says nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    full_at: Option<Instant>,
}

impl Bucket {
    /// How long until there is room for `amount`. What is larger than the burst needs a full bucket.
    fn wait(self, rate: Option<Rate>, amount: u64, now: Instant) -> Duration {
        let Some(rate) = rate else { return Duration::ZERO };
        let behind = self.full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let room = rate.time_for(rate.burst.get().saturating_sub(amount));
        behind.saturating_sub(room)
    }

    fn charge(&mut self, rate: Option<Rate>, amount: u64, now: Instant) {
        let Some(rate) = rate else { return };
        let behind = self.full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        self.full_at = Some(now + behind.saturating_add(rate.time_for(amount)).min(MAX_DEBT));
    }

    fn is_full(self, now: Instant) -> bool {
        self.full_at.is_none_or(|at| at <= now)
    }
}

/// What a tenant or a runner has used of its rates.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    requests: Bucket,
    bytes: Bucket,
}

impl Usage {
    /// How long until there is room for a request of so many bytes.
    pub(super) fn wait(&self, rates: &Rates, bytes: u64, now: Instant) -> Duration {
        self.requests.wait(rates.requests, 1, now).max(self.bytes.wait(rates.bytes, bytes, now))
    }

    /// Charges a request, whether there is room or not.
    pub(super) fn charge(&mut self, rates: &Rates, bytes: u64, now: Instant) {
        self.requests.charge(rates.requests, 1, now);
        self.charge_bytes(rates, bytes, now);
    }

    /// Charges bytes that were not known when the request was.
    pub(super) fn charge_bytes(&mut self, rates: &Rates, bytes: u64, now: Instant) {
        self.bytes.charge(rates.bytes, bytes, now);
    }

    /// Whether nothing would be lost if it were forgotten.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.requests.is_full(now) && self.bytes.is_full(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: u64, burst: u64) -> Option<Rate> {
        Some(Rate { per_second: NonZeroU64::new(per_second).unwrap(), burst: NonZeroU64::new(burst).unwrap() })
    }

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let mut now = Instant::now();
        let rates = Rates { requests: rate(10, 5), bytes: None };
        let mut usage = Usage::default();
        for _ in 0..5 {
            assert_eq!(usage.wait(&rates, 0, now), Duration::ZERO);
            usage.charge(&rates, 0, now);
        }
        assert_eq!(usage.wait(&rates, 0, now).as_millis(), 100);
        now += Duration::from_millis(100);
        assert_eq!(usage.wait(&rates, 0, now), Duration::ZERO);
        usage.charge(&rates, 0, now);
        assert!(!usage.is_idle(now) && usage.is_idle(now + Duration::from_millis(500)));
    }

    #[test]
    fn what_is_larger_than_the_burst_needs_a_full_bucket_and_is_charged_whole() {
        let now = Instant::now();
        let rates = Rates { requests: None, bytes: rate(100, 200) };
        let mut usage = Usage::default();
        usage.charge(&rates, 1, now);
        assert_eq!(usage.wait(&rates, 1_000, now).as_millis(), 10);
        let now = now + Duration::from_millis(10);
        assert_eq!(usage.wait(&rates, 1_000, now), Duration::ZERO);
        usage.charge(&rates, 1_000, now);
        assert_eq!(usage.wait(&rates, 200, now).as_secs(), 10);
        assert_eq!(usage.wait(&rates, 100, now).as_secs(), 9);
    }

    #[test]
    fn extremes_neither_panic_nor_lock_out_for_ever() {
        let now = Instant::now();
        let rates = Rates { requests: rate(u64::MAX, u64::MAX), bytes: rate(1, 1) };
        let mut usage = Usage::default();
        for _ in 0..3 {
            usage.charge(&rates, u64::MAX, now);
        }
        assert_eq!(usage.wait(&rates, u64::MAX, now), MAX_DEBT);
    }
}
