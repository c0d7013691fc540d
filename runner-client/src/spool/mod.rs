//! Batches that wait on disk, through crash, power loss and restart.
//!
//! The spool is synchronous and single-threaded on purpose: every call may wait for the disk. Whoever uses it from async
//! code gives it a thread of its own.
//!
//! # What it promises
//!
//! 1. A record comes back as it was appended, byte for byte, or not at all. Per signal, records come in the order in
//!    which they were appended.
//! 2. What [`append`](Spool::append) took is there after the process ended at any point (kill -9). What was forced to the
//!    disk is there after a power loss: all but the last `every_records - 1` records, and all that is older than `every`,
//!    if [`maintain`](Spool::maintain) is called that often ([`SyncPolicy`]). That is the window of loss.
//! 3. What was acknowledged is not handed out again: not by this process, and not after it ended at any point. After a
//!    power loss what was acknowledged in the last `every` may be; batch IDs make that harmless.
//! 4. A torn tail, a flipped bit or a block that can't be read loses the records that it touches and no others; whatever
//!    is in the folder, the start succeeds, in bounded time.
//! 5. Per signal, in records and in items, at any moment: found at the start + appended = acknowledged + dropped +
//!    waiting. Each drop has a cause and is told once, by [`take_dropped`](Spool::take_dropped).
//! 6. Segments and acknowledgements never take more than `max_bytes`. A full disk is the same as reaching that. A segment
//!    is deleted when nothing in it waits: the folder shrinks.
//! 7. A flood of one signal does not push out the other: room is made where most is taken.
//! 8. Memory is a constant per segment, a bit per record of a segment that is partly acknowledged, and the one record that
//!    is being read. It does not grow with the records that wait.
//! 9. One process at a time; folder 0700, files 0600. There is no place for a token in a record.
//! 10. Files of a newer format stop the start, and nothing is deleted or renamed then.
//!
//! A model-based test (`tests/model.rs`) drives random operations, crashes and damage against these.
//!
//! # Why a format of our own
//!
//! No kept crate meets all of that: redb's file does not shrink, and it wants a transaction per sync; fjall spreads a
//! record over a journal and tables, and a flipped bit in either is an error of the whole store; yaque never syncs; okaywal
//! says itself that it is not for production. A log of segments is small, and twice as fast.
//!
//! Each signal has segments of its own, so that one that is not wanted now does not hold up the space of the other. The
//! bytes are described in `format.rs`.

mod acks;
mod aside;
mod config;
mod disk;
mod error;
mod folder;
mod format;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod lane;
mod record;
mod recovery;
mod scan;
mod segment;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use telemetry_proto::Clock;

use self::folder::Folder;
use self::format::RECORD_HEADER_LEN;
use self::lane::Lane;

pub use self::config::{SpoolConfig, SyncPolicy, WhenFull};
pub use self::error::{AppendError, ReadError, SpoolError, SyncError};
pub use self::record::{
    Amount, BodyEncoding, DropCause, Dropped, MAX_EXTRA_BYTES, MAX_RECORD_BODY_BYTES, PerSignal, Position, Record,
    SpoolSignal, Stored,
};
pub use self::recovery::{Recovery, SetAside};

/// Batches that wait on disk. See the [module](self) for what it promises.
///
/// Dropping it is as safe as a crash of the process, and as quick. [`close`](Self::close) leaves everything on the disk
/// and spares the next start a search.
pub struct Spool {
    config: SpoolConfig,
    clock: Arc<dyn Clock>,
    folder: Arc<Folder>,
    lanes: PerSignal<Lane>,
    /// When the oldest record or acknowledgement was written that was not forced to the disk.
    unsynced_since: Option<u64>,
    /// Whether the last sync that nobody asked for failed.
    is_sync_failing: bool,
}

/// What became of an append that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Where the record is.
    pub position: Position,
    /// Whether it is on the disk already. If not, it is in the window that the [`SyncPolicy`] leaves open.
    pub is_synced: bool,
}

/// How the spool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpoolStats {
    /// What waits to be acknowledged.
    pub waiting: PerSignal<Amount>,
    /// The disk that it takes at most, in bytes.
    pub bytes: u64,
    /// How many segments there are.
    pub segments: usize,
    /// When the oldest segment's oldest record was made, in milliseconds since 1970.
    pub oldest_unix_ms: Option<u64>,
    /// Records that were not forced to the disk yet.
    pub unsynced_records: u64,
    /// Whether there are acknowledgements that were not forced to the disk yet.
    pub has_unsynced_acknowledgements: bool,
    /// Records that wait and could not be forced to the disk: a power loss takes them.
    pub records_at_risk: u64,
}

