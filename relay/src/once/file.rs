//! The file that keeps acknowledged batch IDs while the relay is stopped.
//!
//! It is written once, at the end, and not now and then: a batch comes twice because the answer to it was on its way when the relay
//! died, and that was within the last seconds. What an older file knows does not help there, and to write 500,000 IDs again and
//! again costs 12.5 MB each time. A relay that is killed forgets, as the documents say.
//!
//! It stays when it was read: its IDs are as true after a kill as before, and each is forgotten at its own time.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::format::{self, Acknowledged, FormatError};

const NAME: &str = "batch-ids";
/// Where a file goes that can't be read, so that nothing of anyone's is overwritten.
const ASIDE: &str = "batch-ids.unreadable";
/// Written and removed, to find out early whether the folder can be written to.
const PROBE: &str = "batch-ids.probe";

/// What to do about a folder that can't be used.
pub(crate) const FOLDER_REMEDY: &str = "make the folder, let the relay's user read and write it (StateDirectory= in a systemd unit does both), and see that its disk has room";

/// Only the relay's user is to know who runs and when it wrote.
const MODE: u32 = 0o600;

/// Batch IDs that could not be read or written. The relay works without them.
#[derive(Debug, thiserror::Error)]
pub enum BatchIdError {
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is larger than all that may be remembered.
    #[error("it has {bytes} bytes, and {max} hold all that is remembered")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The largest that is read.
        max: u64,
    },
    /// Something else stands in its place.
    #[error("it is no regular file")]
    NoFile,
    /// It is not what a relay writes.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The disk did not take them in time.
    #[error("the disk did not take them within {} s", .0.as_secs())]
    Slow(Duration),
}

impl BatchIdError {
    /// What to do.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Io(_) => FOLDER_REMEDY,
            Self::TooLarge { .. } | Self::NoFile | Self::Format(FormatError::Foreign) => {
                "see what else writes into the folder, and give the relay one of its own"
            }
            Self::Format(FormatError::Newer(_)) => "none is needed after a downgrade: what it remembers ends by itself",
            Self::Format(FormatError::Damaged) => "none is needed once; if it comes again, look at the disk",
            Self::Slow(_) => "look at the disk of the folder",
        }
    }

    /// Whether the file itself is of no use, and not only out of reach.
    const fn is_unreadable(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::NoFile | Self::Format(_))
    }
}

/// The file, in a folder of the relay's own.
#[derive(Debug, Clone)]
pub(crate) struct BatchIdFile {
    path: PathBuf,
}

impl BatchIdFile {
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self { path: folder.join(NAME) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Finds out whether it could be written.
    pub(crate) fn probe(&self) -> io::Result<()> {
        let probe = self.path.with_file_name(PROBE);
        telemetry_certs::write_atomically(&probe, "", MODE)?;
        fs::remove_file(probe)
    }

    /// Reads at most `max` IDs, the youngest, with their ages at `now`, from the oldest. Without a file there are none.
    pub(super) fn read(&self, max: usize, now: SystemTime) -> Result<Vec<Acknowledged>, BatchIdError> {
        let bytes = match self.read_bytes(format::max_len(max)) {
            Err(BatchIdError::Io(error)) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            bytes => bytes?,
        };
        let (written_at_ms, mut ids) = format::decode(&bytes, max)?;
        // Where the clock was set back nobody knows how long it was. It counts as nothing: what is remembered for too long ends
        // an hour of the running relay later, and does no harm until then.
        let since = Duration::from_millis(unix_ms(now).saturating_sub(written_at_ms));
        ids.iter_mut().for_each(|id| id.age = id.age.saturating_add(since));
        Ok(ids)
    }

    fn read_bytes(&self, max: u64) -> Result<Vec<u8>, BatchIdError> {
        // Before it is opened: to open a pipe would wait for whoever writes to it.
        let metadata = fs::metadata(&self.path)?;
        if !metadata.is_file() {
            return Err(BatchIdError::NoFile);
        }
        let mut bytes = Vec::new();
        if metadata.len() <= max {
            // It may have grown meanwhile.
            File::open(&self.path)?.take(max + 1).read_to_end(&mut bytes)?;
        }
        let len = metadata.len().max(bytes.len() as u64);
        if len > max { Err(BatchIdError::TooLarge { bytes: len, max }) } else { Ok(bytes) }
    }

    /// Moves it out of the way if it is of no use. Says where to.
    pub(super) fn set_aside(&self, error: &BatchIdError) -> Option<PathBuf> {
        let aside = self.path.with_file_name(ASIDE);
        (error.is_unreadable() && fs::rename(&self.path, &aside).is_ok()).then_some(aside)
    }

    /// Replaces it: whoever reads finds the old content or the new, also after a crash.
    pub(super) fn write(&self, content: &[u8]) -> io::Result<()> {
        telemetry_certs::write_atomically(&self.path, content, MODE)
    }
}

pub(super) fn unix_ms(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}
