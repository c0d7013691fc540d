//! The memory that bodies may take: one global budget, and shares of it for each tenant and each runner.

use std::sync::Arc;
use std::time::Duration;

use telemetry_proto::Reason;
use tokio::time::Instant;

use super::Sender;
use super::line::{Line, Place};
use super::queue::Bounds;
use crate::refusal::Refusal;

/// Bounds of the budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BudgetLimits {
    /// All bodies under way together, in bytes. At least one body of the largest size must fit.
    pub total_bytes: u64,
    /// The bodies of one runner, in bytes, where its tenant's limits do not say otherwise; so that one runner can't hold it
    /// all.
    pub per_runner_bytes: u64,
    /// How many requests may wait for memory that others than their own tenant hold.
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
    total: Arc<Line>,
}

impl BodyBudget {
    /// A budget with these bounds.
    #[must_use]
    pub fn new(limits: BudgetLimits) -> Self {
        Self { limits, total: Line::new() }
    }

    /// The bytes that are reserved now.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.total.used()
    }

    /// Reserves memory for a body of `bytes`: of its runner's share, then of its tenant's, then of the whole. A body that is
    /// larger than a share is taken when nothing else of that share is in use. While it waits nothing of the body is read,
    /// and flow control holds the sender.
    ///
    /// # Errors
    /// `memory-share-exhausted` when the runner's or tenant's own bodies are in the way, `memory-exhausted` when everyone's
    /// are.
    pub async fn reserve(&self, sender: &Sender<'_>, bytes: u64) -> Result<BodyReservation, Refusal> {
        self.reserve_more(sender, 0, bytes).await
    }

    /// Reserves `bytes` more for a body that holds `held` already.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub async fn reserve_more(&self, sender: &Sender<'_>, held: u64, bytes: u64) -> Result<BodyReservation, Refusal> {
        let limits = sender.allowance.limits();
        let want = Want { sender, bytes, held, until: Instant::now() + self.limits.max_wait };
        let runners = limits.runner.memory_bytes.unwrap_or(self.limits.per_runner_bytes);
        // Without a share of its own a tenant's memory is only counted.
        let tenants = limits.memory_bytes.unwrap_or(u64::MAX);
        let bounds = |capacity| Bounds { capacity, max_waiting: limits.max_waiting };
        let of_runner = want.from(&sender.runner.memory, bounds(runners), Reason::MemoryShareExhausted).await?;
        let of_tenant = want.from(&sender.allowance.used.memory, bounds(tenants), Reason::MemoryShareExhausted).await?;
        let bounds = Bounds { capacity: self.limits.total_bytes, max_waiting: self.limits.max_waiting };
        let of_total = want.from(&self.total, bounds, Reason::MemoryExhausted).await?;
        Ok(BodyReservation { _held: Some([of_total, of_tenant, of_runner]) })
    }
}

/// So many bytes, for someone, until then.
struct Want<'a> {
    sender: &'a Sender<'a>,
    bytes: u64,
    held: u64,
    until: Instant,
}

impl Want<'_> {
    async fn from(&self, line: &Arc<Line>, bounds: Bounds, reason: Reason) -> Result<Place, Refusal> {
        // What is larger than all that others could give back would wait in vain.
        let bytes = if self.held == 0 { self.bytes } else { self.bytes.min(bounds.capacity.saturating_sub(self.held)) };
        self.sender.take(line, bytes, bounds, self.until, reason).await
    }
}

/// Memory that a body holds; given back when dropped.
#[derive(Debug)]
pub struct BodyReservation {
    _held: Option<[Place; 3]>,
}

impl BodyReservation {
    /// A reservation outside any budget, for embedders that bound memory themselves.
    #[must_use]
    pub const fn unlimited() -> Self {
        Self { _held: None }
    }
}

#[cfg(test)]
mod tests {
    use telemetry_proto::RunnerId;

    use super::*;
    use crate::admission::{Allowance, Caller, TenantLimits};

    fn budget(total: u64, share: u64, max_waiting: usize) -> Arc<BodyBudget> {
        Arc::new(BodyBudget::new(BudgetLimits {
            total_bytes: total,
            per_runner_bytes: share,
            max_waiting,
            max_wait: Duration::from_secs(10),
        }))
    }

    fn allowance(memory_bytes: Option<u64>) -> Arc<Allowance> {
        Arc::new(Allowance::new(TenantLimits { memory_bytes, ..TenantLimits::default() }))
    }

    async fn reserve(
        budget: &BodyBudget,
        allowance: &Allowance,
        runner: &str,
        bytes: u64,
    ) -> Result<BodyReservation, Reason> {
        let caller = Caller { author: RunnerId::new(runner).unwrap().into(), batch: None };
        budget.reserve(&allowance.sender(caller).unwrap(), bytes).await.map_err(|refusal| refusal.reason())
    }

    #[tokio::test(start_paused = true)]
    async fn one_runner_uses_up_its_share_and_nobody_elses() {
        let (budget, tenant) = (budget(100, 50, 10), allowance(None));
        let held = reserve(&budget, &tenant, "a", 50).await.unwrap();
        assert_eq!(reserve(&budget, &tenant, "a", 1).await.unwrap_err(), Reason::MemoryShareExhausted);
        let other = reserve(&budget, &tenant, "b", 50).await.unwrap();
        assert_eq!(reserve(&budget, &tenant, "c", 1).await.unwrap_err(), Reason::MemoryExhausted);
        drop((held, other));
        assert_eq!((budget.reserved_bytes(), tenant.body_bytes()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn one_tenant_uses_up_its_share_and_nobody_elses() {
        let (budget, a, b) = (budget(100, 100, 10), allowance(Some(60)), allowance(Some(60)));
        let _held = reserve(&budget, &a, "a1", 60).await.unwrap();
        assert_eq!(reserve(&budget, &a, "a2", 1).await.unwrap_err(), Reason::MemoryShareExhausted);
        assert!(reserve(&budget, &b, "b1", 40).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_gets_memory_as_soon_as_it_is_given_back() {
        let (budget, tenant) = (budget(100, 100, 10), allowance(None));
        let held = reserve(&budget, &tenant, "a", 100).await.unwrap();
        let waiter = tokio::spawn({
            let (budget, tenant) = (Arc::clone(&budget), Arc::clone(&tenant));
            async move { reserve(&budget, &tenant, "b", 60).await.is_ok() }
        });
        tokio::task::yield_now().await;
        drop(held);
        assert!(waiter.await.unwrap());
        assert_eq!(budget.reserved_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_bounded_and_a_cancelled_waiter_leaves_its_place() {
        let (budget, tenant) = (budget(10, 10, 1), allowance(None));
        let _held = reserve(&budget, &tenant, "a", 10).await.unwrap();
        let waiter = tokio::spawn({
            let (budget, tenant) = (Arc::clone(&budget), Arc::clone(&tenant));
            async move { reserve(&budget, &tenant, "b", 1).await.is_ok() }
        });
        tokio::task::yield_now().await;
        let started = Instant::now();
        assert!(reserve(&budget, &tenant, "c", 1).await.is_err());
        assert_eq!(started.elapsed(), Duration::ZERO, "no place to wait in: refused at once");
        waiter.abort();
        let _ = waiter.await;
        assert_eq!((budget.total.waiting(), tenant.body_bytes()), (0, 10), "and its share is free again");
    }
}
