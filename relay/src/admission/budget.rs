//! The memory that bodies may take: one global budget, and a share of it for each runner.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telemetry_proto::{Reason, RunnerId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::waiting_room::WaitingRoom;
use crate::refusal::Refusal;

/// Bounds of the budget.
#[derive(Debug, Clone, Copy)]
pub struct BudgetLimits {
    /// All bodies under way together, in bytes. At least one body of the largest size must fit.
    pub total_bytes: u64,
    /// The bodies of one runner, in bytes; so that one runner can't hold it all.
    pub per_runner_bytes: u64,
    /// How many requests may wait for memory.
    pub max_waiting: usize,
    /// How long a request waits for memory.
    pub max_wait: Duration,
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self {
            total_bytes: 256 * 1024 * 1024,
            per_runner_bytes: 128 * 1024 * 1024,
            max_waiting: 1_024,
            max_wait: Duration::from_secs(10),
        }
    }
}

/// Hands out memory for bodies, first come first served. Memory is reserved for the announced length before the first
/// byte is read, so what is read never exceeds the budget.
#[derive(Debug)]
pub struct BodyBudget {
    limits: BudgetLimits,
    total: Arc<Semaphore>,
    shares: Mutex<HashMap<RunnerId, Share>>,
    waiting: WaitingRoom,
}

#[derive(Debug)]
struct Share {
    bytes: Arc<Semaphore>,
    users: usize,
}

impl BodyBudget {
    /// A budget with these bounds.
    #[must_use]
    pub fn new(limits: BudgetLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            total: Arc::new(Semaphore::new(to_permits(limits.total_bytes))),
            shares: Mutex::default(),
            waiting: WaitingRoom::new(limits.max_waiting),
        })
    }

    /// The bytes that are reserved now.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        to_permits(self.limits.total_bytes).saturating_sub(self.total.available_permits()) as u64
    }

    /// Reserves memory for a body of `bytes`. While it waits nothing of the body is read, and flow control holds the
    /// sender.
    ///
    /// # Errors
    /// `memory-share-exhausted` when the runner's own bodies are in the way, `memory-exhausted` when everyone's are.
    pub async fn reserve(self: &Arc<Self>, runner: &RunnerId, bytes: u64) -> Result<BodyReservation, Refusal> {
        let permits =
            u32::try_from(bytes.min(self.limits.total_bytes).min(self.limits.per_runner_bytes)).unwrap_or(u32::MAX);
        let share = ShareUse::enter(self, runner);
        let deadline = Instant::now() + self.limits.max_wait;
        let of_share = self.acquire(&share.bytes, permits, deadline, Reason::MemoryShareExhausted).await?;
        let of_total = self.acquire(&self.total, permits, deadline, Reason::MemoryExhausted).await?;
        Ok(BodyReservation { _held: Some((of_total, of_share, share)) })
    }

    async fn acquire(
        &self,
        semaphore: &Arc<Semaphore>,
        permits: u32,
        deadline: Instant,
        reason: Reason,
    ) -> Result<OwnedSemaphorePermit, Refusal> {
        if let Ok(permit) = Arc::clone(semaphore).try_acquire_many_owned(permits) {
            return Ok(permit);
        }
        let refusal = || Refusal::new(reason).with_retry_after(self.limits.max_wait);
        let _seat = self.waiting.enter().ok_or_else(refusal)?;
        match timeout_at(deadline, Arc::clone(semaphore).acquire_many_owned(permits)).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(refusal()),
        }
    }
}

/// Memory that a body holds; given back when dropped.
#[derive(Debug)]
pub struct BodyReservation {
    _held: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit, ShareUse)>,
}

impl BodyReservation {
    /// A reservation outside any budget, for embedders that bound memory themselves.
    #[must_use]
    pub const fn unlimited() -> Self {
        Self { _held: None }
    }
}

/// Keeps a runner's share alive while anything uses or waits for it, and forgets it afterwards.
#[derive(Debug)]
struct ShareUse {
    budget: Arc<BodyBudget>,
    runner: RunnerId,
    bytes: Arc<Semaphore>,
}

impl ShareUse {
    fn enter(budget: &Arc<BodyBudget>, runner: &RunnerId) -> Self {
        let mut shares = budget.shares.lock();
        let share = shares.entry(runner.clone()).or_insert_with(|| Share {
            bytes: Arc::new(Semaphore::new(to_permits(budget.limits.per_runner_bytes))),
            users: 0,
        });
        share.users += 1;
        let bytes = Arc::clone(&share.bytes);
        drop(shares);
        Self { budget: Arc::clone(budget), runner: runner.clone(), bytes }
    }
}

impl Drop for ShareUse {
    fn drop(&mut self) {
        let mut shares = self.budget.shares.lock();
        if let Some(share) = shares.get_mut(&self.runner) {
            share.users -= 1;
            if share.users == 0 {
                shares.remove(&self.runner);
            }
        }
    }
}

fn to_permits(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(total: u64, share: u64, max_waiting: usize) -> Arc<BodyBudget> {
        BodyBudget::new(BudgetLimits {
            total_bytes: total,
            per_runner_bytes: share,
            max_waiting,
            max_wait: Duration::from_secs(10),
        })
    }

    fn runner(id: &str) -> RunnerId {
        RunnerId::new(id).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn one_runner_uses_up_its_share_and_nobody_elses() {
        let budget = budget(100, 50, 10);
        let held = budget.reserve(&runner("a"), 50).await.unwrap();
        let refused = budget.reserve(&runner("a"), 1).await.unwrap_err();
        assert_eq!(refused.reason(), Reason::MemoryShareExhausted);
        let other = budget.reserve(&runner("b"), 50).await.unwrap();
        assert_eq!(budget.reserve(&runner("c"), 1).await.unwrap_err().reason(), Reason::MemoryExhausted);
        drop((held, other));
        assert_eq!(budget.reserved_bytes(), 0);
        assert!(budget.shares.lock().is_empty(), "a runner that is gone leaves nothing behind");
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_gets_memory_as_soon_as_it_is_given_back() {
        let budget = budget(100, 100, 10);
        let held = budget.reserve(&runner("a"), 100).await.unwrap();
        let waiter = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.reserve(&runner("b"), 60).await.is_ok() }
        });
        tokio::task::yield_now().await;
        drop(held);
        assert!(waiter.await.unwrap());
        assert_eq!(budget.reserved_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_bounded_and_a_cancelled_waiter_leaves_its_place() {
        let budget = budget(10, 10, 1);
        let _held = budget.reserve(&runner("a"), 10).await.unwrap();
        let waiter = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.reserve(&runner("b"), 1).await.is_ok() }
        });
        tokio::task::yield_now().await;
        let started = Instant::now();
        assert!(budget.reserve(&runner("c"), 1).await.is_err());
        assert_eq!(started.elapsed(), Duration::ZERO, "no place to wait in: refused at once");
        waiter.abort();
        let _ = waiter.await;
        assert_eq!(budget.waiting.len(), 0);
    }
}
