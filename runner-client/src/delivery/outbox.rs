//! What writers, delivery and the client share about one signal.
//!
//! Invariants, under the one lock:
//! - `written = delivered + dropped + waiting`, in items;
//! - `waiting` is what the open batch and the queue hold, the batch under way among it;
//! - the queue and the open batch together never exceed the memory budget.
//!
//! With a spool (see `outbox/desk.rs`) closed batches are staged for it, and the queue is the window of what was read back
//! from it.
//!
//! No event is emitted under the lock: the embedder's log may end in a writer of ours.

mod desk;
mod keeping;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use telemetry_proto::{Clock, Signal};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use ulid::Ulid;

use self::desk::{Desk, Staged};
use super::accounting::{DropReason, Tally};
use super::batch::{Batch, BatchLimits, Frame, OpenBatches, Stream};
use super::keeper::Bell;
use super::notice::Notice;
use super::queue::{self, Queue};
use crate::backoff::Jitter;
use crate::spool::BodyEncoding;

/// Settings of one signal.
#[derive(Debug, Clone)]
pub struct SignalSettings {
    /// When a batch is closed.
    pub batch: BatchLimits,
    /// Memory for all that waits, in bytes; at least four times the largest batch.
    pub max_memory: usize,
    /// How long an item may wait. 24 h. With a spool its age limit holds instead.
    pub max_wait: Duration,
    /// What becomes of what can't be delivered now.
    pub keeping: Keeping,
}

/// What becomes of what can't be delivered now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeping {
    /// It waits; for want of space the oldest goes.
    UntilDelivered,
    /// It is dropped after one attempt, and so is what should have gone during the pause that follows. For want of space
    /// the newest goes.
    OneAttempt {
        /// How many items may wait.
        max_items: u64,
    },
}

impl SignalSettings {
    /// Batches of 1,000 points, 4 MiB or 5 s; 64 MiB of memory.
    #[must_use]
    pub const fn metrics() -> Self {
        Self::new(1_000, 4 << 20, Duration::from_secs(5))
    }

    /// Batches of 1,000 records, 1 MiB or 250 ms; 64 MiB of memory.
    #[must_use]
    pub const fn logs() -> Self {
        Self::new(1_000, 1 << 20, Duration::from_millis(250))
    }

    /// Batches of 512 spans, 2 MiB or 5 s; at most 2,048 spans and 8 MiB wait. What can't be delivered is dropped.
    #[must_use]
    pub const fn traces() -> Self {
        Self {
            max_memory: 8 << 20,
            keeping: Keeping::OneAttempt { max_items: 2_048 },
            ..Self::new(512, 2 << 20, Duration::from_secs(5))
        }
    }

    const fn new(max_items: u64, max_bytes: usize, max_age: Duration) -> Self {
        let batch = BatchLimits { max_items, max_bytes, max_age };
        Self {
            batch,
            max_memory: 64 << 20,
            max_wait: Duration::from_secs(24 * 60 * 60),
            keeping: Keeping::UntilDelivered,
        }
    }
}

/// A write was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// How many older items had to go to make room. They are counted as dropped.
    pub displaced: u64,
}

/// Why a write was not taken. It is counted as dropped, but for [`Full`](Self::Full) and [`TooMany`](Self::TooMany).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotTaken {
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
    /// The item is larger than anything that the store takes.
    #[error("the item is larger than the store takes")]
    Oversize,
    /// The value of the point is NaN, which the store would drop silently.
    #[error("the value is not a number")]
    NotANumber,
    /// As many items wait as may, and this signal drops the newest.
    #[error("too many items wait")]
    QueueFull,
    /// This signal is switched off. Nothing is counted.
    #[error("the coordinator does not take this signal")]
    Disabled,
    /// Only so many of the batch's items may wait beside those that do, and there is at least one such. Nothing is counted:
    /// whoever has the batch can divide it.
    #[error("only {room} items of the batch may wait now")]
    TooMany {
        /// So many.
        room: u64,
    },
    /// There is no room for the batch now. It is not counted: whoever has it keeps it and tries again.
    #[error("there is no room for the batch now")]
    Full,
}

