//! A runner's rates, and what is booked for it.

use std::collections::VecDeque;
use std::time::Duration;

use telemetry_proto::limits::MAX_BODY_BYTES;
use tokio::time::Instant;

use super::Caller;
use super::rate::{Charged, Rates, Usage};
use crate::once::BatchId;

/// How many refused requests of one runner have their share booked.
const MAX_BOOKINGS: usize = 32;

/// The bytes for which one runner has shares booked, where there are several: one body of the largest size. They are only
/// announced, and a tenant's other runners wait for them.
const MAX_BOOKED_BYTES: u64 = MAX_BODY_BYTES;

/// A refused request whose time is further away than this has nothing booked yet.
const HORIZON: Duration = Duration::from_secs(300);

/// How long a booking is kept for someone who is late, beside as much time again as they were told to wait.
const GRACE: Duration = Duration::from_secs(30);

/// What one runner has used of its rates, and what it was promised.
///
/// A refused request is charged in advance, to its runner and to its tenant, and told when its share will have come up; when it
/// comes back then it is let in without being charged again. Otherwise everyone who was refused in one second would come
/// back in the same later one, and all but the first be refused again. The bytes of a share that nobody comes for are given
/// back when it is void.
#[derive(Debug, Default)]
pub(super) struct RunnerUsage {
    usage: Usage,
    booked: VecDeque<Booking>,
}

#[derive(Debug)]
struct Booking {
    batch: Option<BatchId>,
    charged: Charged,
    due: Instant,
    expires: Instant,
}

/// The rates that a request is measured by, its tenant's and its runner's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measures<'a> {
    pub(super) tenant: &'a Rates,
    pub(super) runner: &'a Rates,
}

impl RunnerUsage {
    /// Lets a request of so many bytes in, or says when to come back. What it was charged for is to be
    /// [settled](Self::settle), or [kept](Self::keep).
    pub(super) fn admit(
        &mut self,
        tenant: &mut Usage,
        measures: Measures<'_>,
        caller: &Caller,
        bytes: u64,
        now: Instant,
    ) -> Result<Charged, Duration> {
        self.forget_void(tenant, measures, now);
        if let Some(booked) = self.redeem(caller, now) {
            let more = bytes.saturating_sub(booked.announced);
            tenant.announce(measures.tenant, more, now);
            self.usage.announce(measures.runner, more, now);
            return Ok(Charged { announced: booked.announced + more, ..booked });
        }
        let charged = Charged { announced: bytes, arrived: 0 };
        let wait = tenant.wait(measures.tenant, bytes, now).max(self.usage.wait(measures.runner, bytes, now));
        if wait == Duration::ZERO {
            self.charge(tenant, measures, bytes, now);
            return Ok(charged);
        }
        if wait <= HORIZON && self.may_book(bytes) {
            self.charge(tenant, measures, bytes, now);
            self.book(caller, charged, wait, now);
        }
        Err(wait.min(HORIZON))
    }

    /// Keeps the share of a request that was let in and then refused for want of something else, until it comes back.
    pub(super) fn keep(
        &mut self,
        tenant: &mut Usage,
        measures: Measures<'_>,
        caller: &Caller,
        charged: Charged,
        after: Duration,
        now: Instant,
    ) {
        if self.may_book(charged.announced) {
            self.book(caller, charged, after, now);
        } else {
            self.settle(tenant, measures, charged, 0, now);
        }
    }

    /// So many bytes of a request have arrived, and no more will: the rest is given back.
    pub(super) fn settle(
        &mut self,
        tenant: &mut Usage,
        measures: Measures<'_>,
        charged: Charged,
        arrived: u64,
        now: Instant,
    ) {
        tenant.settle(measures.tenant, charged, arrived, now);
        self.usage.settle(measures.runner, charged, arrived, now);
    }

