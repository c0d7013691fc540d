//! Settings of the spool.

use std::path::PathBuf;
use std::time::Duration;

use super::error::SpoolError;
use super::record::PerSignal;

/// Settings of a [`Spool`](super::Spool).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolConfig {
    /// Where the files are: a folder of its own, on a local file system. It is created if it is missing.
    pub folder: PathBuf,
    /// The most that segments and acknowledgements take on disk, in bytes, in blocks of 4 KiB. Default: 1 GiB.
    pub max_bytes: u64,
    /// The longest that a record waits. Default: 7 days.
    pub max_age: Duration,
    /// The size of a segment in bytes: space is freed in these steps. 64 KiB to 1 GiB, and at most an eighth of
    /// `max_bytes`. Default: 8 MiB.
    pub segment_bytes: u64,
    /// When records are forced to the disk.
    pub sync: SyncPolicy,
    /// What happens when the cap or the disk is reached.
    pub when_full: PerSignal<WhenFull>,
    /// The most that files which are no part of the spool may take in the folder `set-aside`, in bytes, besides
    /// `max_bytes`; the oldest are deleted. Default: 64 MiB.
    pub max_set_aside_bytes: u64,
}

/// When records are forced to the disk: the window of what a power loss may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncPolicy {
    /// After as many records. Default: 32. 1 makes every append wait for the disk.
    pub every_records: u64,
    /// After as long, if [`maintain`](super::Spool::maintain) is called that often. Default: 1 s.
    pub every: Duration,
}

/// What happens when there is no room for a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// The oldest segment of whichever signal takes most space is given up, and counted.
    #[default]
    DropOldest,
    /// The record is refused, and what waits is kept.
    Refuse,
}

impl SpoolConfig {
    const MIN_SEGMENT: u64 = 64 * 1024;
    const MAX_SEGMENT: u64 = 1024 * 1024 * 1024;
    /// A cap of fewer segments would make dropping the oldest a drop of nearly everything.
    const MIN_SEGMENTS: u64 = 8;

    /// The defaults, for a folder.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            max_bytes: 1024 * 1024 * 1024,
            max_age: Duration::from_secs(7 * 24 * 60 * 60),
            segment_bytes: 8 * 1024 * 1024,
            sync: SyncPolicy::default(),
            when_full: PerSignal::default(),
            max_set_aside_bytes: 64 * 1024 * 1024,
        }
    }

    pub(super) fn validate(&self) -> Result<(), SpoolError> {
        if !(Self::MIN_SEGMENT..=Self::MAX_SEGMENT).contains(&self.segment_bytes) {
            return Err(SpoolError::Config("segment_bytes must be between 64 KiB and 1 GiB"));
        }
        if self.segment_bytes > self.max_bytes / Self::MIN_SEGMENTS {
            return Err(SpoolError::Config("segment_bytes must be at most an eighth of max_bytes"));
        }
        if self.sync.every_records == 0 {
            return Err(SpoolError::Config("sync.every_records must be at least 1"));
        }
        if self.max_age.is_zero() {
            return Err(SpoolError::Config("max_age must not be zero"));
        }
        Ok(())
    }

    /// The largest record that is taken, header included: a quarter of the cap, so that one record never displaces
    /// everything.
    pub(super) const fn max_record_bytes(&self) -> u64 {
        self.max_bytes / 4
    }
}

impl Default for SyncPolicy {
    fn default() -> Self {
        Self { every_records: 32, every: Duration::from_secs(1) }
    }
}
