//! Whoever obeys `Retry-After` gets through: hundreds of clients that ask for more than there is, for hours of virtual
//! time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use telemetry_proto::RunnerId;
use tokio::time::{Instant, sleep};

use super::{Allowance, BodyBudget, BudgetLimits, Caller, Rate, TenantLimits};
use crate::gate::Author;
use crate::once::BatchId;
use crate::refusal::Refusal;

const SECOND: Duration = Duration::from_secs(1);

/// How a simulation went.
#[derive(Debug, Default)]
struct Outcome {
    served: Vec<u32>,
    /// The most refusals that one batch met.
    most_refusals: u32,
    refusals: u32,
}

impl Outcome {
    fn total(&self) -> u32 {
        self.served.iter().sum()
    }

    /// The promise, and that it was put to the test; and that nobody paid for it.
    fn check(&self, at_least: u32) {
        let (least, most) = (self.served.iter().min().unwrap(), self.served.iter().max().unwrap());
        assert!(self.refusals > self.total() / 4, "hardly anyone was refused: {self:?}");
        assert!(self.most_refusals <= 2, "refused more than once again: {self:?}");
        assert!(self.total() >= at_least, "what there was lay idle: {} of {at_least} served", self.total());
        assert!(*least * 2 >= *most, "someone was served at another's cost: {least} and {most}");
    }
}

/// Who brings batches: a number of runners, some requests each at a time, with batch IDs or without.
#[derive(Clone, Copy)]
struct Clients {
    runners: usize,
    requests_each: usize,
    with_ids: bool,
}

/// Lets every client bring one batch after the other, each until it is served, as obediently as it is told.
async fn simulate<F>(
    clients: Clients,
    duration: Duration,
    request: impl Fn(Caller) -> F + Copy + Send + 'static,
) -> Outcome
where
    F: Future<Output = Result<(), Refusal>> + Send,
{
    let end = Instant::now() + duration;
    let tasks: Vec<_> = (0..clients.runners * clients.requests_each)
        .map(|i| {
            let runner = Author::from(RunnerId::new(&format!("r{}", i % clients.runners)).unwrap());
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(i as u64);
                let (mut served, mut refusals, mut most, mut batch) = (0, 0, 0, (i as u128) << 64);
                sleep(Duration::from_millis(random.u64(..3_000))).await;
                while Instant::now() < end {
                    batch += 1;
                    let caller =
                        Caller { author: runner.clone(), batch: clients.with_ids.then(|| BatchId::from_u128(batch)) };
                    let mut refused = 0;
                    while let Err(refusal) = request(caller.clone()).await {
                        refused += 1;
                        sleep(told(refusal).mul_f64(1.0 + random.f64() / 10.0)).await;
                    }
                    (served, refusals, most) = (served + 1, refusals + refused, most.max(refused));
                }
                (served, refusals, most)
            })
        })
        .collect();
    let mut outcome = Outcome::default();
    for task in tasks {
        let (served, refusals, most) = task.await.unwrap();
        outcome.served.push(served);
        outcome.refusals += refusals;
        outcome.most_refusals = outcome.most_refusals.max(most);
    }
    outcome
}

/// Lets a crowd come within `arrival`, each with one batch that it brings until it is served, as a runner's client does. `hold`: how
/// long a store takes, by the time since the first came. Returns when the last was served, and the most refusals that one met.
async fn come_back(
    runners: u64,
    arrival: Duration,
    hold: impl Fn(Duration) -> Duration + Copy + Send + 'static,
) -> (Duration, u32) {
    let tenant = leak(Allowance::new(TenantLimits::default()));
    let began = Instant::now();
    let tasks: Vec<_> = (0..runners)
        .map(|i| {
            let author = Author::from(RunnerId::new(&format!("r{i}")).unwrap());
            let caller = Caller { author, batch: Some(BatchId::from_u128(i.into())) };
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(i);
                let mut refused = 0;
                sleep(arrival.mul_f64(random.f64())).await;
                loop {
                    match tenant.sender(caller.clone()).unwrap().permit().await {
                        Ok(_permit) => {
                            sleep(hold(began.elapsed()).mul_f64(0.5 + random.f64())).await;
                            return (began.elapsed(), refused);
                        }
                        Err(refusal) => {
                            refused += 1;
                            sleep(told(refusal).mul_f64(1.0 + random.f64() / 4.0)).await;
                        }
                    }
                }
            })
        })
        .collect();
    let mut worst = (Duration::ZERO, 0);
    for task in tasks {
        let (at, refused) = task.await.unwrap();
        worst = (worst.0.max(at), worst.1.max(refused));
    }
    worst
}

