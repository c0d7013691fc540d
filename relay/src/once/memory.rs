//! What is remembered of batch IDs: no I/O, no waiting, the time of day as an argument.
//!
//! Invariants:
//! - a runner's `acknowledged` set and its `order` hold the same IDs, `order` from the oldest to the youngest;
//! - the front of the global `order` whose number is not below its runner's `first` names the oldest ID of all;
//! - `len` is the number of acknowledged IDs, at most `total`, and at most `per_runner` for each runner;
//! - the global `order` has at most twice as many entries as there are acknowledged IDs, and a few;
//! - a runner with neither acknowledged IDs nor batches under way is not in the map.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Key;
use crate::gate::Author;

/// What is known of a batch that comes.
#[derive(Debug)]
pub(super) enum Seen {
    /// Nothing; it is under way from now on.
    Never,
    /// It was acknowledged.
    Acknowledged,
    /// It is under way; its end wakes those who wait here.
    UnderWay(Arc<Notify>),
}

/// Entries that are not worth looking for those that stand for nothing.
const A_FEW: usize = 64;

#[derive(Debug)]
pub(super) struct Memory {
    per_runner: usize,
    total: usize,
    max_age: Duration,
    runners: HashMap<Author, OfRunner>,
    /// Every acknowledgement, from the oldest; those of IDs that were forgotten since are skipped.
    order: VecDeque<Entry>,
    len: usize,
}

#[derive(Debug, Default)]
struct OfRunner {
    /// With whom waits for their end, once there is someone.
    under_way: HashMap<Key, Option<Arc<Notify>>>,
    acknowledged: HashSet<Key>,
    order: VecDeque<Key>,
    /// The number of the ID at the front of `order`; numbers count the runner's acknowledgements.
    first: u64,
}

#[derive(Debug)]
struct Entry {
    at: Instant,
    author: Author,
    number: u64,
}

