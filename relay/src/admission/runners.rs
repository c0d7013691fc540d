//! The runners of a tenant: what each of them uses.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::booking::RunnerUsage;
use super::line::Line;
use crate::gate::Author;

/// How many runners of one tenant are kept apart at the same time. One costs less than a kilobyte, a hundredth of its
/// connection.
const MAX_RUNNERS: usize = 64 * 1024;

/// A runner that was not seen for so long is active no more.
const ACTIVE: Duration = Duration::from_secs(60);

/// How often a full table is searched for entries to forget.
const PURGE_EVERY: Duration = Duration::from_secs(1);

/// What one runner uses.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) places: Arc<Line>,
    /// For bodies.
    pub(super) memory: Arc<Line>,
    /// For work on bodies.
    pub(super) work: Arc<Line>,
    pub(super) usage: Mutex<RunnerUsage>,
}

impl Runner {
    fn new() -> Arc<Self> {
        Arc::new(Self { places: Line::new(), memory: Line::new(), work: Line::new(), usage: Mutex::default() })
    }

    /// Whether nothing would be lost if it were forgotten.
    fn is_idle(&self, now: Instant) -> bool {
        [&self.places, &self.memory, &self.work].into_iter().all(|line| line.is_idle(now))
            && self.usage.lock().is_idle(now)
    }
}

/// The runners of a tenant that were seen of late. Those of which nothing would be lost are forgotten in time.
#[derive(Debug, Default)]
pub(super) struct Runners(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Author, Entry>,
    sweep_at: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    runner: Arc<Runner>,
    last_seen: Instant,
}

impl Runners {
    /// The runner's own; `None` when there are too many runners.
    pub(super) fn enter(&self, id: &Author, now: Instant) -> Option<Arc<Runner>> {
        let mut table = self.0.lock();
        table.sweep(now);
        if let Some(entry) = table.entries.get_mut(id) {
            entry.last_seen = now;
            return Some(Arc::clone(&entry.runner));
        }
        if table.entries.len() >= MAX_RUNNERS {
            return None;
        }
        let runner = Runner::new();
        table.entries.insert(id.clone(), Entry { runner: Arc::clone(&runner), last_seen: now });
        Some(runner)
    }

    /// How many runners came within the last minute.
    pub(super) fn active(&self, now: Instant) -> usize {
        let table = self.0.lock();
        table.entries.values().filter(|entry| now.saturating_duration_since(entry.last_seen) < ACTIVE).count()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().entries.len()
    }
}

impl Table {
    fn sweep(&mut self, now: Instant) {
        if self.sweep_at.is_some_and(|at| now < at) {
            return;
        }
        // Whoever holds a runner's entry is about to use it.
        self.entries.retain(|_, entry| {
            now.saturating_duration_since(entry.last_seen) < ACTIVE
                || Arc::strong_count(&entry.runner) > 1
                || !entry.runner.is_idle(now)
        });
        let is_full = self.entries.len() >= MAX_RUNNERS;
        self.sweep_at = Some(now + if is_full { PURGE_EVERY } else { ACTIVE });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::fixtures::author;

    fn id(n: usize) -> Author {
        author(&format!("r{n}"))
    }

    #[test]
    fn runners_that_stay_away_are_forgotten_and_there_is_a_bound() {
        let runners = Runners::default();
        let now = Instant::now();
        let held = runners.enter(&id(0), now).unwrap();
        for n in 1..MAX_RUNNERS {
            assert!(runners.enter(&id(n), now).is_some());
        }
        assert!(runners.enter(&id(MAX_RUNNERS), now).is_none());
        assert!(runners.enter(&id(5), now).is_some(), "those who are known are served");
        let later = now + ACTIVE;
        assert!(runners.enter(&id(MAX_RUNNERS), later).is_some());
        assert_eq!((runners.len(), runners.active(later)), (2, 1), "one is held, one is new");
        drop(held);
    }
}
