//! A request that asks for its share.

use std::sync::Arc;

use telemetry_proto::Reason;
use tokio::time::Instant;

use super::booking::Measures;
use super::line::{Line, Place};
use super::queue::Bounds;
use super::runners::Runner;
use super::{Allowance, Caller};
use crate::gate::Author;
use crate::refusal::Refusal;

/// A request of one runner of a tenant.
#[derive(Debug)]
pub struct Sender<'a> {
    pub(super) allowance: &'a Allowance,
    pub(super) runner: Arc<Runner>,
    pub(super) caller: Caller,
    /// The bytes with which it was let in.
    admitted: Option<u64>,
}

impl<'a> Sender<'a> {
    pub(super) const fn new(allowance: &'a Allowance, runner: Arc<Runner>, caller: Caller) -> Self {
        Self { allowance, runner, caller, admitted: None }
    }

    /// The runner.
    #[must_use]
    pub const fn author(&self) -> &Author {
        &self.caller.author
    }

    /// Lets a request of so many bytes in, if it is within the rates of its tenant and its runner. Where the length is not
    /// known, pass 0 and [`charge`](Self::charge) it later.
    ///
    /// # Errors
    /// `rate-limited`, with the time until there is room. The request finds its share when it comes back then.
    pub fn admit(&mut self, bytes: u64) -> Result<(), Refusal> {
        let Some(measures) = self.measures() else { return Ok(()) };
        let mut runner = self.runner.usage.lock();
        let mut tenant = self.allowance.used.usage.lock();
        runner
            .admit(&mut tenant, measures, &self.caller, bytes, Instant::now())
            .map_err(|after| Refusal::new(Reason::RateLimited).with_retry_after(after))?;
        self.admitted = Some(bytes);
        Ok(())
    }

    /// Charges bytes that were not known when the request was let in.
    pub fn charge(&self, bytes: u64) {
        let Some(measures) = self.measures() else { return };
        let mut runner = self.runner.usage.lock();
        let mut tenant = self.allowance.used.usage.lock();
        runner.charge_bytes(&mut tenant, measures, bytes, Instant::now());
    }

    /// Takes a place at the stores, first come first served. A caller that goes away while it waits gives its place in the
    /// line up at once.
    ///
    /// # Errors
    /// `tenant-busy` when too many wait already, or when the wait was in vain; with the time at which its turn will have
    /// come, which it keeps.
    pub async fn permit(&self) -> Result<Permit, Refusal> {
        let limits = &self.allowance.limits;
        let deadline = Instant::now() + limits.max_wait;
        let of_runner = match limits.runner.max_in_flight {
            None => None,
            Some(max) => Some(self.place(&self.runner.places, max, deadline).await?),
        };
        let of_tenant = self.place(&self.allowance.used.places, limits.max_in_flight, deadline).await?;
        Ok(Permit { _held: (of_tenant, of_runner) })
    }

    async fn place(&self, line: &Arc<Line>, max: usize, deadline: Instant) -> Result<Place, Refusal> {
        let bounds = Bounds { capacity: max as u64, max_waiting: self.allowance.limits.max_waiting };
        self.take(line, 1, bounds, deadline, Reason::TenantBusy).await
    }

    /// Takes units of a line. A request that is refused here has paid for its rates, and does not pay again.
    pub(super) async fn take(
        &self,
        line: &Arc<Line>,
        units: u64,
        bounds: Bounds,
        deadline: Instant,
        reason: Reason,
    ) -> Result<Place, Refusal> {
        let place = line.take(&self.caller, units, bounds, deadline).await;
        place.map_err(|after| {
            if let Some(bytes) = self.admitted {
                self.runner.usage.lock().keep(&self.caller, bytes, after, Instant::now());
            }
            Refusal::new(reason).with_retry_after(after)
        })
    }

    /// `None` where nothing is limited.
    const fn measures(&self) -> Option<Measures<'a>> {
        let Allowance { limits, .. } = self.allowance;
        if limits.rates.are_unlimited() && limits.runner.rates.are_unlimited() {
            return None;
        }
        Some(Measures { tenant: &limits.rates, runner: &limits.runner.rates })
    }
}

