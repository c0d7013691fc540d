//! What was written: each item with whether, and when, it was acknowledged to whoever wrote it.

use std::time::Instant;

use parking_lot::Mutex;

use super::witness::Run;

/// Items that were handed over together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Which.
    pub(super) run: Run,
    /// When they were taken; `None` where nobody said so: they may have been taken all the same.
    pub(super) acknowledged: Option<Instant>,
}

/// All that one source has written of one signal.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    entries: Mutex<Vec<Entry>>,
}

impl Ledger {
    /// Notes items that were taken, or whose fate is unknown.
    pub(super) fn note(&self, run: Run, acknowledged: Option<Instant>) {
        let mut entries = self.entries.lock();
        // What a writer takes one by one is one entry a moment: the time matters to the kill of an agent only.
        if let (Some(last), Some(now)) = (entries.last_mut(), acknowledged)
            && last.acknowledged.is_some_and(|then| now.duration_since(then).as_millis() < 5)
            && last.run.attempt == run.attempt
            && last.run.first + last.run.count == run.first
        {
            last.run.count += run.count;
            return;
        }
        entries.push(Entry { run, acknowledged });
    }

    /// Everything.
    pub(super) fn entries(&self) -> Vec<Entry> {
        self.entries.lock().clone()
    }

    /// How many items were acknowledged so far.
    pub(super) fn written(&self) -> u64 {
        let entries = self.entries.lock();
        entries.iter().filter(|entry| entry.acknowledged.is_some()).map(|entry| u64::from(entry.run.count)).sum()
    }
}
