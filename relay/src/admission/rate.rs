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

    /// Takes a charge back, in part or whole.
    fn give_back(&mut self, rate: Option<Rate>, amount: u64) {
        let Some(rate) = rate else { return };
        self.full_at = self.full_at.and_then(|at| at.checked_sub(rate.time_for(amount)));
    }

    fn is_full(self, now: Instant) -> bool {
        self.full_at.is_none_or(|at| at <= now)
    }
}

/// The bytes that one request was charged for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Charged {
    /// Before its body came.
    pub(super) announced: u64,
    /// As they came, here or in an attempt of before.
    pub(super) arrived: u64,
}

/// What a tenant or a runner has used of its rates.
///
/// Bytes have two buckets. What a request announces is charged when it is let in, so that many at once do not exceed the rate;
/// what of it never comes is given back, so that nobody drains a rate with heads alone. What arrives is charged to the other
/// when it has, and never given back: a bucket that filled up meanwhile would otherwise be filled a second time. Whoever asks
/// waits for the later one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    requests: Bucket,
    announced: Bucket,
    arrived: Bucket,
}

impl Usage {
    /// How long until there is room for a request of so many bytes.
    pub(super) fn wait(&self, rates: &Rates, bytes: u64, now: Instant) -> Duration {
        let of_bytes = [self.announced, self.arrived].map(|bucket| bucket.wait(rates.bytes, bytes, now));
        self.requests.wait(rates.requests, 1, now).max(of_bytes[0]).max(of_bytes[1])
    }

    /// Charges a request that announces so many bytes, whether there is room or not.
    pub(super) fn charge(&mut self, rates: &Rates, bytes: u64, now: Instant) {
        self.requests.charge(rates.requests, 1, now);
        self.announce(rates, bytes, now);
    }

    /// Charges bytes that are announced.
    pub(super) fn announce(&mut self, rates: &Rates, bytes: u64, now: Instant) {
        self.announced.charge(rates.bytes, bytes, now);
    }

    /// Of what a request was charged for so many bytes have arrived, and no more will.
    pub(super) fn settle(&mut self, rates: &Rates, charged: Charged, arrived: u64, now: Instant) {
        let used = arrived.max(charged.arrived);
        self.arrived.charge(rates.bytes, used - charged.arrived, now);
        self.announced.charge(rates.bytes, used.saturating_sub(charged.announced), now);
        self.announced.give_back(rates.bytes, charged.announced.saturating_sub(used));
    }

    /// Whether nothing would be lost if it were forgotten.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        [self.requests, self.announced, self.arrived].into_iter().all(|bucket| bucket.is_full(now))
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
    fn what_was_announced_and_never_came_is_given_back() {
        let now = Instant::now();
        let rates = Rates { requests: None, bytes: rate(100, 1_000) };
        let mut usage = Usage::default();
        usage.charge(&rates, 1_000, now);
        assert_eq!(usage.wait(&rates, 1_000, now).as_secs(), 10);
        usage.settle(&rates, Charged { announced: 1_000, arrived: 0 }, 300, now);
        assert_eq!(usage.wait(&rates, 1_000, now).as_secs(), 3, "what came stays charged");
        // More than was announced, as where nothing is.
        usage.settle(&rates, Charged::default(), 200, now);
        assert_eq!(usage.wait(&rates, 1_000, now).as_secs(), 5);
    }

    #[test]
    fn nobody_gains_by_giving_up_what_they_announced() {
        // A sender holds a request open until the rate has made up for it, and gives it up at the same moment as the body
        // of another has arrived.
        let mut now = Instant::now();
        let rates = Rates { requests: None, bytes: rate(100, 1_000) };
        let mut usage = Usage::default();
        let began = now;
        let mut arrived = 0;
        while now < began + Duration::from_secs(1_000) {
            usage.charge(&rates, 1_000, now);
            now += Duration::from_secs(10);
            if usage.wait(&rates, 1_000, now) == Duration::ZERO {
                usage.charge(&rates, 1_000, now);
                usage.settle(&rates, Charged { announced: 1_000, arrived: 0 }, 1_000, now);
                arrived += 1_000;
            }
            usage.settle(&rates, Charged { announced: 1_000, arrived: 0 }, 0, now);
        }
        assert!(arrived <= 1_000 + 100 * 1_000, "{arrived} bytes in 1,000 s at 100 a second");
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
