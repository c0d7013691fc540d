//! The thread that has the spool: it stores what is staged, reads ahead for delivery, and acknowledges what is settled.
//!
//! One thread, since the spool is synchronous and every call may wait for the disk. Writers and delivery meet it only
//! under the short lock of an outbox.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, UNIX_EPOCH};

use bytes::{BufMut as _, Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use telemetry_proto::Clock;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::batch::{Batch, Stream};
use super::outbox::{NotTaken, Outbox};
use crate::spool::{AppendError, BodyEncoding, Record, Recovery, Spool, SpoolStats, Stored};

/// How long the thread rests at most.
const TICK: Duration = Duration::from_millis(500);
/// Batches that are stored before settled ones are looked at.
const STORED_PER_TURN: usize = 64;
/// Smaller bodies stay as they are: 1 KiB.
const WORTH_COMPRESSING: usize = 1024;
/// A query of a batch is stored up to this.
const MAX_QUERY_BYTES: usize = 768;
/// Where the numbers of a record's `extra` end, and the mark of its stream is. The query is behind that.
const NUMBERS: usize = 16;
/// The mark of a batch of the runner's own series; any other is none.
const OPERATIONAL: u8 = 1;

/// Wakes the keeper.
#[derive(Clone, Debug)]
pub(crate) struct Bell(SyncSender<()>);

impl Bell {
    pub(crate) fn new() -> (Self, Receiver<()>) {
        let (bell, rings) = sync_channel(1);
        (Self(bell), rings)
    }

    /// Never waits. One ring is enough for all that there is to do.
    pub(super) fn ring(&self) {
        let _ = self.0.try_send(());
    }
}

/// A running keeper.
pub(crate) struct KeeperHandle {
    bell: Bell,
    stop: Arc<AtomicBool>,
    stats: watch::Receiver<SpoolStats>,
}

impl KeeperHandle {
    /// Asks the keeper to store what is staged and to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Waits until the keeper has ended and the folder is free. Says whether it did in time.
    pub(super) async fn ended(&self, within: Duration) -> bool {
        let mut stats = self.stats.clone();
        let ended = async { while stats.changed().await.is_ok() {} };
        timeout(within, ended).await.is_ok()
    }

    pub(crate) fn stats(&self) -> SpoolStats {
        *self.stats.borrow()
    }
}

pub(super) struct Keeper {
    spool: Spool,
    outboxes: Vec<Arc<Outbox>>,
    clock: Arc<dyn Clock>,
    /// Tells the records of this run, whose numbers count, from those of an earlier one.
    run: u64,
    is_failing: bool,
}

impl Keeper {
    pub(super) fn new(
        spool: Spool,
        recovery: &Recovery,
        outboxes: Vec<Arc<Outbox>>,
        clock: Arc<dyn Clock>,
        run: u64,
    ) -> Self {
        let keeper = Self { spool, outboxes, clock, run, is_failing: false };
        for outbox in &keeper.outboxes {
            let Some(signal) = outbox.spool_signal() else { continue };
            let lost: u64 =
                recovery.lost.iter().filter(|lost| lost.signal == signal).map(|lost| lost.amount.items).sum();
            outbox.recovered(recovery.waiting.get(signal).items + lost);
        }
        for lost in &recovery.lost {
            keeper.count_dropped(*lost);
        }
        keeper
    }

    /// Starts the thread.
    pub(super) fn start(self, bell: Bell, rings: Receiver<()>) -> io::Result<KeeperHandle> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stats_sender, stats) = watch::channel(self.spool.stats());
        let handle = KeeperHandle { bell, stop: Arc::clone(&stop), stats };
        std::thread::Builder::new()
            .name("telemetry-spool".to_owned())
            .spawn(move || self.run(&rings, &stop, &stats_sender))?;
        Ok(handle)
    }

    fn run(mut self, rings: &Receiver<()>, stop: &AtomicBool, stats: &watch::Sender<SpoolStats>) {
        loop {
            // Before the turn, so that what was staged before it is stored.
            let is_last = stop.load(Ordering::Acquire);
            let is_busy = self.turn();
            stats.send_replace(self.spool.stats());
            if is_last && !(is_busy && self.has_staged()) {
                break;
            }
            if !is_busy && !is_last {
                let wake = self.stage_due();
                let rest = wake.map_or(TICK, |wake| wake.saturating_duration_since(Instant::now()).min(TICK));
                let _ = rings.recv_timeout(rest);
            }
        }
        let last = self.spool.stats();
        if let Err(error) = self.spool.close() {
            tracing::warn!(%error, "the spool was not forced to the disk at its end");
        }
        stats.send_replace(last);
    }

    /// One round. Says whether there is more to do now.
    pub(super) fn turn(&mut self) -> bool {
        let mut is_busy = false;
        for index in 0..self.outboxes.len() {
            let outbox = Arc::clone(&self.outboxes[index]);
            self.acknowledge(&outbox);
            is_busy |= self.store(&outbox);
            is_busy |= self.read_ahead(&outbox);
        }
        if let Err(error) = self.spool.maintain() {
            self.tell(&error);
        }
        for dropped in self.spool.take_dropped() {
            self.count_dropped(dropped);
        }
        is_busy
    }

    /// Stages open batches that are due. Returns when to look again.
    pub(super) fn stage_due(&self) -> Option<Instant> {
        let now = Instant::now();
        self.outboxes.iter().filter_map(|outbox| outbox.stage_due(now)).min()
    }

    fn has_staged(&self) -> bool {
        self.outboxes.iter().any(|outbox| outbox.has_staged())
    }

    fn acknowledge(&mut self, outbox: &Outbox) {
        while let Some(settled) = outbox.next_settled() {
            let was_waiting = self.spool.acknowledge(&settled.position);
            outbox.acknowledged(&settled, was_waiting);
        }
    }

    fn store(&mut self, outbox: &Outbox) -> bool {
        for _ in 0..STORED_PER_TURN {
            let Some(batch) = outbox.begin_store() else { return false };
            match self.append(outbox, batch) {
                Ok(()) => {
                    self.is_failing = false;
                    outbox.stored();
                }
                Err(error) => {
                    self.tell(&error);
                    let because = if error.is_retryable() { NotTaken::Full } else { NotTaken::Oversize };
                    if !outbox.not_stored(because) {
                        return false;
                    }
                }
            }
        }
        true
    }

    fn append(&mut self, outbox: &Outbox, batch: Batch) -> Result<(), AppendError> {
        let Some(signal) = outbox.spool_signal() else { return Err(AppendError::Full) };
        let batch = if outbox.gzips() { compressed(batch) } else { batch };
        let age = u64::try_from(batch.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        let record = Record {
            signal,
            batch_id: batch.id,
            created_unix_ms: self.now_unix_ms().saturating_sub(age),
            items: batch.items,
            encoding: batch.encoding,
            extra: self.extra(&batch),
            body: batch.body,
        };
        self.spool.append(&record).map(drop)
    }

    fn read_ahead(&mut self, outbox: &Outbox) -> bool {
        let Some(signal) = outbox.spool_signal() else { return false };
        let mut is_busy = false;
        while outbox.wants_more(Instant::now()) {
            match self.spool.next(signal) {
                Ok(Some(stored)) => {
                    outbox.load(self.batch(outbox, stored));
                    is_busy = true;
                }
                Ok(None) => outbox.nothing_unread(),
                Err(error) => {
                    self.tell(&error);
                    return false;
                }
            }
        }
        is_busy
    }

    fn batch(&self, outbox: &Outbox, Stored { position, record }: Stored) -> Batch {
        let (number, stream, query) = self.read_extra(&record.extra);
        Batch {
            id: record.batch_id,
            number,
            items: record.items,
            born: outbox.born(&record, self.now_unix_ms()),
            body: record.body,
            encoding: record.encoding,
            query,
            stream,
            position: Some(position),
        }
    }

    fn extra(&self, batch: &Batch) -> Bytes {
        let query = batch.query.as_deref().filter(|query| query.len() <= MAX_QUERY_BYTES).unwrap_or_default();
        let mut extra = BytesMut::with_capacity(NUMBERS + 1 + query.len());
        extra.put_u64(self.run);
        extra.put_u64(batch.number);
        extra.put_u8(if batch.stream == Stream::Operational { OPERATIONAL } else { 0 });
        extra.put_slice(query.as_bytes());
        extra.freeze()
    }

    /// The number, 0 for a batch of an earlier run, the stream and the query.
    fn read_extra(&self, extra: &[u8]) -> (u64, Stream, Option<Box<str>>) {
        let Some((numbers, [mark, query @ ..])) = extra.split_at_checked(NUMBERS) else {
            return (0, Stream::Plain, None);
        };
        let stream = if *mark == OPERATIONAL { Stream::Operational } else { Stream::Plain };
        let (run, number) = numbers.split_at(8);
        let is_ours = run == self.run.to_be_bytes();
        let number = number.try_into().map_or(0, u64::from_be_bytes);
        let query = std::str::from_utf8(query).ok().filter(|query| !query.is_empty());
        (if is_ours { number } else { 0 }, stream, query.map(Into::into))
    }

    fn count_dropped(&self, dropped: crate::spool::Dropped) {
        let lane = self.outboxes.iter().find(|outbox| outbox.spool_signal() == Some(dropped.signal));
        if let Some(outbox) = lane {
            outbox.spool_dropped(dropped.cause, dropped.amount.items, |position| !self.spool.holds(position));
        }
    }

    fn now_unix_ms(&self) -> u64 {
        let since = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn tell(&mut self, error: &dyn std::error::Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(%error, "the spool has trouble; what can't be stored waits in memory");
        }
    }
}

/// The batch with its body as gzip, if that is smaller.
fn compressed(batch: Batch) -> Batch {
    if batch.encoding != BodyEncoding::Identity || batch.body.len() < WORTH_COMPRESSING {
        return batch;
    }
    let mut encoder = GzEncoder::new(Vec::with_capacity(batch.body.len() / 4), Compression::fast());
    match encoder.write_all(&batch.body).and_then(|()| encoder.finish()) {
        Ok(body) if body.len() < batch.body.len() => Batch { body: body.into(), encoding: BodyEncoding::Gzip, ..batch },
        _ => batch,
    }
}

#[cfg(test)]
mod tests;