/// Items in, batches out.
pub(crate) struct Outbox {
    signal: Signal,
    settings: SignalSettings,
    frame: Option<Frame>,
    clock: Arc<dyn Clock>,
    jitter: Arc<Jitter>,
    state: Mutex<State>,
    /// There may be something to do for delivery.
    work: Notify,
    /// Whoever waits for delivery wants an attempt now.
    hurry: Notify,
    /// Batches were settled.
    settled: watch::Sender<()>,
    /// Wakes the keeper of the spool, if there is a spool.
    bell: Option<Bell>,
    /// Whether batches are compressed when they are stored.
    gzips: AtomicBool,
}

struct State {
    open: OpenBatches,
    queue: Queue,
    desk: Option<Desk>,
    tally: Tally,
    losses: Notice,
    next_number: u64,
    lacks_credential: bool,
    closed: bool,
}

impl Outbox {
    pub(crate) fn new(
        signal: Signal,
        settings: SignalSettings,
        frame: Option<Frame>,
        clock: Arc<dyn Clock>,
        jitter: Arc<Jitter>,
        bell: Option<Bell>,
    ) -> Arc<Self> {
        // Open batches have their share apart.
        let open = if signal == Signal::Metrics { OpenBatches::MAX } else { 1 };
        let budget = settings.max_memory - open * settings.batch.max_bytes;
        let state = State {
            open: OpenBatches::default(),
            queue: Queue::new(budget),
            desk: bell.is_some().then(|| Desk::new(budget / 2)),
            tally: Tally::default(),
            losses: Notice::default(),
            // 0 is for batches of an earlier run.
            next_number: 1,
            lacks_credential: false,
            closed: false,
        };
        Arc::new(Self {
            signal,
            settings,
            frame,
            clock,
            jitter,
            state: Mutex::new(state),
            work: Notify::new(),
            hurry: Notify::new(),
            settled: watch::channel(()).0,
            bell,
            gzips: AtomicBool::new(false),
        })
    }

    pub(crate) const fn signal(&self) -> Signal {
        self.signal
    }

    pub(crate) fn tally(&self) -> Tally {
        self.state.lock().tally
    }

    /// The memory that closed batches take, in bytes.
    pub(crate) fn queued_bytes(&self) -> usize {
        let state = self.state.lock();
        state.queue.cost() + state.desk.as_ref().map_or(0, Desk::staged_cost)
    }

    pub(crate) fn set_gzip(&self, on: bool) {
        self.gzips.store(on, Ordering::Relaxed);
    }

