//! What writers, delivery and the client share about one signal.
//!
//! Invariants, under the one lock:
//! - `written = delivered + dropped + waiting`, in items;
//! - `waiting` is what the open batch and the queue hold, the batch under way among it;
//! - the queue and the open batch together never exceed the memory budget.
//!
//! No event is emitted under the lock: the embedder's log may end in a writer of ours.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;
use telemetry_proto::{Clock, Signal};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use ulid::Ulid;

use super::accounting::{DropReason, Tally};
use super::batch::{Batch, BatchLimits, Frame, OpenBatch};
use super::notice::Notice;
use super::queue::Queue;
use crate::backoff::Jitter;

/// Settings of one signal.
#[derive(Debug, Clone)]
pub struct SignalSettings {
    /// When a batch is closed.
    pub batch: BatchLimits,
    /// Memory for all that waits, in bytes; at least four times the largest batch.
    pub max_memory: usize,
    /// How long an item may wait. 24 h.
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

/// Why a write was not taken. It is counted as dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotTaken {
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
    /// The item is larger than anything that the store takes.
    #[error("the item is larger than the store takes")]
    Oversize,
    /// As many items wait as may, and this signal drops the newest.
    #[error("too many items wait")]
    QueueFull,
    /// This signal is switched off. Nothing is counted.
    #[error("the coordinator does not take this signal")]
    Disabled,
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
}

struct State {
    open: OpenBatch,
    queue: Queue,
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
    ) -> Arc<Self> {
        let state = State {
            open: OpenBatch::default(),
            // The open batch has its share apart.
            queue: Queue::new(settings.max_memory - settings.batch.max_bytes),
            tally: Tally::default(),
            losses: Notice::default(),
            next_number: 0,
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
        })
    }

    pub(crate) const fn signal(&self) -> Signal {
        self.signal
    }

    pub(crate) fn tally(&self) -> Tally {
        self.state.lock().tally
    }

    /// What waits in closed batches, in bytes.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.state.lock().queue.cost()
    }
}

/// For writers.
impl Outbox {
    /// Takes one item, encoded: a line with its line feed, or what the frame goes around.
    pub(crate) fn push(&self, line: &[u8]) -> Result<Taken, NotTaken> {
        let limits = &self.settings.batch;
        if line.len() > limits.max_bytes {
            return Err(self.refuse(DropReason::Oversize, NotTaken::Oversize));
        }
        let now = Instant::now();
        let (mut displaced, mut wake) = (0, false);
        let told = {
            let mut state = self.state.lock();
            if state.closed {
                state.tally.refused(DropReason::Shutdown);
                return Err(NotTaken::Closed);
            }
            if !self.has_room(&state, line.len()) {
                state.tally.refused(DropReason::QueueFull);
                let told = state.losses.count(1, now);
                drop(state);
                self.tell_losses(told);
                return Err(NotTaken::QueueFull);
            }
            if state.open.would_burst(line.len(), limits) {
                displaced += self.close_open(&mut state);
                wake = true;
            }
            // The first line of a batch starts its age.
            wake |= state.open.is_empty();
            state.open.push(line, limits, now);
            state.tally.took();
            if state.open.is_full(limits) {
                displaced += self.close_open(&mut state);
                wake = true;
            }
            state.losses.count(displaced, now)
        };
        if wake {
            self.work.notify_one();
        }
        self.tell_losses(told);
        Ok(Taken { displaced })
    }

    /// Whether one more item may wait. Where the oldest goes for want of space, there always is room.
    fn has_room(&self, state: &State, item: usize) -> bool {
        match self.settings.keeping {
            Keeping::UntilDelivered => true,
            Keeping::OneAttempt { max_items } => {
                let bytes = state.queue.cost() + state.open.len() + item;
                state.tally.waiting < max_items && bytes <= self.settings.max_memory - self.settings.batch.max_bytes
            }
        }
    }

    /// Counts an item that is not even tried.
    pub(crate) fn refuse(&self, reason: DropReason, because: NotTaken) -> NotTaken {
        self.state.lock().tally.refused(reason);
        because
    }

    /// Closes the open batch, if there is one. Returns how many older items had to go.
    fn close_open(&self, state: &mut State) -> u64 {
        let Some(batch) = state.open.close(|| self.new_id(), state.next_number, self.frame.as_ref()) else { return 0 };
        state.next_number += 1;
        let mut displaced = 0;
        while self.keeps()
            && let Some(evicted) = state.queue.evict_for(&batch)
        {
            displaced += state.drop_batch(&evicted, DropReason::QueueFull);
        }
        state.queue.push(batch);
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
        if open_is_due && !state.queue.has_due(now) {
            expired += self.close_open(&mut state);
        }
        let expiry = state.queue.oldest_birth().and_then(|born| born.checked_add(self.settings.max_wait));
        let wakes = [state.open.due(&self.settings.batch), state.queue.next_due(), expiry];
        let has_due = state.queue.has_due(now);
        let told = state.losses.count(expired, now);
        drop(state);
        if expired > 0 {
            self.settled.send_replace(());
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
        if state.open.due(&self.settings.batch).is_some_and(|due| due <= now) {
            self.close_open(&mut state);
        }
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
            match dropped {
                None => state.tally.delivered(batch.items),
                Some(reason) => state.tally.gave_up(batch.items, reason),
            }
        }
        drop(state);
        self.settled.send_replace(());
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
        while self.state.lock().queue.oldest_number().is_some_and(|number| number < mark) {
            if settled.changed().await.is_err() {
                return;
            }
        }
    }

    /// Gives up all that is left. Returns how many items that were. Delivery must have ended.
    pub(crate) fn abandon(&self) -> u64 {
        let mut state = self.state.lock();
        let mut lost = 0;
        let open = state.open.close(|| self.new_id(), u64::MAX, None);
        while let Some(batch) = state.queue.pop() {
            lost += batch.items;
        }
        lost += open.map_or(0, |batch| batch.items);
        state.tally.gave_up(lost, DropReason::Shutdown);
        drop(state);
        self.settled.send_replace(());
        lost
    }
}

impl State {
    fn drop_batch(&mut self, batch: &Batch, reason: DropReason) -> u64 {
        let reason = if self.lacks_credential { DropReason::NoCredential } else { reason };
        self.tally.gave_up(batch.items, reason);
        batch.items
    }
}
