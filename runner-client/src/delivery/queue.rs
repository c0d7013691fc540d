//! The batches that wait, oldest first, bounded in bytes.
//!
//! Delivery goes in order. The one exception: a batch that keeps failing for what may be its own fault (a proxy that
//! answers 413, a store that chokes) must not hold up the others for ever. After [`SUSPICIOUS`] failures the next batch is
//! tried as a probe; if that goes through while the first one did not, the first one steps aside and is tried now and then.
//!
//! With a spool this is the window of what was read back from it; see `desk.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use ulid::Ulid;

use super::batch::Batch;
use crate::spool::Position;

/// Failures in a row that make a batch suspicious.
const SUSPICIOUS: u32 = 3;
/// How long a suspicious batch steps aside: twice as long each time. It may be innocent, and have met the end of three
/// connections in a row; then it should not wait for a minute.
const ASIDE_FLOOR: Duration = Duration::from_secs(2);
const ASIDE_CEILING: Duration = Duration::from_secs(60);
/// What a batch costs besides its bytes, roughly.
const OVERHEAD: usize = 256;

pub(super) struct Queue {
    entries: VecDeque<Entry>,
    cost: usize,
    budget: usize,
    claim: Option<Claim>,
    probe_next: bool,
}

struct Entry {
    batch: Batch,
    suspicions: u32,
    /// The spool gave its record up while it was being sent, and counted it: it is not tried again.
    is_given_up: bool,
    /// How often it stepped aside.
    asides: u32,
    aside_until: Option<Instant>,
}

/// The batch that is being sent. It can't be evicted.
struct Claim {
    id: Ulid,
    is_probe: bool,
}

impl Queue {
    pub(super) const fn new(budget: usize) -> Self {
        Self { entries: VecDeque::new(), cost: 0, budget, claim: None, probe_next: false }
    }

    /// The oldest batch that has to go so that `batch` fits. Call until there is none.
    pub(super) fn evict_for(&mut self, batch: &Batch) -> Option<Batch> {
        if self.cost + cost(batch) <= self.budget {
            return None;
        }
        let oldest = self.entries.iter().position(|entry| !self.is_claimed(entry))?;
        self.remove(oldest)
    }

    /// Adds the newest batch.
    pub(super) fn push(&mut self, batch: Batch) {
        self.cost += cost(&batch);
        self.entries.push_back(Entry { batch, suspicions: 0, is_given_up: false, asides: 0, aside_until: None });
    }

    /// The oldest batch if it was born at `cutoff` or before. Call until there is none.
    pub(super) fn expire(&mut self, cutoff: Instant) -> Option<Batch> {
        let oldest = self.entries.iter().position(|entry| !self.is_claimed(entry))?;
        if self.entries[oldest].batch.born > cutoff {
            return None;
        }
        self.remove(oldest)
    }

    /// Takes out the batches whose records the spool has given up. The one that is being sent stays until that is over.
    pub(super) fn give_up(&mut self, is_gone: impl Fn(&Position) -> bool) {
        let claimed = self.claim.as_ref().map(|claim| claim.id);
        let total = &mut self.cost;
        self.entries.retain_mut(|entry| {
            if !entry.batch.position.as_ref().is_some_and(&is_gone) {
                return true;
            }
            entry.is_given_up = claimed == Some(entry.batch.id);
            *total -= if entry.is_given_up { 0 } else { cost(&entry.batch) };
            entry.is_given_up
        });
    }

    /// When the oldest batch that can expire was born.
    pub(super) fn oldest_birth(&self) -> Option<Instant> {
        self.entries.iter().find(|entry| !self.is_claimed(entry)).map(|entry| entry.batch.born)
    }

    /// Whether a batch may be sent now.
    pub(super) fn has_due(&self, now: Instant) -> bool {
        self.entries.iter().any(|entry| entry.is_due(now))
    }

    /// When the next batch that stepped aside may be sent.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.entries.iter().filter_map(|entry| entry.aside_until).min()
    }

    /// The batch to send now. It stays in the queue until it is settled.
    pub(super) fn claim(&mut self, now: Instant) -> Option<Batch> {
        let mut due = self.entries.iter().filter(|entry| entry.is_due(now));
        let first = due.next()?;
        let probe = if self.probe_next { due.next() } else { None };
        self.probe_next = false;
        let entry = probe.unwrap_or(first);
        self.claim = Some(Claim { id: entry.batch.id, is_probe: probe.is_some() });
        Some(entry.batch.clone())
    }

    /// The claimed batch was not settled and stays. `suspect`: it may be its own fault.
    pub(super) fn release(&mut self, suspect: bool) {
        let Some(claim) = self.claim.take() else { return };
        let Some(index) = self.entries.iter().position(|entry| entry.batch.id == claim.id) else { return };
        let entry = &mut self.entries[index];
        if entry.is_given_up {
            self.remove(index);
        } else if suspect {
            entry.suspicions = entry.suspicions.saturating_add(1);
            self.probe_next = entry.suspicions >= SUSPICIOUS && !claim.is_probe;
        }
    }

    /// The claimed batch is settled: nothing is wrong with the way, so that what is suspicious steps aside.
    pub(super) fn settle(&mut self, now: Instant) -> Option<Batch> {
        let claim = self.claim.take()?;
        let index = self.entries.iter().position(|entry| entry.batch.id == claim.id)?;
        for older in self.entries.range_mut(..index) {
            if older.suspicions >= SUSPICIOUS && older.is_due(now) {
                older.step_aside(now);
            }
        }
        self.remove(index)
    }

    /// Takes any batch out, the claimed one too.
    pub(super) fn pop(&mut self) -> Option<Batch> {
        self.claim = None;
        self.remove(0)
    }

    /// The number of the oldest batch. They are in order.
    pub(super) fn oldest_number(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.batch.number)
    }

    /// Whether `batch` fits without another's end.
    pub(super) fn has_room_for(&self, batch: &Batch) -> bool {
        self.cost + cost(batch) <= self.budget
    }

    /// What the batches may cost, in bytes.
    pub(super) const fn budget(&self) -> usize {
        self.budget
    }

    /// How many batches there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// What the batches cost, in bytes.
    pub(super) const fn cost(&self) -> usize {
        self.cost
    }

    fn is_claimed(&self, entry: &Entry) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.id == entry.batch.id)
    }

    fn remove(&mut self, index: usize) -> Option<Batch> {
        let batch = self.entries.remove(index)?.batch;
        self.cost -= cost(&batch);
        Some(batch)
    }
}