    pub(super) fn gzips(&self) -> bool {
        self.gzips.load(Ordering::Relaxed)
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

/// For writers.
impl Outbox {
    /// Takes one item, encoded: a line with its line feed, or what the frame goes around.
    pub(crate) fn push(&self, line: &[u8]) -> Result<Taken, NotTaken> {
        self.push_to(Stream::Plain, line)
    }

    /// As [`push`](Self::push), for a stream; only metrics have another than the plain one.
    pub(crate) fn push_to(&self, stream: Stream, line: &[u8]) -> Result<Taken, NotTaken> {
        let limits = &self.settings.batch;
        if line.len() > limits.max_bytes {
            return Err(self.refuse(DropReason::Oversize, NotTaken::Oversize));
        }
        let now = Instant::now();
        let (mut displaced, mut wake) = (0, false);
        let told = {
            let mut state = self.state.lock();
            if state.closed {
                state.tally.refused(1, DropReason::Shutdown);
                return Err(NotTaken::Closed);
            }
            if !self.has_room(&state, line.len()) {
                state.tally.refused(1, DropReason::QueueFull);
                let told = state.losses.count(1, now);
                drop(state);
                self.tell_losses(told);
                return Err(NotTaken::QueueFull);
            }
            if state.open.of(stream).would_burst(line.len(), limits) {
                displaced += self.close_stream(&mut state, stream);
                wake = true;
            }
            // The first line of a batch starts its age.
            wake |= state.open.of(stream).is_empty();
            state.open.of(stream).push(line, limits, now);
            state.tally.took(1);
            if state.open.of(stream).is_full(limits) {
                displaced += self.close_stream(&mut state, stream);
                wake = true;
            }
            state.losses.count(displaced, now)
        };
        if wake {
            self.work.notify_one();
            self.ring();
        }
        self.tell_losses(told);
        Ok(Taken { displaced })
    }

    /// Whether one more item may wait. Where the oldest goes for want of space, there always is room.
    fn has_room(&self, state: &State, item: usize) -> bool {
        match self.settings.keeping {
            Keeping::UntilDelivered => true,
            Keeping::OneAttempt { .. } => {
                let bytes = state.queue.cost() + state.open.len() + item;
                self.room(&state.tally) > 0 && bytes <= self.settings.max_memory - self.settings.batch.max_bytes
            }
        }
    }

    /// How many more items may wait, by the count of those that do.
    const fn room(&self, tally: &Tally) -> u64 {
        match self.settings.keeping {
            Keeping::UntilDelivered => u64::MAX,
            Keeping::OneAttempt { max_items } => max_items.saturating_sub(tally.waiting),
        }
    }

    /// Takes bytes that are a batch already. Nothing older goes for it. With `confirm` and a spool the receiver resolves
    /// when the batch is stored, or is handed back.
    pub(crate) fn push_batch(
        &self,
        body: Bytes,
        items: u64,
        query: Option<Box<str>>,
        confirm: bool,
    ) -> Result<Option<oneshot::Receiver<Result<(), NotTaken>>>, NotTaken> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(NotTaken::Closed);
        }
        let (id, number, born) = (self.new_id(), state.next_number, Instant::now());
        let (encoding, stream) = (BodyEncoding::Identity, Stream::Plain);
        let batch = Batch { id, number, items, body, born, encoding, query, stream, position: None };
        let State { desk, queue, tally, .. } = &mut *state;
        let confirmation = match desk {
            None if queue::cost(&batch) > queue.budget() => return Err(NotTaken::Oversize),
            None if self.room(tally) == 0 => return Err(NotTaken::Full),
            None if self.room(tally) < items => return Err(NotTaken::TooMany { room: self.room(tally) }),
            None if !queue.has_room_for(&batch) => return Err(NotTaken::Full),
            None => {
                queue.push(batch);
                None
            }
            Some(desk) if !desk.has_room_for(&batch) => return Err(NotTaken::Full),
            Some(desk) => {
                let (sender, receiver) = oneshot::channel();
                desk.stage(Staged { batch, waiter: confirm.then_some(sender) });
                confirm.then_some(receiver)
            }
        };
        state.next_number += 1;
        state.tally.took(items);
        drop(state);
        self.work.notify_one();
        self.ring();
        Ok(confirmation)
    }

    /// Counts an item that is not even tried.
    pub(crate) fn refuse(&self, reason: DropReason, because: NotTaken) -> NotTaken {
        self.count_refused(1, reason);
        because
    }

    /// Counts items that are not even tried.
    pub(crate) fn count_refused(&self, items: u64, reason: DropReason) {
        self.state.lock().tally.refused(items, reason);
    }

    /// Closes what is open. Returns how many older items had to go.
    fn close_open(&self, state: &mut State) -> u64 {
        OpenBatches::STREAMS.into_iter().map(|stream| self.close_stream(state, stream)).sum()
    }

    /// Closes what is open and due. Returns how many older items had to go.
    fn close_due(&self, state: &mut State, now: Instant) -> u64 {
        let limits = &self.settings.batch;
        let mut displaced = 0;
        for stream in OpenBatches::STREAMS {
            if state.open.of(stream).due(limits).is_some_and(|due| due <= now) {
                displaced += self.close_stream(state, stream);
            }
        }
        displaced
    }

