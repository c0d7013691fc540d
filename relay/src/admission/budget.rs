//! The memory that bodies may take: one global budget, and shares of it for each tenant and each runner.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use telemetry_proto::Reason;
use tokio::time::Instant;

use super::Sender;
use super::line::{Line, Place};
use super::queue::Bounds;
use crate::refusal::Refusal;

/// Bounds of the budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BudgetLimits {
    /// All bodies under way together, and the work on them, in bytes. At least one body of the largest size must fit.
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

/// Of the whole budget, so many tenths are for work on bodies and not for bodies: by default a little more than what the
/// largest body of spans takes, 76 MiB.
const WORK_TENTHS: u64 = 3;

/// Hands out memory, first come first served: for bodies, and for work on them.
///
/// Memory for a body is reserved for the announced length before the first byte is read, so what is read never exceeds the
/// budget. Some bodies must be worked on when they are whole, in memory of several times their size. That comes from a part
/// of its own. Otherwise bodies that wait for it would hold what they wait for, and wait for ever: two of one runner for its
/// share, six of several for the whole. Nobody who holds memory for work waits for a peer or for other memory, so there is
/// always one that goes on.
#[derive(Debug)]
pub struct BodyBudget {
    limits: ArcSwap<BudgetLimits>,
    bodies: Arc<Line>,
    work: Arc<Line>,
}

impl BodyBudget {
    /// A budget with these bounds.
    #[must_use]
    pub fn new(limits: BudgetLimits) -> Self {
        Self { limits: ArcSwap::from_pointee(limits), bodies: Line::new(), work: Line::new() }
    }

    /// Puts other bounds in force, for whoever comes from now on. What is reserved stays so.
    pub fn publish(&self, limits: BudgetLimits) {
        self.limits.store(Arc::new(limits));
    }

    /// The bytes that are reserved now.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.bodies.used() + self.work.used()
    }

    /// Reserves memory for a body of `bytes`: of its runner's share, then of its tenant's, then of the whole. A body that is
    /// larger than a share is taken when nothing else of that share is in use. While it waits nothing of the body is read,
    /// and flow control holds the sender.
    ///
    /// # Errors
    /// `memory-share-exhausted` when the runner's or tenant's own bodies are in the way, `memory-exhausted` when everyone's
    /// are.
    pub async fn reserve(&self, sender: &Sender<'_>, bytes: u64) -> Result<BodyReservation, Refusal> {
        let lines = [&self.bodies, &sender.allowance.used.memory, &sender.runner.memory];
        let limits = **self.limits.load();
        let shares = Shares { total: limits.total_bytes - for_work(limits.total_bytes), ..Shares::of(sender, &limits) };
        Self::take(sender, bytes, lines, shares, &limits).await
    }

    /// Reserves `bytes` to work in, for a body that is whole. Of runner, tenant and whole as with [`reserve`](Self::reserve),
    /// from the part for work. Whoever holds it must wait for nothing but the work.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub async fn reserve_work(&self, sender: &Sender<'_>, bytes: u64) -> Result<BodyReservation, Refusal> {
        let lines = [&self.work, &sender.allowance.used.work, &sender.runner.work];
        let limits = **self.limits.load();
        let Shares { total, tenant, runner } = Shares::of(sender, &limits);
        let shares = Shares { total: for_work(total), tenant: for_work(tenant), runner: for_work(runner) };
        Self::take(sender, bytes, lines, shares, &limits).await
    }

    async fn take(
        sender: &Sender<'_>,
        bytes: u64,
        [of_all, of_tenant, of_runner]: [&Arc<Line>; 3],
        shares: Shares,
        limits: &BudgetLimits,
    ) -> Result<BodyReservation, Refusal> {
        let until = Instant::now() + limits.max_wait;
        let bounds = sender.allowance.limits();
        let (max_waiting, max_waiting_of_one) = (bounds.max_waiting, bounds.max_waiting_of_one());
        let take = |line, capacity, max_waiting, reason| {
            sender.take(line, bytes, Bounds { capacity, max_waiting, max_waiting_of_one }, until, reason)
        };
        let of_runner = take(of_runner, shares.runner, max_waiting, Reason::MemoryShareExhausted).await?;
        let of_tenant = take(of_tenant, shares.tenant, max_waiting, Reason::MemoryShareExhausted).await?;
        let of_all = take(of_all, shares.total, limits.max_waiting, Reason::MemoryExhausted).await?;
        Ok(BodyReservation { held: Some([of_all, of_tenant, of_runner]) })
    }
}

/// What there is of some memory for everyone together, for one tenant, and for one runner.
struct Shares {
    total: u64,
    tenant: u64,
    runner: u64,
}