    /// Whether nothing would be lost if it were forgotten.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.booked.iter().all(|booking| booking.expires <= now) && self.usage.is_idle(now)
    }

    fn may_book(&self, bytes: u64) -> bool {
        let sum = self.booked.iter().fold(bytes, |sum, booking| sum.saturating_add(booking.charged.announced));
        self.booked.is_empty() || self.booked.len() < MAX_BOOKINGS && sum <= MAX_BOOKED_BYTES
    }

    fn book(&mut self, caller: &Caller, charged: Charged, wait: Duration, now: Instant) {
        let (due, expires) = (now + wait, now + 2 * wait + GRACE);
        self.booked.push_back(Booking { batch: caller.batch, charged, due, expires });
    }

    fn charge(&mut self, tenant: &mut Usage, measures: Measures<'_>, bytes: u64, now: Instant) {
        tenant.charge(measures.tenant, bytes, now);
        self.usage.charge(measures.runner, bytes, now);
    }

    /// Takes the first booking for this caller that is due: so much is paid for.
    fn redeem(&mut self, caller: &Caller, now: Instant) -> Option<Charged> {
        let index = self.booked.iter().position(|booking| booking.due <= now && booking.batch == caller.batch)?;
        self.booked.remove(index).map(|booking| booking.charged)
    }

    fn forget_void(&mut self, tenant: &mut Usage, measures: Measures<'_>, now: Instant) {
        let Self { usage, booked } = self;
        booked.retain(|booking| {
            let is_void = booking.expires <= now;
            if is_void {
                tenant.settle(measures.tenant, booking.charged, 0, now);
                usage.settle(measures.runner, booking.charged, 0, now);
            }
            !is_void
        });
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use telemetry_proto::RunnerId;

    use super::*;
    use crate::admission::Rate;

    const SECOND: Duration = Duration::from_secs(1);
    const NONE: Rates = Rates { requests: None, bytes: None };
    const OF_0: Charged = Charged { announced: 0, arrived: 0 };

    fn of(announced: u64) -> Result<Charged, Duration> {
        Ok(Charged { announced, arrived: 0 })
    }

    fn rate(per_second: u64, burst: u64) -> Rate {
        Rate { per_second: NonZeroU64::new(per_second).unwrap(), burst: NonZeroU64::new(burst).unwrap() }
    }

    fn caller(batch: u128) -> Caller {
        Caller { author: RunnerId::new("r7").unwrap().into(), batch: Some(BatchId::from_u128(batch)) }
    }

    #[test]
    fn a_refused_request_finds_its_share_when_it_comes_back() {
        let now = Instant::now();
        let rates = Rates { requests: Some(rate(1, 1)), bytes: None };
        let measures = Measures { tenant: &rates, runner: &NONE };
        let (mut tenant, mut a, mut b) = (Usage::default(), RunnerUsage::default(), RunnerUsage::default());
        assert_eq!(a.admit(&mut tenant, measures, &caller(1), 0, now), Ok(OF_0));
        assert_eq!(a.admit(&mut tenant, measures, &caller(2), 0, now), Err(SECOND));
        assert_eq!(b.admit(&mut tenant, measures, &caller(3), 0, now), Err(2 * SECOND), "told apart in time");
        // Someone new does not get ahead of those who were promised.
        assert_eq!(b.admit(&mut tenant, measures, &caller(4), 0, now + SECOND), Err(2 * SECOND));
        assert_eq!(a.admit(&mut tenant, measures, &caller(2), 0, now + SECOND), Ok(OF_0));
        assert_eq!(b.admit(&mut tenant, measures, &caller(3), 0, now + 2 * SECOND), Ok(OF_0));
        assert_eq!(b.admit(&mut tenant, measures, &caller(4), 0, now + 3 * SECOND), Ok(OF_0));
        assert!(a.is_idle(now + 4 * SECOND) && b.is_idle(now + 4 * SECOND));
    }

    #[test]
    fn a_runner_over_its_own_rate_is_not_the_tenants_loss_beyond_what_it_was_promised() {
        let now = Instant::now();
        let (of_tenant, of_runner) =
            (Rates { requests: Some(rate(10, 100)), bytes: None }, Rates { requests: Some(rate(1, 1)), bytes: None });
        let measures = Measures { tenant: &of_tenant, runner: &of_runner };
        let (mut tenant, mut flooder, mut other) = (Usage::default(), RunnerUsage::default(), RunnerUsage::default());
        for i in 0..10_000 {
            let _ = flooder.admit(&mut tenant, measures, &caller(i), 0, now);
        }
        assert_eq!(flooder.booked.len(), MAX_BOOKINGS);
        assert_eq!(other.admit(&mut tenant, measures, &caller(0), 0, now), Ok(OF_0));
    }

    #[test]
    fn who_is_refused_for_something_else_does_not_pay_twice() {
        let now = Instant::now();
        let rates = Rates { requests: Some(rate(1, 1)), bytes: None };
        let measures = Measures { tenant: &rates, runner: &NONE };
        let (mut tenant, mut runner) = (Usage::default(), RunnerUsage::default());
        assert_eq!(runner.admit(&mut tenant, measures, &caller(1), 0, now), Ok(OF_0));
        runner.keep(&mut tenant, measures, &caller(1), OF_0, SECOND / 2, now);
        assert_eq!(runner.admit(&mut tenant, measures, &caller(1), 0, now + SECOND / 2), Ok(OF_0));
        assert_eq!(runner.admit(&mut tenant, measures, &caller(1), 0, now + SECOND / 2), Err(SECOND / 2));
    }

    #[test]
    fn a_booking_pays_for_the_bytes_that_it_was_made_for() {
        let now = Instant::now();
        let rates = Rates { requests: None, bytes: Some(rate(100, 100)) };
        let measures = Measures { tenant: &NONE, runner: &rates };
        let (mut tenant, mut runner) = (Usage::default(), RunnerUsage::default());
        assert_eq!(runner.admit(&mut tenant, measures, &caller(1), 100, now), of(100));
        assert_eq!(runner.admit(&mut tenant, measures, &caller(2), 100, now), Err(SECOND));
        assert_eq!(runner.admit(&mut tenant, measures, &caller(2), 300, now + SECOND), of(300));
        assert_eq!(runner.admit(&mut tenant, measures, &caller(3), 100, now + SECOND), Err(3 * SECOND));
    }

    #[test]
    fn what_arrived_before_a_refusal_is_not_charged_again_when_it_comes_back() {
        let now = Instant::now();
        let rates = Rates { requests: None, bytes: Some(rate(100, 100)) };
        let measures = Measures { tenant: &rates, runner: &NONE };
        let (mut tenant, mut runner) = (Usage::default(), RunnerUsage::default());
        let charged = runner.admit(&mut tenant, measures, &caller(1), 100, now).unwrap();
        runner.settle(&mut tenant, measures, charged, 100, now);
        // No place at the stores: the body comes a second time.
        let charged = Charged { announced: 100, arrived: 100 };
        runner.keep(&mut tenant, measures, &caller(1), charged, SECOND, now);
        assert_eq!(runner.admit(&mut tenant, measures, &caller(1), 100, now + SECOND), Ok(charged));
        runner.settle(&mut tenant, measures, charged, 100, now + SECOND);
        assert_eq!(runner.admit(&mut tenant, measures, &caller(2), 100, now + SECOND), of(100));
    }

    #[test]
    fn heads_of_large_bodies_drain_nobodys_rate() {
        let now = Instant::now();
        let mib = 1024 * 1024;
        // Ten of the largest bodies at once, and one every 3 s.
        let rates = Rates { requests: None, bytes: Some(rate(10 * mib, 320 * mib)) };
        let measures = Measures { tenant: &rates, runner: &NONE };
        let (mut tenant, mut flooder, mut other) = (Usage::default(), RunnerUsage::default(), RunnerUsage::default());
        for number in 0..10_000 {
            let charged = flooder.admit(&mut tenant, measures, &caller(number), 32 * mib, now);
            if let Ok(charged) = charged {
                flooder.settle(&mut tenant, measures, charged, 0, now);
            }
        }
        assert_eq!(other.admit(&mut tenant, measures, &caller(0), 32 * mib, now), of(32 * mib), "all was given back");
        // The same held open: what is booked on top of it is one body, and is given back when nobody comes for it.
        let held: Vec<_> =
            (0..100).filter_map(|n| flooder.admit(&mut tenant, measures, &caller(n), 32 * mib, now).ok()).collect();
        assert_eq!((held.len(), flooder.booked.len()), (9, 1));
        let later = now + Duration::from_secs(100);
        for charged in held {
            flooder.settle(&mut tenant, measures, charged, 0, now);
        }
        assert_eq!(flooder.admit(&mut tenant, measures, &caller(1_000), 0, later), Ok(OF_0));
        assert!(flooder.booked.is_empty() && tenant.is_idle(later));
    }
}