impl Memory {
    pub(super) fn new(per_runner: usize, total: usize, max_age: Duration) -> Self {
        Self { per_runner, total, max_age, runners: HashMap::new(), order: VecDeque::new(), len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn claim(&mut self, author: &Author, id: Key, now: Instant) -> Seen {
        self.forget_old(now);
        let of_runner = self.runners.entry(author.clone()).or_default();
        if of_runner.acknowledged.contains(&id) {
            return Seen::Acknowledged;
        }
        if let Some(waiting) = of_runner.under_way.get_mut(&id) {
            return Seen::UnderWay(Arc::clone(waiting.get_or_insert_default()));
        }
        of_runner.under_way.insert(id, None);
        Seen::Never
    }

    /// A batch is no longer under way. Returns whom to wake.
    pub(super) fn end(&mut self, author: &Author, id: Key, acknowledged: bool, now: Instant) -> Option<Arc<Notify>> {
        let waiting = self.runners.get_mut(author)?.under_way.remove(&id).flatten();
        if acknowledged {
            self.remember(author, id, now);
        }
        self.drop_if_empty(author);
        waiting
    }

    /// Every acknowledged ID with its age, from the oldest.
    pub(super) fn acknowledged(&self, now: Instant) -> impl Iterator<Item = (&Author, Key, Duration)> {
        self.order.iter().filter_map(move |entry| {
            let of_runner = self.runners.get(&entry.author)?;
            let place = usize::try_from(entry.number.checked_sub(of_runner.first)?).ok()?;
            let age = now.duration_since(entry.at);
            (age < self.max_age).then_some((&entry.author, *of_runner.order.get(place)?, age))
        })
    }

    /// Remembers an ID that is acknowledged, as of `now`, which is not before that of any other.
    pub(super) fn remember(&mut self, author: &Author, id: Key, now: Instant) {
        let of_runner = self.runners.entry(author.clone()).or_default();
        if !of_runner.acknowledged.insert(id) {
            return;
        }
        of_runner.order.push_back(id);
        let number = of_runner.first + of_runner.order.len() as u64 - 1;
        self.len += 1;
        if of_runner.order.len() > self.per_runner {
            self.forget_oldest_of(author);
        }
        self.order.push_back(Entry { at: now, author: author.clone(), number });
        while self.len > self.total {
            self.forget_oldest();
        }
        // A runner that has more than its share forgets its own oldest, whose entries stay behind here. To look at all of them
        // once there are as many as of the others costs as much as to add them did.
        if self.order.len() > 2 * self.len + A_FEW {
            let runners = &self.runners;
            self.order.retain(|entry| runners.get(&entry.author).is_some_and(|r| entry.number >= r.first));
        }
    }

    fn forget_old(&mut self, now: Instant) {
        while self.order.front().is_some_and(|entry| now.duration_since(entry.at) >= self.max_age) {
            self.forget_oldest();
        }
    }

    /// Takes the front of the global order, and the ID that it stands for if that is still remembered.
    fn forget_oldest(&mut self) {
        let Some(entry) = self.order.pop_front() else { return };
        if self.runners.get(&entry.author).is_some_and(|r| r.first == entry.number && !r.order.is_empty()) {
            self.forget_oldest_of(&entry.author);
            self.drop_if_empty(&entry.author);
        }
    }

    fn forget_oldest_of(&mut self, author: &Author) {
        let Some(of_runner) = self.runners.get_mut(author) else { return };
        if let Some(id) = of_runner.order.pop_front() {
            of_runner.acknowledged.remove(&id);
            of_runner.first += 1;
            self.len -= 1;
        }
    }

    fn drop_if_empty(&mut self, author: &Author) {
        if self.runners.get(author).is_some_and(|r| r.under_way.is_empty() && r.order.is_empty()) {
            self.runners.remove(author);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use telemetry_proto::Signal;

    use super::*;
    use crate::gate::fixtures::author;
    use crate::once::BatchId;

    fn key(n: u128) -> Key {
        (Signal::Metrics, BatchId::from_u128(n))
    }

    impl Memory {
        fn check(&self) {
            let sum: usize = self.runners.values().map(|r| r.order.len()).sum();
            assert_eq!(sum, self.len);
            assert!(self.len <= self.total);
            assert!(self.order.len() <= 2 * self.len + A_FEW, "{} entries for {} IDs", self.order.len(), self.len);
            for of_runner in self.runners.values() {
                assert_eq!(of_runner.order.len(), of_runner.acknowledged.len());
                assert!(of_runner.order.len() <= self.per_runner);
                assert!(!of_runner.order.is_empty() || !of_runner.under_way.is_empty());
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Claim(u8, u128),
        End(usize, bool),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_u8..4, 0_u128..30).prop_map(|(runner, id)| Step::Claim(runner, id)),
            4 => (any::<usize>(), any::<bool>()).prop_map(|(which, ok)| Step::End(which, ok)),
            1 => (0_u64..50).prop_map(Step::Wait),
        ]
    }

    proptest! {
        /// Whatever happens: what is remembered stays within its bounds, a batch is never under way twice, and one that
        /// was acknowledged among the last few of its runner, not long ago, is known.
        #[test]
        fn a_model_agrees(steps in prop::collection::vec(step(), 0..200)) {
            let runners: Vec<_> = (0..4).map(|i| author(&format!("r{i}"))).collect();
            let mut memory = Memory::new(5, 12, Duration::from_secs(100));
            let mut now = Instant::now();
            let mut under_way: Vec<(usize, Key)> = Vec::new();
            let mut history: Vec<(usize, Key, Instant)> = Vec::new();
            for step in steps {
                match step {
                    Step::Claim(runner, id) => {
                        let (runner, id) = (usize::from(runner), key(id));
                        let recent = history.iter().rev().take(5).any(|(r, i, at)| {
                            (*r, *i) == (runner, id) && now.duration_since(*at) < Duration::from_secs(100)
                        });
                        match memory.claim(&runners[runner], id, now) {
                            Seen::Never => {
                                prop_assert!(!recent, "a recent acknowledgement was forgotten");
                                prop_assert!(!under_way.contains(&(runner, id)));
                                under_way.push((runner, id));
                            }
                            Seen::Acknowledged => {
                                prop_assert!(history.iter().any(|(r, i, _)| (*r, *i) == (runner, id)));
                            }
                            Seen::UnderWay(_) => prop_assert!(under_way.contains(&(runner, id))),
                        }
                    }
                    Step::End(which, acknowledged) if !under_way.is_empty() => {
                        let (runner, id) = under_way.swap_remove(which % under_way.len());
                        memory.end(&runners[runner], id, acknowledged, now);
                        if acknowledged {
                            history.push((runner, id, now));
                        }
                    }
                    Step::End(..) => {}
                    Step::Wait(seconds) => now += Duration::from_secs(seconds),
                }
                memory.check();
            }
        }
    }

    #[test]
    fn a_flood_of_one_runner_makes_nobody_else_forget() {
        let mut memory = Memory::new(100, 1_000, Duration::from_secs(100));
        let (honest, flooder) = (author("honest"), author("flooder"));
        let now = Instant::now();
        let mut bring = |runner: &Author, n: u128| {
            let id = key(n);
            let seen = memory.claim(runner, id, now);
            if matches!(seen, Seen::Never) {
                memory.end(runner, id, true, now);
            }
            memory.check();
            matches!(seen, Seen::Acknowledged)
        };
        assert!(!bring(&honest, 1));
        for n in 0..10_000 {
            bring(&flooder, n);
        }
        assert!(bring(&honest, 1));
    }
}