impl Shares {
    fn of(sender: &Sender<'_>, budget: &BudgetLimits) -> Self {
        let limits = sender.allowance.limits();
        Self {
            total: budget.total_bytes,
            // Without a share of its own a tenant's memory is only counted.
            tenant: limits.memory_bytes.unwrap_or(u64::MAX),
            runner: limits.runner.memory_bytes.unwrap_or(budget.per_runner_bytes),
        }
    }
}

/// The part of a share that is for work.
const fn for_work(share: u64) -> u64 {
    share / 10 * WORK_TENTHS
}

/// Memory that a body holds, or the work on it; given back when dropped.
#[derive(Debug)]
pub struct BodyReservation {
    held: Option<[Place; 3]>,
}

impl BodyReservation {
    /// A reservation outside any budget, for embedders that bound memory themselves.
    #[must_use]
    pub const fn unlimited() -> Self {
        Self { held: None }
    }

    /// Gives back what is beyond `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        self.held.iter_mut().flatten().for_each(|place| place.shrink_to(bytes));
    }
}

#[cfg(test)]
mod tests {
    use telemetry_proto::RunnerId;

    use super::*;
    use crate::admission::{Allowance, Caller, TenantLimits};

    /// A budget with so much for bodies.
    fn budget(bodies: u64, share: u64, max_waiting: usize) -> Arc<BodyBudget> {
        Arc::new(BodyBudget::new(BudgetLimits {
            total_bytes: bodies * 10 / (10 - WORK_TENTHS),
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
        let (budget, tenant) = (budget(70, 70, 1), allowance(None));
        let _held = reserve(&budget, &tenant, "a", 70).await.unwrap();
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
        assert_eq!((budget.bodies.waiting(), tenant.body_bytes()), (0, 70), "and its share is free again");
    }

    /// A batch whose body is worked on, with the sizes of the real one in MiB: 32 and 76 for spans.
    async fn worked_on(
        budget: &BodyBudget,
        allowance: &Allowance,
        runner: &str,
        body: u64,
        work: u64,
    ) -> Result<(), Reason> {
        let caller = Caller { author: RunnerId::new(runner).unwrap().into(), batch: None };
        let sender = allowance.sender(caller).unwrap();
        let _body = budget.reserve(&sender, body).await.map_err(|refusal| refusal.reason())?;
        tokio::time::sleep(Duration::from_millis(10)).await;
        let mut working = budget.reserve_work(&sender, work).await.map_err(|refusal| refusal.reason())?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        working.shrink_to(work / 8);
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_need_more_memory_do_not_wait_for_each_other() {
        let limits = BudgetLimits { total_bytes: 256, per_runner_bytes: 128, ..BudgetLimits::default() };
        for (runners, bodies) in [(1, 2), (1, 8), (6, 6), (3, 40)] {
            let (budget, tenant) = (BodyBudget::new(limits), allowance(None));
            let batches = (0..bodies).map(|n| {
                let (budget, tenant) = (&budget, &tenant);
                async move { worked_on(budget, tenant, &format!("r{}", n % runners), 32, 76).await }
            });
            let ends = futures_util::future::join_all(batches).await;
            assert!(ends.iter().all(Result::is_ok), "{bodies} of {runners}: {ends:?}");
            assert_eq!((budget.reserved_bytes(), tenant.body_bytes(), tenant.used.work.used()), (0, 0, 0));
        }
    }

    /// Whatever comes together, everyone ends, and at no time is more handed out than there is.
    #[tokio::test(start_paused = true)]
    async fn whoever_holds_memory_and_wants_more_gets_it_in_the_end() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let limits = BudgetLimits {
                total_bytes: 250,
                per_runner_bytes: 120,
                max_waiting: 1_000,
                max_wait: Duration::from_secs(1_000),
            };
            let budget = BodyBudget::new(limits);
            let tenants = [allowance(Some(120)), allowance(None)];
            let batches = (0..200).map(|_| {
                let (budget, tenant) = (&budget, &tenants[random.usize(..2)]);
                let (runner, body) = (format!("r{}", random.u8(..6)), random.u64(1..=32));
                let (work, comes) = (body * random.u64(0..4), Duration::from_millis(random.u64(..5_000)));
                async move {
                    tokio::time::sleep(comes).await;
                    let end = worked_on(budget, tenant, &runner, body, work).await;
                    // One body alone may be larger than the part for work.
                    assert!(budget.bodies.used() <= 175 && budget.work.used() <= 96, "{budget:?}");
                    end
                }
            });
            let ends = futures_util::future::join_all(batches.collect::<Vec<_>>()).await;
            assert!(ends.iter().all(Result::is_ok), "seed {seed}: {ends:?}");
            assert_eq!(budget.reserved_bytes(), 0);
        }
    }
}