    fn close_stream(&self, state: &mut State, stream: Stream) -> u64 {
        let (number, frame) = (state.next_number, self.frame.as_ref());
        let Some(batch) = state.open.of(stream).close(stream, || self.new_id(), number, frame) else { return 0 };
        state.next_number += 1;
        let displaced = if state.desk.is_some() { state.stage(batch) } else { state.enqueue(batch, self.keeps()) };
        if displaced > 0 {
            self.settled.send_replace(());
        }
        displaced
    }

    fn new_id(&self) -> Ulid {
        let since = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ulid::from_parts(u64::try_from(since.as_millis()).unwrap_or_default(), self.jitter.bits())
    }

    fn tell_losses(&self, told: Option<u64>) {
        if let Some(items) = told {
            tracing::warn!(signal = %self.signal, items, "telemetry was dropped for want of space or time");
        }
    }
}

/// For delivery.
impl Outbox {
    /// Drops what is too old, and closes the open batch for its age if there is nothing to send before it. Returns when
    /// to look again, and whether there is something to send.
    pub(super) fn tidy(&self, now: Instant) -> (Option<Instant>, bool) {
        let mut state = self.state.lock();
        let mut expired = 0;
        while let Some(cutoff) = now.checked_sub(self.settings.max_wait)
            && let Some(batch) = state.queue.expire(cutoff)
        {
            expired += state.drop_batch(&batch, DropReason::TooOld);
        }
        let open_is_due = state.open.due(&self.settings.batch).is_some_and(|due| due <= now);
        // What goes to the spool does not wait for what is before it.
        if open_is_due && (state.desk.is_some() || !state.queue.has_due(now)) {
            expired += self.close_due(&mut state, now);
        }
        let expiry = state.queue.oldest_birth().and_then(|born| born.checked_add(self.settings.max_wait));
        let wakes = [state.open.due(&self.settings.batch), state.queue.next_due(), expiry];
        let has_due = state.queue.has_due(now);
        let told = state.losses.count(expired, now);
        drop(state);
        if expired > 0 {
            self.settled.send_replace(());
        }
        if expired > 0 || open_is_due {
            self.ring();
        }
        self.tell_losses(told);
        // What is past already is what `has_due` tells.
        (wakes.into_iter().flatten().filter(|wake| *wake > now).min(), has_due)
    }

    /// The batch to send now.
    pub(super) fn claim(&self) -> Option<Batch> {
        self.state.lock().queue.claim(Instant::now())
    }

    /// Whether what can't be delivered now is kept.
    pub(super) fn keeps(&self) -> bool {
        self.settings.keeping == Keeping::UntilDelivered
    }

    /// Drops all that should have gone by now, a claimed batch among it.
    pub(super) fn give_up_due(&self) {
        let now = Instant::now();
        let mut state = self.state.lock();
        self.close_due(&mut state, now);
        let mut lost = 0;
        while let Some(batch) = state.queue.pop() {
            lost += state.drop_batch(&batch, DropReason::Unreachable);
        }
        let told = state.losses.count(lost, now);
        drop(state);
        self.settled.send_replace(());
        self.tell_losses(told);
    }

    /// The claimed batch stays.
    pub(super) fn release(&self, suspect: bool) {
        self.state.lock().queue.release(suspect);
    }

    /// The claimed batch is done with: delivered, or dropped for a reason.
    pub(super) fn settle(&self, dropped: Option<DropReason>) {
        let mut state = self.state.lock();
        if let Some(batch) = state.queue.settle(Instant::now()) {
            match (batch.position, dropped) {
                (Some(position), _) => {
                    if let Some(desk) = &mut state.desk {
                        desk.settle(position, &batch, dropped);
                    }
                }
                (None, None) => state.tally.delivered(batch.items),
                (None, Some(reason)) => state.tally.gave_up(batch.items, reason),
            }
        }
        drop(state);
        self.settled.send_replace(());
        self.ring();
    }

    /// Says whether delivery stands still for want of a credential; what is dropped meanwhile is counted so.
    pub(super) fn set_lacks_credential(&self, lacks: bool) {
        self.state.lock().lacks_credential = lacks;
    }

