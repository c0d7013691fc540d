//! What lies between memory and the spool.
//!
//! With a spool a batch is staged (in memory), stored by the keeper's thread, read back into the window of delivery (the
//! queue), settled, and acknowledged to the spool. Only the spool knows what waits in it: a settled batch counts as
//! delivered when the spool says that it still waited, so that nothing is counted twice. What the spool gives up leaves
//! the window too, but for the batch that is being sent, whose answer changes nothing; what was delivered already is no drop.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use crate::delivery::NotTaken;
use crate::delivery::accounting::DropReason;
use crate::delivery::batch::Batch;
use crate::delivery::queue;
use crate::spool::Position;

pub(super) struct Desk {
    /// Oldest first.
    staged: VecDeque<Staged>,
    staged_cost: usize,
    budget: usize,
    /// The oldest staged batch is being written: it stays.
    pub(super) is_storing: bool,
    settled: VecDeque<Settled>,
    /// Items that the spool gave up, or is about to tell of, and that are no drops.
    pub(super) excused: u64,
    /// There may be records that were not read yet.
    pub(super) has_unread: bool,
    /// The number of the record that was read last; 0 for those of an earlier run.
    pub(super) last_read: u64,
    /// The last attempt to write failed.
    pub(super) is_failing: bool,
}

/// A batch that is to be stored.
pub(super) struct Staged {
    pub(super) batch: Batch,
    /// Who keeps the batch until it is stored. If it can't be, it is handed back.
    pub(super) waiter: Option<oneshot::Sender<Result<(), NotTaken>>>,
}

/// A batch of the spool that is done with.
#[derive(Debug, Clone, Copy)]
pub(in crate::delivery) struct Settled {
    pub(in crate::delivery) position: Position,
    number: u64,
    pub(in crate::delivery) items: u64,
    /// `None`: delivered.
    pub(in crate::delivery) dropped: Option<DropReason>,
}

impl Desk {
    pub(super) const fn new(budget: usize) -> Self {
        Self {
            staged: VecDeque::new(),
            staged_cost: 0,
            budget,
            is_storing: false,
            settled: VecDeque::new(),
            excused: 0,
            has_unread: true,
            last_read: 0,
            is_failing: false,
        }
    }

    pub(super) const fn staged_cost(&self) -> usize {
        self.staged_cost
    }

    /// Whether `batch` fits without another's end.
    pub(super) fn has_room_for(&self, batch: &Batch) -> bool {
        self.staged.is_empty() || self.staged_cost + queue::cost(batch) <= self.budget
    }

    /// The oldest batch that has to go so that `batch` fits. Call until there is none.
    pub(super) fn evict_for(&mut self, batch: &Batch) -> Option<Staged> {
        if self.has_room_for(batch) {
            return None;
        }
        self.remove(usize::from(self.is_storing))
    }

    pub(super) fn stage(&mut self, staged: Staged) {
        self.staged_cost += queue::cost(&staged.batch);
        self.staged.push_back(staged);
    }

    /// The batch to store next.
    pub(super) fn front(&self) -> Option<&Staged> {
        self.staged.front()
    }

    pub(super) fn pop_front(&mut self) -> Option<Staged> {
        self.remove(0)
    }

    fn remove(&mut self, index: usize) -> Option<Staged> {
        let staged = self.staged.remove(index)?;
        self.staged_cost -= queue::cost(&staged.batch);
        Some(staged)
    }

    /// Remembers that a batch is done with, for the keeper.
    pub(super) fn settle(&mut self, position: Position, batch: &Batch, dropped: Option<DropReason>) {
        self.settled.push_back(Settled { position, number: batch.number, items: batch.items, dropped });
    }

    /// Takes out the delivered batches whose records the spool has given up; returns their items.
    pub(super) fn give_up(&mut self, is_gone: impl Fn(&Position) -> bool) -> u64 {
        let mut delivered = 0;
        self.settled.retain(|settled| {
            let is_late = settled.dropped.is_none() && is_gone(&settled.position);
            delivered += if is_late { settled.items } else { 0 };
            !is_late
        });
        delivered
    }

    pub(super) fn first_settled(&self) -> Option<Settled> {
        self.settled.front().copied()
    }

    pub(super) fn forget_first_settled(&mut self) {
        self.settled.pop_front();
    }

    /// No batch that is staged, unread or settled has a number below.
    pub(super) fn oldest_number(&self) -> Option<u64> {
        let unread = self.has_unread.then_some(if self.last_read == 0 { 0 } else { self.last_read + 1 });
        let staged = self.staged.front().map(|staged| staged.batch.number);
        let settled = self.settled.iter().map(|settled| settled.number).min();
        [unread, staged, settled].into_iter().flatten().min()
    }
}
