//! For the keeper of the spool.

use std::time::Duration;

use tokio::time::Instant;

use super::desk::{Settled, Staged};
use super::{Outbox, State};
use crate::delivery::NotTaken;
use crate::delivery::accounting::DropReason;
use crate::delivery::batch::Batch;
use crate::spool::{DropCause, Position, Record, SpoolSignal};

/// Batches that the window holds at least, whatever their size: one, and one to probe with.
const MIN_WINDOW: usize = 2;

impl Outbox {
    /// Items of an earlier run were found: some wait, some were lost.
    pub(in crate::delivery) fn recovered(&self, items: u64) {
        self.state.lock().tally.recovered(items);
    }

    /// Stages the open batch if it is due. Returns when to look again.
    pub(in crate::delivery) fn stage_due(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state.lock();
        let due = state.open.due(&self.settings.batch)?;
        if due > now {
            return Some(due);
        }
        let displaced = self.close_due(&mut state, now);
        let told = state.losses.count(displaced, now);
        let next = state.open.due(&self.settings.batch);
        drop(state);
        self.tell_losses(told);
        next
    }

    /// The next batch to store. Until [`stored`](Self::stored) or [`not_stored`](Self::not_stored) it stays where it is.
    pub(in crate::delivery) fn begin_store(&self) -> Option<Batch> {
        let mut state = self.state.lock();
        let desk = state.desk.as_mut()?;
        let batch = desk.front()?.batch.clone();
        desk.is_storing = true;
        Some(batch)
    }

    /// The batch is in the spool.
    pub(in crate::delivery) fn stored(&self) {
        let mut state = self.state.lock();
        let Some(desk) = state.desk.as_mut() else { return };
        desk.is_storing = false;
        desk.is_failing = false;
        desk.has_unread = true;
        if let Some(Staged { waiter: Some(waiter), .. }) = desk.pop_front() {
            let _ = waiter.send(Ok(()));
        }
    }

    /// The batch can't be stored now. Says whether another one may be tried: this one was handed back for that reason, or
    /// goes out from memory since nothing older waits in the spool.
    pub(in crate::delivery) fn not_stored(&self, because: NotTaken) -> bool {
        let mut state = self.state.lock();
        let State { desk: Some(desk), queue, tally, .. } = &mut *state else { return false };
        desk.is_storing = false;
        desk.is_failing = true;
        let Some(front) = desk.front() else { return false };
        let goes_on = if front.waiter.is_some() {
            if let Some(staged) = desk.pop_front() {
                tally.handed_back(staged.batch.items);
                if let Some(waiter) = staged.waiter {
                    let _ = waiter.send(Err(because));
                }
            }
            true
        } else if !desk.has_unread && (queue.len() < MIN_WINDOW || queue.has_room_for(&front.batch)) {
            if let Some(staged) = desk.pop_front() {
                queue.push(staged.batch);
            }
            true
        } else {
            false
        };
        drop(state);
        if goes_on {
            self.settled.send_replace(());
            self.work.notify_one();
        }
        goes_on
    }

    /// Whether delivery wants another record of the spool.
    pub(in crate::delivery) fn wants_more(&self, now: Instant) -> bool {
        let state = self.state.lock();
        let (queue, limit) = (&state.queue, state.queue.budget());
        let has_room = queue.len() < MIN_WINDOW
            || queue.cost() < limit / 4
            // All that was read stepped aside: others must not wait for it.
            || (queue.cost() < limit / 2 && !queue.has_due(now));
        state.desk.as_ref().is_some_and(|desk| desk.has_unread) && has_room
    }

    /// A record came back from the spool.
    pub(in crate::delivery) fn load(&self, batch: Batch) {
        let mut state = self.state.lock();
        if let Some(desk) = &mut state.desk {
            desk.last_read = batch.number;
        }
        state.queue.push(batch);
        drop(state);
        self.work.notify_one();
    }

    /// There is nothing in the spool that was not read.
    pub(in crate::delivery) fn nothing_unread(&self) {
        if let Some(desk) = &mut self.state.lock().desk {
            desk.has_unread = false;
        }
        self.settled.send_replace(());
    }

    /// The next batch that is done with. It stays until [`acknowledged`](Self::acknowledged).
    pub(in crate::delivery) fn next_settled(&self) -> Option<Settled> {
        self.state.lock().desk.as_ref()?.first_settled()
    }

    /// The spool forgot the batch. `was_waiting`: it had not given it up before.
    pub(in crate::delivery) fn acknowledged(&self, settled: &Settled, was_waiting: bool) {
        let mut state = self.state.lock();
        if was_waiting {
            match settled.dropped {
                None => state.tally.delivered(settled.items),
                Some(reason) => state.tally.gave_up(settled.items, reason),
            }
        }
        if let Some(desk) = &mut state.desk {
            desk.forget_first_settled();
        }
        drop(state);
        self.settled.send_replace(());
    }

    /// The spool gave up items, and `is_gone` tells which of its records. What was delivered before is counted as that. What is
    /// under way may arrive, and counts as dropped all the same: if it does not, and the process ends, nobody is left to count.
    pub(in crate::delivery) fn spool_dropped(&self, cause: DropCause, items: u64, is_gone: impl Fn(&Position) -> bool) {
        let mut state = self.state.lock();
        let State { queue, desk: Some(desk), tally, lacks_credential, .. } = &mut *state else { return };
        let items = if cause == DropCause::Damaged {
            items
        } else {
            let delivered = desk.give_up(&is_gone);
            tally.delivered(delivered);
            // Causes are told one by one, and records of all may be gone already.
            desk.excused += delivered;
            queue.give_up(&is_gone);
            let excused = desk.excused.min(items);
            desk.excused -= excused;
            items - excused
        };
        let reason = match cause {
            DropCause::Damaged => DropReason::Damaged,
            _ if *lacks_credential => DropReason::NoCredential,
            DropCause::SpoolFull => DropReason::SpoolFull,
            DropCause::TooOld => DropReason::TooOld,
        };
        tally.gave_up(items, reason);
        let told = state.losses.count(items, Instant::now());
        drop(state);
        self.settled.send_replace(());
        self.tell_losses(told);
    }

    /// How long ago a batch was made, as the spool's records have it.
    pub(in crate::delivery) fn born(&self, record: &Record, now_unix_ms: u64) -> Instant {
        let now = Instant::now();
        let age = Duration::from_millis(now_unix_ms.saturating_sub(record.created_unix_ms));
        now.checked_sub(age).unwrap_or(now)
    }

    /// The lane of the spool. There is none for spans.
    pub(in crate::delivery) const fn spool_signal(&self) -> Option<SpoolSignal> {
        match self.signal {
            telemetry_proto::Signal::Metrics => Some(SpoolSignal::Metrics),
            telemetry_proto::Signal::Logs => Some(SpoolSignal::Logs),
            telemetry_proto::Signal::Traces => None,
        }
    }
}