    /// Resolves when there may be something to do.
    pub(super) async fn work(&self) {
        self.work.notified().await;
    }

    /// Resolves when someone waits for delivery.
    pub(super) async fn hurry(&self) {
        self.hurry.notified().await;
    }
}

/// For the client.
impl Outbox {
    /// Takes no more writes.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Asks for an attempt now, whatever pause there is; but what the relay asked for is kept.
    pub(crate) fn ask_to_hurry(&self) {
        self.hurry.notify_one();
    }

    /// Closes the open batch and waits until all that was written before is settled.
    pub(crate) async fn flush(&self) {
        let mut settled = self.settled.subscribe();
        let mark = {
            let mut state = self.state.lock();
            self.close_open(&mut state);
            state.next_number
        };
        self.ask_to_hurry();
        self.work.notify_one();
        self.ring();
        while self.state.lock().oldest_number().is_some_and(|number| number < mark) {
            if settled.changed().await.is_err() {
                return;
            }
        }
    }

    /// Stages the open batch, for the keeper's last turn.
    pub(super) fn stage_rest(&self) {
        self.close_open(&mut self.state.lock());
    }

    /// Whether batches are to be stored.
    pub(super) fn has_staged(&self) -> bool {
        self.state.lock().desk.as_ref().is_some_and(|desk| desk.front().is_some())
    }

    /// Gives up all that is left in memory only. Returns how many items that were. Delivery and keeper must have ended.
    pub(crate) fn abandon(&self) -> u64 {
        let mut state = self.state.lock();
        let mut lost = 0;
        let open = OpenBatches::STREAMS.map(|stream| {
            state.open.of(stream).close(stream, || self.new_id(), u64::MAX, None).map(|batch| batch.items)
        });
        while let Some(batch) = state.queue.pop() {
            lost += if batch.position.is_none() { batch.items } else { 0 };
        }
        while let Some(staged) = state.desk.as_mut().and_then(Desk::pop_front) {
            lost += staged.batch.items;
        }
        lost += open.into_iter().flatten().sum::<u64>();
        state.tally.gave_up(lost, DropReason::Shutdown);
        drop(state);
        self.settled.send_replace(());
        lost
    }
}

impl State {
    /// Queues the newest batch. Returns how many older items had to go.
    fn enqueue(&mut self, batch: Batch, keeps: bool) -> u64 {
        let mut displaced = 0;
        while keeps && let Some(evicted) = self.queue.evict_for(&batch) {
            displaced += self.drop_batch(&evicted, DropReason::QueueFull);
        }
        self.queue.push(batch);
        displaced
    }

    /// Stages the newest batch for the spool. Returns how many older items had to go.
    fn stage(&mut self, batch: Batch) -> u64 {
        let mut displaced = 0;
        while let Some(evicted) = self.desk.as_mut().and_then(|desk| desk.evict_for(&batch)) {
            let is_failing = self.desk.as_ref().is_some_and(|desk| desk.is_failing);
            if evicted.waiter.is_some() {
                self.tally.handed_back(evicted.batch.items);
            } else {
                let reason = if is_failing { DropReason::SpoolFull } else { DropReason::QueueFull };
                displaced += self.drop_batch(&evicted.batch, reason);
            }
        }
        if let Some(desk) = &mut self.desk {
            desk.stage(Staged { batch, waiter: None });
        }
        displaced
    }

    /// Gives a batch up; one of the spool is counted when the spool has forgotten it.
    fn drop_batch(&mut self, batch: &Batch, reason: DropReason) -> u64 {
        let reason = if self.lacks_credential { DropReason::NoCredential } else { reason };
        match (batch.position, &mut self.desk) {
            (Some(position), Some(desk)) => desk.settle(position, batch, Some(reason)),
            _ => self.tally.gave_up(batch.items, reason),
        }
        batch.items
    }

    fn oldest_number(&self) -> Option<u64> {
        let desk = self.desk.as_ref().and_then(Desk::oldest_number);
        [self.queue.oldest_number(), desk].into_iter().flatten().min()
    }
}
