//! A tenant's permits for the stores: so many requests in flight, a fair and bounded wait for the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use telemetry_proto::Reason;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::waiting_room::WaitingRoom;
use crate::refusal::Refusal;

/// What one tenant may use at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantLimits {
    /// Requests at the stores, all signals together.
    pub max_in_flight: usize,
    /// Requests that wait for one of those places.
    pub max_waiting: usize,
    /// How long a request waits.
    pub max_wait: Duration,
}

impl Default for TenantLimits {
    fn default() -> Self {
        Self { max_in_flight: 4, max_waiting: 256, max_wait: Duration::from_secs(10) }
    }
}

/// A tenant: whose data a runner's batches are.
#[derive(Debug)]
pub struct Tenant {
    name: Arc<str>,
    limits: TenantLimits,
    places: Arc<Semaphore>,
    waiting: WaitingRoom,
    /// Smoothed time that a request holds its place, in microseconds: what `Retry-After` is reckoned from.
    held_micros: AtomicU64,
}

impl Tenant {
    /// A tenant with these limits.
    #[must_use]
    pub fn new(name: &str, limits: TenantLimits) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            limits,
            places: Arc::new(Semaphore::new(limits.max_in_flight)),
            waiting: WaitingRoom::new(limits.max_waiting),
            held_micros: AtomicU64::new(0),
        })
    }

    /// Its name, as in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Requests at the stores now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.limits.max_in_flight.saturating_sub(self.places.available_permits())
    }

    /// Requests that wait for a place now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes a place, first come first served. A caller that goes away while it waits gives its place in the queue up
    /// at once.
    ///
    /// # Errors
    /// `tenant-busy` when too many wait already, or when the wait was in vain.
    pub async fn acquire(self: &Arc<Self>) -> Result<Permit, Refusal> {
        let place = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => place,
            Err(_) => self.wait_for_place().await?,
        };
        Ok(Permit { tenant: Arc::clone(self), since: Instant::now(), _place: place })
    }

    async fn wait_for_place(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let seat = self.waiting.enter().ok_or_else(|| self.busy())?;
        let place = timeout(self.limits.max_wait, Arc::clone(&self.places).acquire_owned()).await;
        drop(seat);
        match place {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) | Err(_) => Err(self.busy()),
        }
    }

    /// When those who wait now will have been served, at the pace of late.
    fn busy(&self) -> Refusal {
        let held = self.held_micros.load(Ordering::Relaxed);
        let rounds = (self.waiting() / self.limits.max_in_flight.max(1)) as u64 + 1;
        let after = Duration::from_micros(held.saturating_mul(rounds));
        Refusal::new(Reason::TenantBusy).with_retry_after(after.clamp(Duration::from_secs(1), Duration::from_secs(60)))
    }
}

/// A place at the stores; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    tenant: Arc<Tenant>,
    since: Instant,
    _place: OwnedSemaphorePermit,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let held = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        let before = self.tenant.held_micros.load(Ordering::Relaxed);
        let smoothed = if before == 0 { held } else { before - before / 8 + held / 8 };
        self.tenant.held_micros.store(smoothed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(max_in_flight: usize, max_waiting: usize) -> Arc<Tenant> {
        Tenant::new("t", TenantLimits { max_in_flight, max_waiting, max_wait: Duration::from_secs(10) })
    }

    #[tokio::test(start_paused = true)]
    async fn lesson_7_the_next_one_waits_then_is_told_when_to_come_back() {
        let tenant = tenant(1, 10);
        let held = tenant.acquire().await.unwrap();
        let started = Instant::now();
        let refusal = tenant.acquire().await.unwrap_err();
        assert_eq!((refusal.reason(), started.elapsed().as_secs()), (Reason::TenantBusy, 10));
        assert!(refusal.into_response().headers().contains_key("retry-after"));
        drop(held);
        assert!(tenant.acquire().await.is_ok());
        assert_eq!((tenant.in_flight(), tenant.waiting()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_bounded_and_a_cancelled_waiter_frees_its_place() {
        let tenant = tenant(1, 1);
        let _held = tenant.acquire().await.unwrap();
        let waiter = tokio::spawn({
            let tenant = Arc::clone(&tenant);
            async move { tenant.acquire().await.is_ok() }
        });
        tokio::task::yield_now().await;
        assert_eq!(tenant.waiting(), 1);
        let started = Instant::now();
        assert!(tenant.acquire().await.is_err());
        assert_eq!(started.elapsed(), Duration::ZERO);
        waiter.abort();
        let _ = waiter.await;
        assert_eq!(tenant.waiting(), 0);
    }
}
