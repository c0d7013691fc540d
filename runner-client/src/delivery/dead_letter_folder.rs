//! A bounded folder for batches that the relay will never accept, for people to look at.
//!
//! - A letter is one file: a line of JSON that says what, when and why, and behind it the body as it was sent. A token is in
//!   neither.
//! - A file has its name when it is whole and on the disk, and not before.
//! - Bytes, files and age are bounded; the oldest goes first. Other people's files are left alone and not counted.
//! - Delivery never waits for the disk: a thread writes, and what waits for it is bounded too. What is not kept is counted.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use telemetry_proto::Clock;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::timeout;

use super::dead_letter::{DeadLetters, Rejected};

/// Letters that may wait for the disk.
const MAX_WAITING: usize = 64;
/// What they may take in memory: two of the largest batches.
const MAX_WAITING_BYTES: u64 = 64 << 20;
/// How often what is too old is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The end of a letter's name.
const ENDING: &str = ".letter";
/// The end of the name of one that is being written.
const PARTIAL: &str = ".partial";

/// Settings of a folder for rejected batches.
#[derive(Debug, Clone)]
pub struct DeadLetterConfig {
    /// The folder. It is created if it is missing, for this user only.
    pub folder: PathBuf,
    /// The most that it takes on disk, in bytes. 64 MiB.
    pub max_bytes: u64,
    /// The most files. 1,000.
    pub max_files: usize,
    /// How long a letter is kept. 7 days.
    pub max_age: Duration,
}

impl DeadLetterConfig {
    /// The defaults, in this folder.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            max_bytes: 64 << 20,
            max_files: 1_000,
            max_age: Duration::from_secs(7 * 24 * 60 * 60),
        }
    }
}

/// The folder can't be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "the folder {} for rejected batches can't be written ({source}); give this user the right to write there, or name another folder",
    folder.display()
)]
pub struct DeadLetterError {
    /// The folder of the settings.
    pub folder: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// What became of rejected batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeadLetterStats {
    /// Letters in the folder.
    pub files: u64,
    /// What they take, in bytes.
    pub bytes: u64,
    /// Batches put aside since the start.
    pub kept: u64,
    /// Letters removed since the start, for want of space or for their age.
    pub removed: u64,
    /// Batches that could not be put aside.
    pub lost: u64,
}

/// Puts rejected batches into a folder.
pub struct DeadLetterFolder {
    letters: Mutex<Option<SyncSender<(Rejected, Bytes)>>>,
    waiting_bytes: Arc<AtomicU64>,
    meters: Meters,
    ended: watch::Receiver<()>,
}

impl std::fmt::Debug for DeadLetterFolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetterFolder").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl DeadLetterFolder {
    /// Opens the folder, removes what is too much or too old, and starts the thread that writes.
    ///
    /// # Errors
    /// The folder can't be created, read or written, or there is no thread.
    pub fn open(config: DeadLetterConfig, clock: Arc<dyn Clock>) -> Result<Arc<Self>, DeadLetterError> {
        let folder = config.folder.clone();
        Self::start(config, clock).map_err(|source| DeadLetterError { folder, source })
    }

    fn start(config: DeadLetterConfig, clock: Arc<dyn Clock>) -> io::Result<Arc<Self>> {
        let meters = Meters::default();
        let waiting_bytes = Arc::new(AtomicU64::new(0));
        let mut shelf = Shelf::open(config, clock, meters.clone())?;
        let (sender, letters) = sync_channel(MAX_WAITING);
        let (end, ended) = watch::channel(());
        let waiting = Arc::clone(&waiting_bytes);
        std::thread::Builder::new().name("telemetry-letters".to_owned()).spawn(move || {
            shelf.run(&letters, &waiting);
            drop(end);
        })?;
        Ok(Arc::new(Self { letters: Mutex::new(Some(sender)), waiting_bytes, meters, ended }))
    }

    /// What became of rejected batches.
    #[must_use]
    pub fn stats(&self) -> DeadLetterStats {
        self.meters.stats()
    }

    /// Adds the folder's metrics to the embedder's registry.
    pub fn register_metrics(&self, registry: &mut Registry) {
        let Meters { files, bytes, batches } = self.meters.clone();
        registry.register("telemetry_dead_letter_files", "Rejected batches in the folder for them", files);
        registry.register("telemetry_dead_letter_bytes", "What rejected batches take on disk", bytes);
        registry.register("telemetry_dead_letters", "Rejected batches by what became of them", batches);
    }

    /// Takes no more, and waits until what was taken is on the disk, for `within` at most. Call it after the client's own
    /// close.
    pub async fn close(&self, within: Duration) {
        self.letters.lock().take();
        let mut ended = self.ended.clone();
        let _ = timeout(within, async { while ended.changed().await.is_ok() {} }).await;
    }
}

