//! A request that asks for its share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use telemetry_proto::Reason;
use tokio::time::Instant;

use super::booking::Measures;
use super::line::{Line, Place};
use super::queue::Bounds;
use super::rate::Charged;
use super::runners::Runner;
use super::{Allowance, Caller};
use crate::gate::Author;
use crate::refusal::Refusal;

/// A request of one runner of a tenant. When it is dropped, whatever the reason, the bytes that it announced and that never
/// came are given back to the rates.
#[derive(Debug)]
pub struct Sender<'a> {
    pub(super) allowance: &'a Allowance,
    pub(super) runner: Arc<Runner>,
    pub(super) caller: Caller,
    /// What its rates were charged for; `None` before it was let in, and after its share was kept for the next attempt.
    charged: Mutex<Option<Charged>>,
    /// The bytes of its body that came.
    arrived: AtomicU64,
}

impl<'a> Sender<'a> {
    pub(super) const fn new(allowance: &'a Allowance, runner: Arc<Runner>, caller: Caller) -> Self {
        Self { allowance, runner, caller, charged: Mutex::new(None), arrived: AtomicU64::new(0) }
    }

    /// The runner.
    #[must_use]
    pub const fn author(&self) -> &Author {
        &self.caller.author
    }

    /// Lets a request of so many bytes in, if it is within the rates of its tenant and its runner. Where the length is not
    /// known, pass 0.
    ///
    /// # Errors
    /// `rate-limited`, with the time until there is room. The request finds its share when it comes back then.
    pub fn admit(&self, bytes: u64) -> Result<(), Refusal> {
        let Some(measures) = self.measures() else { return Ok(()) };
        let mut runner = self.runner.usage.lock();
        let mut tenant = self.allowance.used.usage.lock();
        let charged = runner
            .admit(&mut tenant, measures, &self.caller, bytes, Instant::now())
            .map_err(|after| Refusal::new(Reason::RateLimited).with_retry_after(after))?;
        *self.charged.lock() = Some(charged);
        Ok(())
    }

    /// The body, which counts what comes of it.
    pub fn counted<B>(&self, body: B) -> impl Body<Data = Bytes, Error = B::Error>
    where
        B: Body<Data = Bytes>,
    {
        body.map_frame(|frame| {
            self.note_arrived(frame.data_ref().map_or(0, Bytes::len) as u64);
            frame
        })
    }

    pub(super) fn note_arrived(&self, bytes: u64) {
        self.arrived.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The whole body is here: what came is charged, and what was announced beyond it is given back.
    pub fn settle(&self) {
        let mut charged = self.charged.lock();
        let (Some(measures), Some(charged)) = (self.measures(), charged.as_mut()) else { return };
        let arrived = self.arrived.load(Ordering::Relaxed);
        let used = arrived.max(charged.arrived);
        let settled = Charged { announced: used, arrived: used };
        // As it is when a request that was settled is dropped.
        if *charged == settled {
            return;
        }
        let mut runner = self.runner.usage.lock();
        let mut tenant = self.allowance.used.usage.lock();
        runner.settle(&mut tenant, measures, *charged, arrived, Instant::now());
        *charged = settled;
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
        let limits = &self.allowance.limits;
        let bounds = Bounds {
            capacity: max as u64,
            max_waiting: limits.max_waiting,
            max_waiting_of_one: limits.max_waiting_of_one(),
        };
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
            if let (Some(measures), Some(charged)) = (self.measures(), self.charged.lock().take()) {
                let mut runner = self.runner.usage.lock();
                let mut tenant = self.allowance.used.usage.lock();
                runner.keep(&mut tenant, measures, &self.caller, charged, after, Instant::now());
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

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        self.settle();
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
        assert_eq!(refusal.into_response().headers()["retry-after"], "8");
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
        let crowd: Vec<_> = (0..50).map(|n| ask(&a, ["a", "a2", "a3"][n % 3])).collect();
        let _of_b = sender(&b, "b").permit().await.unwrap();
        tokio::task::yield_now().await;
        assert_eq!((a.in_flight(), a.waiting(), b.in_flight(), b.waiting()), (4, 50, 1, 0));
        let before = Instant::now();
        let served = sender(&b, "b").permit().await;
        assert!(served.is_ok() && before.elapsed() == Duration::ZERO, "B is served within its own cap at once");
        crowd.into_iter().for_each(|waiter| waiter.abort());
    }

    #[tokio::test(start_paused = true)]
    async fn a_runner_that_floods_leaves_room_in_the_line_and_others_are_served_behind_its_share() {
        const HOLD: Duration = Duration::from_millis(100);
        let allowance = Arc::new(Allowance::new(TenantLimits::default()));
        let flood: Vec<_> = (0..400)
            .map(|_| {
                let allowance = Arc::clone(&allowance);
                // It obeys nothing, and comes back at once.
                tokio::spawn(async move {
                    loop {
                        match sender(&allowance, "flooder").permit().await {
                            Ok(_permit) => tokio::time::sleep(HOLD).await,
                            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
                        }
                    }
                })
            })
            .collect();
        let mut waits = Vec::new();
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_millis(37)).await;
            let before = Instant::now();
            let permit = sender(&allowance, "other").permit().await.expect("the other one is never refused");
            waits.push(before.elapsed());
            assert!(allowance.waiting() <= 256 / 2 + 32, "its share, and those with tickets: {}", allowance.waiting());
            drop(permit);
        }
        // Who waits before it, at four at a time.
        let most = HOLD * (256 / 2 + 32) / 4 + HOLD;
        assert!(waits.iter().all(|wait| *wait <= most), "{waits:?}");
        flood.into_iter().for_each(|task| task.abort());
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
