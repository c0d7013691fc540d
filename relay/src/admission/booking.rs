//! A runner's rates, and what is booked for it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::Caller;
use super::rate::{Rates, Usage};
use crate::once::BatchId;

/// How many refused requests of one runner have their share booked.
const MAX_BOOKINGS: usize = 32;

/// A refused request whose time is further away than this has nothing booked yet.
const HORIZON: Duration = Duration::from_secs(300);

/// How long a booking is kept for someone who is late, beside as much time again as they were told to wait.
const GRACE: Duration = Duration::from_secs(30);

/// What one runner has used of its rates, and what it was promised.
///
/// A refused request is charged in advance, to its runner and to its tenant, and told when its share will have come up; when it
/// comes back then it is let in without being charged again. Otherwise everyone who was refused in one second would come
/// back in the same later one, and all but the first be refused again. A share that nobody comes for is lost.
#[derive(Debug, Default)]
pub(super) struct RunnerUsage {
    usage: Usage,
    booked: VecDeque<Booking>,
}

#[derive(Debug)]
struct Booking {
    batch: Option<BatchId>,
    bytes: u64,
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
    /// Lets a request of so many bytes in, or says when to come back.
    pub(super) fn admit(
        &mut self,
        tenant: &mut Usage,
        measures: Measures<'_>,
        caller: &Caller,
        bytes: u64,
        now: Instant,
    ) -> Result<(), Duration> {
        if let Some(booked) = self.redeem(caller, now) {
            self.charge_bytes(tenant, measures, bytes.saturating_sub(booked), now);
            return Ok(());
        }
        let wait = tenant.wait(measures.tenant, bytes, now).max(self.usage.wait(measures.runner, bytes, now));
        if wait == Duration::ZERO {
            self.charge(tenant, measures, bytes, now);
            return Ok(());
        }
        if wait <= HORIZON && self.booked.len() < MAX_BOOKINGS {
            self.charge(tenant, measures, bytes, now);
            self.book(caller, bytes, wait, now);
        }
        Err(wait.min(HORIZON))
    }

    /// Keeps the share of a request that was let in and then refused for want of something else, until it comes back.
    pub(super) fn keep(&mut self, caller: &Caller, bytes: u64, after: Duration, now: Instant) {
        if self.booked.len() < MAX_BOOKINGS {
            self.book(caller, bytes, after, now);
        }
    }

    /// Charges bytes that were not known when the request was let in.
    pub(super) fn charge_bytes(&mut self, tenant: &mut Usage, measures: Measures<'_>, bytes: u64, now: Instant) {
        tenant.charge_bytes(measures.tenant, bytes, now);
        self.usage.charge_bytes(measures.runner, bytes, now);
    }

    /// Whether nothing would be lost if it were forgotten.
    pub(super) fn is_idle(&mut self, now: Instant) -> bool {
        self.forget_void(now);
        self.booked.is_empty() && self.usage.is_idle(now)
    }

    fn book(&mut self, caller: &Caller, bytes: u64, wait: Duration, now: Instant) {
        let (due, expires) = (now + wait, now + 2 * wait + GRACE);
        self.booked.push_back(Booking { batch: caller.batch, bytes, due, expires });
    }

    fn charge(&mut self, tenant: &mut Usage, measures: Measures<'_>, bytes: u64, now: Instant) {
        tenant.charge(measures.tenant, bytes, now);
        self.usage.charge(measures.runner, bytes, now);
    }

    /// Takes the first booking for this caller that is due: so many bytes are paid for.
    fn redeem(&mut self, caller: &Caller, now: Instant) -> Option<u64> {
        if self.booked.is_empty() {
            return None;
        }
        self.forget_void(now);
        let index = self.booked.iter().position(|booking| booking.due <= now && booking.batch == caller.batch)?;
        self.booked.remove(index).map(|booking| booking.bytes)
    }

    fn forget_void(&mut self, now: Instant) {
        self.booked.retain(|booking| booking.expires > now);
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
        assert_eq!(a.admit(&mut tenant, measures, &caller(1), 0, now), Ok(()));
        assert_eq!(a.admit(&mut tenant, measures, &caller(2), 0, now), Err(SECOND));
        assert_eq!(b.admit(&mut tenant, measures, &caller(3), 0, now), Err(2 * SECOND), "told apart in time");
        // Someone new does not get ahead of those who were promised.
        assert_eq!(b.admit(&mut tenant, measures, &caller(4), 0, now + SECOND), Err(2 * SECOND));
        assert_eq!(a.admit(&mut tenant, measures, &caller(2), 0, now + SECOND), Ok(()));
        assert_eq!(b.admit(&mut tenant, measures, &caller(3), 0, now + 2 * SECOND), Ok(()));
        assert_eq!(b.admit(&mut tenant, measures, &caller(4), 0, now + 3 * SECOND), Ok(()));
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
        assert_eq!(other.admit(&mut tenant, measures, &caller(0), 0, now), Ok(()));
    }

    #[test]
    fn who_is_refused_for_something_else_does_not_pay_twice() {
        let now = Instant::now();
        let rates = Rates { requests: Some(rate(1, 1)), bytes: None };
        let measures = Measures { tenant: &rates, runner: &NONE };
        let (mut tenant, mut runner) = (Usage::default(), RunnerUsage::default());
        assert_eq!(runner.admit(&mut tenant, measures, &caller(1), 0, now), Ok(()));
        runner.keep(&caller(1), 0, SECOND / 2, now);
        assert_eq!(runner.admit(&mut tenant, measures, &caller(1), 0, now + SECOND / 2), Ok(()));
        assert_eq!(runner.admit(&mut tenant, measures, &caller(1), 0, now + SECOND / 2), Err(SECOND / 2));
    }

    #[test]
    fn a_booking_pays_for_the_bytes_that_it_was_made_for() {
        let now = Instant::now();
        let rates = Rates { requests: None, bytes: Some(rate(100, 100)) };
        let measures = Measures { tenant: &NONE, runner: &rates };
        let (mut tenant, mut runner) = (Usage::default(), RunnerUsage::default());
        assert_eq!(runner.admit(&mut tenant, measures, &caller(1), 100, now), Ok(()));
        assert_eq!(runner.admit(&mut tenant, measures, &caller(2), 100, now), Err(SECOND));
        assert_eq!(runner.admit(&mut tenant, measures, &caller(2), 300, now + SECOND), Ok(()));
        assert_eq!(runner.admit(&mut tenant, measures, &caller(3), 100, now + SECOND), Err(3 * SECOND));
    }
}