impl DeadLetters for DeadLetterFolder {
    fn put_aside(&self, rejected: Rejected, body: Bytes) {
        let bytes = body.len() as u64;
        let before = self.waiting_bytes.fetch_add(bytes, Ordering::AcqRel);
        let letters = self.letters.lock();
        let has_room = before + bytes <= MAX_WAITING_BYTES;
        let is_taken = has_room && letters.as_ref().is_some_and(|letters| letters.try_send((rejected, body)).is_ok());
        if !is_taken {
            self.waiting_bytes.fetch_sub(bytes, Ordering::AcqRel);
            self.meters.count("lost", 1);
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Meters {
    files: Gauge,
    bytes: Gauge,
    batches: Family<[(&'static str, &'static str); 1], Counter>,
}

impl Meters {
    fn count(&self, outcome: &'static str, batches: u64) {
        self.batches.get_or_create(&[("outcome", outcome)]).inc_by(batches);
    }

    fn stats(&self) -> DeadLetterStats {
        let count = |outcome| self.batches.get_or_create(&[("outcome", outcome)]).get();
        DeadLetterStats {
            files: self.files.get().unsigned_abs(),
            bytes: self.bytes.get().unsigned_abs(),
            kept: count("kept"),
            removed: count("removed"),
            lost: count("lost"),
        }
    }
}

/// The first line of a letter.
#[derive(Serialize)]
struct Head<'a> {
    #[serde(with = "time::serde::rfc3339")]
    at: OffsetDateTime,
    signal: telemetry_proto::Signal,
    batch_id: String,
    items: u64,
    bytes: usize,
    encoding: &'static str,
    query: Option<&'a str>,
    status: u16,
    reason: Option<&'static str>,
}

/// The folder, for the thread.
struct Shelf {
    config: DeadLetterConfig,
    clock: Arc<dyn Clock>,
    meters: Meters,
    /// By name, which begins with the time: the oldest first.
    letters: BTreeMap<String, u64>,
    bytes: u64,
    is_failing: bool,
}

impl Shelf {
    fn open(config: DeadLetterConfig, clock: Arc<dyn Clock>, meters: Meters) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&config.folder)?;
        let probe = config.folder.join(format!("{}{PARTIAL}", std::process::id()));
        create(&probe)?;
        let mut letters = BTreeMap::new();
        for entry in fs::read_dir(&config.folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.ends_with(PARTIAL) {
                // Cut off by the end of a process.
                let _ = fs::remove_file(entry.path());
            } else if written_at(&name).is_some() && entry.file_type()?.is_file() {
                letters.insert(name, entry.metadata()?.len());
            }
        }
        let bytes = letters.values().sum();
        let mut shelf = Self { config, clock, meters, letters, bytes, is_failing: false };
        shelf.make_room(0);
        Ok(shelf)
    }

    fn run(&mut self, letters: &Receiver<(Rejected, Bytes)>, waiting_bytes: &AtomicU64) {
        loop {
            match letters.recv_timeout(LOOK_EVERY) {
                Ok((rejected, body)) => {
                    self.keep(&rejected, &body);
                    waiting_bytes.fetch_sub(body.len() as u64, Ordering::AcqRel);
                }
                Err(RecvTimeoutError::Timeout) => self.make_room(0),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn keep(&mut self, rejected: &Rejected, body: &[u8]) {
        match self.write(rejected, body) {
            Ok(()) => {
                self.is_failing = false;
                self.meters.count("kept", 1);
            }
            Err(error) => {
                self.meters.count("lost", 1);
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(%error, "a rejected batch could not be put aside");
                }
            }
        }
        self.show();
    }

    fn write(&mut self, rejected: &Rejected, body: &[u8]) -> io::Result<()> {
        let head = head_of(rejected)?;
        let size = (head.len() + body.len()) as u64;
        if size > self.config.max_bytes {
            return Err(io::Error::other("it is larger than the folder may be"));
        }
        self.make_room(size);
        let name = format!("{:013}-{}-{}{ENDING}", unix_ms(rejected.at), rejected.batch_id, rejected.signal);
        let (path, partial) = (self.config.folder.join(&name), self.config.folder.join(format!("{name}{PARTIAL}")));
        let written = (|| {
            let mut file = create(&partial)?;
            file.write_all(&head)?;
            file.write_all(body)?;
            file.sync_all()?;
            fs::rename(&partial, &path)
        })();
        if let Err(error) = written {
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
        self.bytes += size - self.letters.insert(name, size).unwrap_or_default();
        Ok(())
    }

    /// Removes the oldest until a letter of `size` fits, and what is too old in any case. 0: none is to come.
    fn make_room(&mut self, size: u64) {
        let more = usize::from(size > 0);
        let oldest_kept = unix_ms(self.clock.now()).saturating_sub(millis(self.config.max_age));
        while let Some((name, bytes)) = self.letters.first_key_value() {
            let is_old = written_at(name).is_some_and(|at| at < oldest_kept);
            let is_full =
                self.letters.len() + more > self.config.max_files || self.bytes + size > self.config.max_bytes;
            if !is_old && !is_full {
                break;
            }
            let (path, bytes) = (self.config.folder.join(name), *bytes);
            // Somebody else may have removed it.
            let _ = fs::remove_file(path);
            self.letters.pop_first();
            self.bytes -= bytes;
            self.meters.count("removed", 1);
        }
        self.show();
    }

    fn show(&self) {
        self.meters.files.set(i64::try_from(self.letters.len()).unwrap_or(i64::MAX));
        self.meters.bytes.set(i64::try_from(self.bytes).unwrap_or(i64::MAX));
    }
}

fn head_of(rejected: &Rejected) -> io::Result<Vec<u8>> {
    let mut head = serde_json::to_vec(&Head {
        at: rejected.at.into(),
        signal: rejected.signal,
        batch_id: rejected.batch_id.to_string(),
        items: rejected.items,
        bytes: rejected.bytes,
        encoding: rejected.encoding.as_str(),
        query: rejected.query.as_deref(),
        status: rejected.status,
        reason: rejected.reason.map(|reason| reason.as_str()),
    })?;
    head.push(b'\n');
    Ok(head)
}

/// For this user only: a batch may hold what is nobody else's business.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// The time in a letter's name. `None`: it is no letter.
fn written_at(name: &str) -> Option<u64> {
    name.strip_suffix(ENDING)?.split_once('-')?.0.parse().ok()
}

fn unix_ms(at: SystemTime) -> u64 {
    millis(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