impl Entry {
    fn step_aside(&mut self, now: Instant) {
        let time = ASIDE_FLOOR.saturating_mul(2_u32.saturating_pow(self.asides)).min(ASIDE_CEILING);
        self.aside_until = Some(now + time);
        self.asides = self.asides.saturating_add(1);
    }

    fn is_due(&self, now: Instant) -> bool {
        self.aside_until.is_none_or(|until| until <= now)
    }
}

/// What a batch costs in memory, in bytes.
pub(super) fn cost(batch: &Batch) -> usize {
    batch.body.len() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(number: u64) -> Batch {
        let id = Ulid::from_parts(number, 0);
        let body = vec![0; 1_000].into();
        let encoding = crate::spool::BodyEncoding::Identity;
        let stream = crate::delivery::batch::Stream::Plain;
        Batch { id, number, items: 1, body, born: Instant::now(), encoding, query: None, stream, position: None }
    }

    fn queue_of(numbers: std::ops::Range<u64>) -> Queue {
        let mut queue = Queue::new(usize::MAX);
        numbers.for_each(|number| queue.push(batch(number)));
        queue
    }

    fn claim(queue: &mut Queue) -> u64 {
        queue.claim(Instant::now()).unwrap().number
    }

    #[test]
    fn the_oldest_goes_first_when_space_ends_but_not_what_is_under_way() {
        let mut queue = Queue::new(3 * (1_000 + OVERHEAD));
        (0..3).for_each(|number| queue.push(batch(number)));
        assert_eq!(claim(&mut queue), 0);
        assert_eq!(queue.evict_for(&batch(3)).unwrap().number, 1);
        assert!(queue.evict_for(&batch(3)).is_none());
        queue.push(batch(3));
        queue.release(false);
        assert_eq!(queue.evict_for(&batch(4)).unwrap().number, 0);
        assert_eq!(queue.cost(), 2 * (1_000 + OVERHEAD));
    }

    #[tokio::test(start_paused = true)]
    async fn order_is_kept_while_failures_are_not_the_batchs_own() {
        let mut queue = queue_of(0..3);
        for _ in 0..100 {
            assert_eq!(claim(&mut queue), 0);
            queue.release(false);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_keeps_failing_steps_aside_once_another_goes_through() {
        let mut queue = queue_of(0..10);
        for _ in 0..SUSPICIOUS {
            assert_eq!(claim(&mut queue), 0);
            queue.release(true);
        }
        assert_eq!(claim(&mut queue), 1, "a probe");
        queue.release(true);
        assert_eq!(claim(&mut queue), 0, "the way is bad, the order holds");
        queue.release(true);
        assert_eq!(claim(&mut queue), 1);
        queue.settle(Instant::now()).unwrap();
        for number in 2..5 {
            assert_eq!(claim(&mut queue), number, "the others are not delayed");
            queue.settle(Instant::now()).unwrap();
        }
        tokio::time::advance(ASIDE_FLOOR).await;
        assert_eq!(claim(&mut queue), 0, "it is tried again now and then");
        queue.release(true);
        assert_eq!(claim(&mut queue), 5);
        queue.settle(Instant::now()).unwrap();
        assert_eq!(claim(&mut queue), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_fails_again_and_again_is_tried_less_and_less_often() {
        let mut queue = queue_of(0..100);
        let suspect = |queue: &mut Queue| {
            while claim(queue) == 0 {
                queue.release(true);
            }
            queue.settle(Instant::now()).unwrap();
        };
        for seconds in [2, 4, 8, 16, 32, 60, 60] {
            suspect(&mut queue);
            let until = queue.next_due().unwrap();
            assert_eq!(until - Instant::now(), Duration::from_secs(seconds));
            tokio::time::advance(Duration::from_secs(seconds)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_old_goes_oldest_first() {
        let mut queue = queue_of(0..2);
        tokio::time::advance(Duration::from_secs(5)).await;
        queue.push(batch(2));
        let cutoff = Instant::now() - Duration::from_secs(5);
        assert_eq!(claim(&mut queue), 0);
        assert_eq!(queue.expire(cutoff).unwrap().number, 1);
        assert!(queue.expire(cutoff).is_none());
    }
}