/// A place at the stores; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    _held: (Place, Option<Place>),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::admission::TenantLimits;
    use crate::gate::fixtures::author;

    fn allowance(max_in_flight: usize, max_waiting: usize) -> Arc<Allowance> {
        Arc::new(Allowance::new(TenantLimits { max_in_flight, max_waiting, ..TenantLimits::default() }))
    }

    fn sender<'a>(allowance: &'a Allowance, runner: &str) -> Sender<'a> {
        allowance.sender(Caller { author: author(runner), batch: None }).unwrap()
    }

    /// Asks for a permit in a task of its own, and gives it back after `hold`.
    fn ask(allowance: &Arc<Allowance>, runner: &'static str) -> tokio::task::JoinHandle<Result<Permit, Refusal>> {
        let allowance = Arc::clone(allowance);
        tokio::spawn(async move { sender(&allowance, runner).permit().await })
    }

    #[tokio::test(start_paused = true)]
    async fn lesson_7_the_next_one_waits_then_is_told_when_to_come_back() {
        let allowance = allowance(1, 10);
        let held = sender(&allowance, "a").permit().await.unwrap();
        let started = Instant::now();
        let refusal = sender(&allowance, "a").permit().await.unwrap_err();
        assert_eq!((refusal.reason(), started.elapsed().as_secs()), (Reason::TenantBusy, 10));
        assert_eq!(refusal.into_response().headers()["retry-after"], "20");
        drop(held);
        assert!(sender(&allowance, "a").permit().await.is_ok());
        assert_eq!((allowance.in_flight(), allowance.waiting()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_bounded_and_a_cancelled_waiter_frees_its_place() {
        let allowance = allowance(1, 1);
        let _held = sender(&allowance, "a").permit().await.unwrap();
        let waiter = ask(&allowance, "a");
        tokio::task::yield_now().await;
        assert_eq!(allowance.waiting(), 1);
        let started = Instant::now();
        assert!(sender(&allowance, "a").permit().await.is_err());
        assert_eq!(started.elapsed(), Duration::ZERO);
        waiter.abort();
        let _ = waiter.await;
        assert_eq!(allowance.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_runner_has_its_own_cap_within_its_tenants() {
        let mut limits = TenantLimits { max_in_flight: 3, ..TenantLimits::default() };
        limits.runner.max_in_flight = Some(2);
        let allowance = Arc::new(Allowance::new(limits));
        let first = sender(&allowance, "a").permit().await.unwrap();
        let _second = sender(&allowance, "a").permit().await.unwrap();
        let third = ask(&allowance, "a");
        tokio::task::yield_now().await;
        let _other = sender(&allowance, "b").permit().await.unwrap();
        assert_eq!((allowance.in_flight(), allowance.waiting()), (3, 0), "the third waits in its runner's own line");
        drop(first);
        assert!(third.await.unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn more_places_serve_those_who_wait_as_soon_as_someone_comes() {
        let narrow = allowance(1, 10);
        let _held = sender(&narrow, "a").permit().await.unwrap();
        let waiter = ask(&narrow, "b");
        tokio::task::yield_now().await;
        let wide = narrow.with_limits(TenantLimits { max_in_flight: 3, ..*narrow.limits() });
        let _other = sender(&wide, "c").permit().await.unwrap();
        assert!(waiter.await.unwrap().is_ok());
        assert_eq!(wide.in_flight(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowded_tenant_costs_another_nothing() {
        let (a, b) = (allowance(4, 256), allowance(4, 256));
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(sender(&a, "a").permit().await.unwrap());
        }
        let crowd: Vec<_> = (0..50).map(|_| ask(&a, "a")).collect();
        let _of_b = sender(&b, "b").permit().await.unwrap();
        tokio::task::yield_now().await;
        assert_eq!((a.in_flight(), a.waiting(), b.in_flight(), b.waiting()), (4, 50, 1, 0));
        let before = Instant::now();
        let served = sender(&b, "b").permit().await;
        assert!(served.is_ok() && before.elapsed() == Duration::ZERO, "B is served within its own cap at once");
        crowd.into_iter().for_each(|waiter| waiter.abort());
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_first_is_served_first_and_who_goes_away_leaves_no_gap() {
        let allowance = allowance(1, 256);
        let held = sender(&allowance, "a").permit().await.unwrap();
        let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let mut waiters = Vec::new();
        for i in 0..20 {
            let (allowance, order) = (Arc::clone(&allowance), Arc::clone(&order));
            waiters.push(tokio::spawn(async move {
                let _permit = sender(&allowance, &format!("r{}", i % 7)).permit().await.unwrap();
                order.lock().push(i);
            }));
            tokio::task::yield_now().await;
        }
        for gone in [0, 7, 8, 19] {
            waiters[gone].abort();
        }
        tokio::task::yield_now().await;
        assert_eq!(allowance.waiting(), 16);
        drop(held);
        for waiter in waiters {
            let _ = waiter.await;
        }
        let expected: Vec<_> = (0..20).filter(|i| ![0, 7, 8, 19].contains(i)).collect();
        assert_eq!(*order.lock(), expected);
        assert_eq!((allowance.in_flight(), allowance.waiting()), (0, 0));
    }
}
