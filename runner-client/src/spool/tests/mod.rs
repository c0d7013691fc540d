//! What the spool promises, on real files.

mod basics;
mod damage;
mod full;
mod garbage;
mod kill;
mod model;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use tempfile::TempDir;
use ulid::Ulid;

use super::*;

const START_MS: u64 = 1_790_000_000_000;

/// A clock that stands until it is moved.
struct TestClock(AtomicU64);

impl TestClock {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(millis(by), Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// A folder, a clock and settings: small segments, and syncs only when they are asked for.
struct Bench {
    dir: TempDir,
    clock: Arc<TestClock>,
    config: SpoolConfig,
}

impl Bench {
    fn new() -> Self {
        // In memory where that can be had: the tests that go through every byte would wait for thousands of syncs.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let mut config = SpoolConfig::new(dir.path().join("spool"));
        config.segment_bytes = 64 * 1024;
        config.max_bytes = 16 * 1024 * 1024;
        config.sync = SyncPolicy { every_records: 1_000_000, every: Duration::from_secs(1_000_000) };
        Self { dir, clock: Arc::new(TestClock(AtomicU64::new(START_MS))), config }
    }

    fn open(&self) -> Spool {
        self.recover().0
    }

    fn recover(&self) -> (Spool, Recovery) {
        self.try_open().unwrap()
    }

    fn try_open(&self) -> Result<(Spool, Recovery), SpoolError> {
        Spool::open(self.config.clone(), Arc::clone(&self.clock) as Arc<dyn Clock>)
    }

    /// A spool with records `0..count` of `body_len` bytes, as a crash leaves it; each record has 10 items.
    fn fill(&self, signal: SpoolSignal, count: u64, body_len: usize) -> Vec<Position> {
        append(&mut self.open(), signal, 0..count, body_len)
    }

    fn folder(&self) -> &Path {
        &self.config.folder
    }

    /// The files of the spool: names and sizes.
    fn files(&self, extension: &str) -> BTreeMap<PathBuf, u64> {
        files(self.folder(), extension)
    }

    fn only_file(&self, extension: &str) -> PathBuf {
        let files = self.files(extension);
        assert_eq!(files.len(), 1, "{files:?}");
        files.into_keys().next().unwrap()
    }
}

fn files(folder: &Path, extension: &str) -> BTreeMap<PathBuf, u64> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let of_kind = entries.filter(|entry| entry.path().extension().is_some_and(|found| found == extension));
    of_kind.map(|entry| (entry.path(), entry.metadata().unwrap().len())).collect()
}

/// The record with a number: everything in it follows from signal, number and length.
fn record(signal: SpoolSignal, number: u64, body_len: usize) -> Record {
    let body: Vec<u8> = format!("{signal} {number} ").bytes().cycle().take(body_len).collect();
    Record {
        signal,
        batch_id: Ulid::from_parts(START_MS, number.into()),
        created_unix_ms: START_MS,
        items: 10,
        encoding: if number.is_multiple_of(2) { BodyEncoding::Identity } else { BodyEncoding::Gzip },
        extra: Bytes::from(number.to_string()),
        body: body.into(),
    }
}

/// Appends the records with these numbers.
fn append(spool: &mut Spool, signal: SpoolSignal, numbers: std::ops::Range<u64>, body_len: usize) -> Vec<Position> {
    numbers.map(|number| spool.append(&record(signal, number, body_len)).unwrap().position).collect()
}

/// The number of a record, after a look at whether it is what was appended.
fn number(stored: &Stored) -> u64 {
    let number = u64::try_from(stored.record.batch_id.random()).unwrap();
    let expected = record(stored.record.signal, number, stored.record.body.len());
    assert!(stored.record.body == expected.body && stored.record.extra == expected.extra, "{stored:?}");
    number
}

/// Everything that the spool hands out, by number.
fn drain(spool: &mut Spool, signal: SpoolSignal) -> Vec<u64> {
    drain_positions(spool, signal).into_iter().map(|(number, _)| number).collect()
}

fn drain_positions(spool: &mut Spool, signal: SpoolSignal) -> Vec<(u64, Position)> {
    std::iter::from_fn(|| spool.next(signal).unwrap()).map(|stored| (number(&stored), stored.position)).collect()
}

fn amount(records: u64, items: u64) -> Amount {
    Amount { records, items }
}

/// The sum of what was given up for a cause.
fn dropped(dropped: &[Dropped], cause: DropCause) -> Amount {
    let mut sum = Amount::default();
    dropped.iter().filter(|dropped| dropped.cause == cause).for_each(|dropped| sum.add(dropped.amount));
    sum
}