impl Spool {
    /// Opens the spool in a folder, and says what was found there.
    ///
    /// # Errors
    /// [`SpoolError`] when the folder can't be used, or holds a newer format. Damage is no error.
    pub fn open(config: SpoolConfig, clock: Arc<dyn Clock>) -> Result<(Self, Recovery), SpoolError> {
        config.validate()?;
        let folder = Arc::new(Folder::take(&config.folder)?);
        let (found, mut recovery) = recovery::recover(&folder, config.max_set_aside_bytes, unix_ms(&*clock))?;
        let lane = |signal, found| Lane::new(signal, &folder, config.segment_bytes, found);
        let lanes =
            PerSignal { metrics: lane(SpoolSignal::Metrics, found.metrics), logs: lane(SpoolSignal::Logs, found.logs) };
        let unsynced_since = Some(unix_ms(&*clock));
        let mut spool = Self { config, clock, folder, lanes, unsynced_since, is_sync_failing: false };
        recovery.lost = spool.take_dropped();
        recovery.waiting = spool.stats().waiting;
        Ok((spool, recovery))
    }

    /// The folder of the settings.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Adds a record behind all others of its signal. What had to go for it is told by
    /// [`take_dropped`](Self::take_dropped).
    ///
    /// # Errors
    /// [`AppendError`]: nothing of the record is in the spool.
    pub fn append(&mut self, record: &Record) -> Result<Appended, AppendError> {
        let record_len = self.check_size(record)?;
        let now = unix_ms(&*self.clock);
        let position = loop {
            let lane = self.lanes.get(record.signal);
            if self.bytes() + lane.growth(record_len) <= self.config.max_bytes {
                match self.lanes.get_mut(record.signal).append(record, now) {
                    Ok(position) => break position,
                    Err(error) if disk::is_full(&error) => {}
                    Err(error) => return Err(AppendError::Io(error)),
                }
            }
            if !self.make_room(record.signal) {
                return Err(AppendError::Full);
            }
        };
        self.unsynced_since.get_or_insert(now);
        let unsynced: u64 = self.lanes.values().map(Lane::unsynced).sum();
        let synced =
            if unsynced >= self.config.sync.every_records { self.sync_records() } else { self.sync_if_due(now) };
        let synced = self.warn_once(synced);
        Ok(Appended { position, is_synced: synced && self.lanes.get(record.signal).is_synced(&position) })
    }

    /// The next record of a signal that was not handed out since the start or the last [`rewind`](Self::rewind), and was
    /// not acknowledged; `None` if there is none now. Records that are too old or damaged are passed over and counted.
    ///
    /// # Errors
    /// [`ReadError`]: try again later. When the same place fails again and again, what is there counts as damaged, so that
    /// this ends.
    pub fn next(&mut self, signal: SpoolSignal) -> Result<Option<Stored>, ReadError> {
        let cutoff = self.cutoff();
        let lane = self.lanes.get_mut(signal);
        lane.expire(cutoff);
        lane.next(cutoff)
    }

    /// Hands out everything again that was not acknowledged, from the oldest on.
    pub const fn rewind(&mut self, signal: SpoolSignal) {
        self.lanes.get_mut(signal).rewind();
    }

    /// Reads a record once more; `None` if it does not wait any more or is damaged now.
    ///
    /// # Errors
    /// [`ReadError`]: try again later.
    pub fn read(&mut self, position: &Position) -> Result<Option<Stored>, ReadError> {
        self.lanes.get_mut(position.signal()).read(position)
    }

    /// The batch is settled: forget it. In any order. Says whether it was still waiting; if it was not, it was
    /// acknowledged before or counted as dropped, and must not be counted again.
    pub fn acknowledge(&mut self, position: &Position) -> bool {
        let now = unix_ms(&*self.clock);
        let was_waiting = self.lanes.get_mut(position.signal()).acknowledge(position);
        self.unsynced_since.get_or_insert(now);
        let synced = self.sync_if_due(now);
        self.warn_once(synced);
        was_waiting
    }

    /// Whether the record's place is still there: not once its segment was given up, or was deleted since nothing in it waits.
    #[must_use]
    pub fn holds(&self, position: &Position) -> bool {
        self.lanes.get(position.signal()).holds(position)
    }

    /// Waits until all records and acknowledgements are on the disk.
    ///
    /// # Errors
    /// [`SyncError`] as long as records wait that are not known to be on the disk.
    pub fn sync(&mut self) -> Result<(), SyncError> {
        let records = self.sync_records();
        let acks = self.lanes.values_mut().map(Lane::sync_acks).fold(Ok(()), Result::and);
        let folder = self.folder.sync();
        records?;
        acks.and(folder).map_err(|source| SyncError { records: 0, source })?;
        self.unsynced_since = None;
        Ok(())
    }

    /// What falls due with time: syncs, gives up what is too old, and deletes segments that are empty. Call it about as
    /// often as [`SyncPolicy::every`] says.
    ///
    /// # Errors
    /// [`SyncError`] as for [`sync`](Self::sync).
    pub fn maintain(&mut self) -> Result<(), SyncError> {
        let (now, cutoff) = (unix_ms(&*self.clock), self.cutoff());
        for lane in self.lanes.values_mut() {
            lane.expire(cutoff);
            lane.retire_idle();
        }
        self.sync_if_due(now)
    }