/// What a client reads: whole seconds.
fn told(refusal: Refusal) -> Duration {
    let response = refusal.into_response();
    Duration::from_secs(response.headers()[RETRY_AFTER].to_str().unwrap().parse().unwrap())
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn rate(per_second: u64, burst: u64) -> Option<Rate> {
    Some(Rate { per_second: per_second.try_into().unwrap(), burst: burst.try_into().unwrap() })
}

async fn places(clients: Clients) -> Outcome {
    let tenant = leak(Allowance::new(TenantLimits::default()));
    let outcome = simulate(clients, 1_800 * SECOND, move |caller| async move {
        let _permit = tenant.sender(caller)?.permit().await?;
        sleep(SECOND).await;
        Ok(())
    });
    let outcome = outcome.await;
    assert_eq!((tenant.in_flight(), tenant.waiting()), (0, 0));
    outcome
}

#[tokio::test(start_paused = true)]
async fn retry_after_leads_to_a_place_at_the_stores() {
    places(Clients { runners: 200, requests_each: 1, with_ids: true }).await.check(7_000);
    places(Clients { runners: 200, requests_each: 1, with_ids: false }).await.check(7_000);
    // More than may wait, so that most are refused at once.
    places(Clients { runners: 600, requests_each: 1, with_ids: true }).await.check(7_000);
    places(Clients { runners: 10, requests_each: 20, with_ids: true }).await.check(7_000);
}

async fn rates(clients: Clients, limits: TenantLimits) -> Outcome {
    let tenant = leak(Allowance::new(limits));
    simulate(clients, 1_800 * SECOND, move |caller| async move {
        let bytes = caller.batch.map_or(1_000, |batch| 500 + u64::from(batch.to_string().as_bytes()[25]) * 10);
        let sender = tenant.sender(caller)?;
        sender.admit(bytes)?;
        sender.note_arrived(bytes);
        Ok(())
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn retry_after_leads_to_ones_share_of_a_rate() {
    let mut limits = TenantLimits::default();
    limits.rates.requests = rate(10, 10);
    rates(Clients { runners: 200, requests_each: 1, with_ids: true }, limits).await.check(17_000);
    rates(Clients { runners: 200, requests_each: 1, with_ids: false }, limits).await.check(17_000);
    rates(Clients { runners: 10, requests_each: 20, with_ids: true }, limits).await.check(17_000);
    let mut limits = TenantLimits::default();
    limits.rates.bytes = rate(10_000, 20_000);
    rates(Clients { runners: 200, requests_each: 1, with_ids: true }, limits).await.check(10_000);
    let mut limits = TenantLimits::default();
    limits.runner.rates.requests = rate(1, 1);
    rates(Clients { runners: 10, requests_each: 10, with_ids: true }, limits).await.check(17_000);
}

#[tokio::test(start_paused = true)]
async fn retry_after_leads_to_memory() {
    let limits = BudgetLimits { total_bytes: 366, per_runner_bytes: 128, max_waiting: 32, max_wait: 10 * SECOND };
    let budget = leak(BodyBudget::new(limits));
    let tenant = leak(Allowance::new(TenantLimits { max_waiting: 32, ..TenantLimits::default() }));
    let clients = Clients { runners: 150, requests_each: 1, with_ids: true };
    let outcome = simulate(clients, 1_800 * SECOND, move |caller| async move {
        let bytes = caller.batch.map_or(32, |batch| u64::from(batch.to_string().as_bytes()[25]) / 2);
        let _memory = budget.reserve(&tenant.sender(caller)?, bytes).await?;
        sleep(2 * SECOND).await;
        Ok(())
    });
    outcome.await.check(5_000);
    assert_eq!(budget.reserved_bytes(), 0);
}

/// With every limit at once, one of them is the narrowest; the others must not make a request pay twice.
#[tokio::test(start_paused = true)]
async fn retry_after_leads_through_all_limits_together() {
    let mut limits = TenantLimits { max_waiting: 32, ..TenantLimits::default() };
    limits.rates.requests = rate(5, 20);
    limits.runner.rates.requests = rate(1, 5);
    let tenant = leak(Allowance::new(limits));
    let budget = BudgetLimits { total_bytes: 400, per_runner_bytes: 128, max_waiting: 32, max_wait: 10 * SECOND };
    let budget = leak(BodyBudget::new(budget));
    let clients = Clients { runners: 150, requests_each: 1, with_ids: true };
    let outcome = simulate(clients, 1_800 * SECOND, move |caller| async move {
        let sender = tenant.sender(caller)?;
        sender.admit(10)?;
        sender.note_arrived(10);
        let _memory = budget.reserve(&sender, 10).await?;
        let _permit = sender.permit().await?;
        sleep(SECOND).await;
        Ok(())
    });
    outcome.await.check(7_000);
}

/// Lesson 24: clients that were all refused in one moment do not all come back in another.
#[tokio::test(start_paused = true)]
async fn those_who_are_refused_together_are_told_different_times() {
    let mut limits = TenantLimits::default();
    limits.rates.requests = rate(10, 1);
    let tenant = Arc::new(Allowance::new(limits));
    let mut told_at = std::collections::HashMap::<_, u32>::new();
    for i in 0..200 {
        let caller = Caller { author: RunnerId::new(&format!("r{i}")).unwrap().into(), batch: None };
        if let Err(refusal) = tenant.sender(caller).unwrap().admit(0) {
            *told_at.entry(told(refusal)).or_default() += 1;
        }
    }
    assert!(told_at.len() >= 20 && told_at.values().all(|n| *n <= 10), "{told_at:?}");
}

/// After a restart the machine has thousands of handshakes behind it, and the first batches took ten times as long as all others will.
#[tokio::test(start_paused = true)]
async fn a_crowd_that_comes_at_once_is_served_soon_after_the_stores_are_quick_again() {
    let slow_at_first = |since| Duration::from_millis(if since < 4 * SECOND { 100 } else { 8 });
    let (last, refusals) = come_back(2_000, 4 * SECOND, slow_at_first).await;
    assert!(last < 20 * SECOND && refusals <= 2, "{last:?}, {refusals} refusals");
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_finds_the_stores_hanging_is_served_soon_after_they_answer() {
    let hangs_at_first = |since| (3 * SECOND).saturating_sub(since).max(Duration::from_millis(20));
    let (last, refusals) = come_back(500, SECOND, hangs_at_first).await;
    assert!(last < 10 * SECOND && refusals <= 2, "{last:?}, {refusals} refusals");
}