    /// What was given up since the last call, by signal and cause.
    pub fn take_dropped(&mut self) -> Vec<Dropped> {
        let mut dropped = Vec::new();
        for signal in SpoolSignal::ALL {
            let lane = self.lanes.get_mut(signal).take_dropped();
            dropped.extend(lane.map(|(cause, amount)| Dropped { signal, cause, amount }));
        }
        dropped
    }

    /// How the spool is now.
    #[must_use]
    pub fn stats(&self) -> SpoolStats {
        let lanes = || self.lanes.values();
        SpoolStats {
            waiting: PerSignal { metrics: self.lanes.metrics.waiting(), logs: self.lanes.logs.waiting() },
            bytes: self.bytes(),
            segments: lanes().map(|lane| lane.segments().count()).sum(),
            oldest_unix_ms: lanes().filter_map(Lane::oldest_unix_ms).min(),
            unsynced_records: lanes().map(Lane::unsynced).sum(),
            has_unsynced_acknowledgements: lanes().any(Lane::has_unsynced_acks),
            records_at_risk: lanes().map(Lane::at_risk).sum(),
        }
    }

    /// Leaves everything on the disk, in such a way that the next start has nothing to search.
    ///
    /// # Errors
    /// [`SyncError`] as for [`sync`](Self::sync). The spool is closed all the same.
    pub fn close(mut self) -> Result<(), SyncError> {
        let sealed = self.lanes.values_mut().map(Lane::close).fold(Ok(()), Result::and);
        self.sync()?;
        sealed.map_err(|source| SyncError { records: 0, source })
    }

    fn check_size(&self, record: &Record) -> Result<u64, AppendError> {
        let (extra, body) = (record.extra.len() as u64, record.body.len() as u64);
        let record_len = RECORD_HEADER_LEN + extra + body;
        for (bytes, limit) in [
            (extra, MAX_EXTRA_BYTES as u64),
            (body, MAX_RECORD_BODY_BYTES),
            (record_len, self.config.max_record_bytes()),
        ] {
            if bytes > limit {
                return Err(AppendError::TooLarge { bytes, limit });
            }
        }
        Ok(record_len)
    }

    /// Gives up a segment: of the signal that takes most, or else of the one that needs the room. Says whether one could
    /// be given up.
    fn make_room(&mut self, signal: SpoolSignal) -> bool {
        let largest =
            SpoolSignal::ALL.into_iter().max_by_key(|other| (self.lanes.get(*other).bytes(), *other == signal));
        let may_drop = |signal: &SpoolSignal| *self.config.when_full.get(*signal) == WhenFull::DropOldest;
        let candidates = largest.into_iter().chain([signal]).filter(may_drop);
        for candidate in candidates {
            if self.lanes.get_mut(candidate).drop_oldest(DropCause::SpoolFull) {
                return true;
            }
        }
        false
    }

    fn bytes(&self) -> u64 {
        self.lanes.values().map(Lane::bytes).sum()
    }

    /// What was made before this is too old, in milliseconds since 1970.
    fn cutoff(&self) -> u64 {
        unix_ms(&*self.clock).saturating_sub(millis(self.config.max_age))
    }

    fn sync_if_due(&mut self, now_unix_ms: u64) -> Result<(), SyncError> {
        let every = millis(self.config.sync.every);
        // A clock that was set back counts as well: no window stays open because of it.
        if self.unsynced_since.is_none_or(|since| now_unix_ms.abs_diff(since) < every) {
            return Ok(());
        }
        // If it fails, the next attempt is as far away.
        self.unsynced_since = Some(now_unix_ms);
        self.sync()
    }

    /// For calls that succeed all the same. Says whether there was nothing to warn of.
    fn warn_once(&mut self, synced: Result<(), SyncError>) -> bool {
        let was_failing = std::mem::replace(&mut self.is_sync_failing, synced.is_err());
        if let Err(SyncError { records, source }) = &synced
            && !was_failing
        {
            tracing::warn!(error = %source, records, "the spool can't be forced to the disk");
        }
        synced.is_ok()
    }

    fn sync_records(&mut self) -> Result<(), SyncError> {
        let synced = self.lanes.values_mut().map(Lane::sync_records).fold(Ok(()), Result::and);
        let synced = synced.and_then(|()| self.folder.sync());
        let records = self.lanes.values().map(Lane::at_risk).sum();
        match synced {
            Ok(()) if records == 0 => Ok(()),
            Ok(()) => Err(SyncError { records, source: std::io::Error::other("an earlier attempt failed") }),
            Err(source) => Err(SyncError { records, source }),
        }
    }
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spool").field("folder", &self.folder()).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

fn unix_ms(clock: &dyn Clock) -> u64 {
    millis(clock.now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
