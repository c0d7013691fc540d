//! What can go wrong, one enum per boundary.

use std::io;
use std::path::PathBuf;

/// Why a spool can't be opened. Nothing in the folder was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpoolError {
    /// A setting makes no sense.
    #[error("the settings of the spool are wrong: {0}")]
    Config(&'static str),
    /// There is something else under the folder's name.
    #[error("the spool folder {} is not a folder; name another one", .0.display())]
    NotAFolder(PathBuf),
    /// The folder can't be created or written.
    #[error(
        "the spool folder {} can't be written ({source}); give this user the right to write there, or name another folder",
        folder.display()
    )]
    NotWritable {
        /// The folder of the settings.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process has the folder.
    #[error("the spool folder {} is in use by another process; stop it, or name another folder", .0.display())]
    InUse(PathBuf),
    /// A newer version of this software wrote a file of the folder.
    #[error(
        "{} has format version {found}, and this program reads up to {supported}; use the newer program, or name another folder",
        file.display()
    )]
    NewerFormat {
        /// The file.
        file: PathBuf,
        /// Its version.
        found: u16,
        /// The newest version that this program reads.
        supported: u16,
    },
    /// The system refuses something else.
    #[error("can't {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl SpoolError {
    /// Whether it may go away without anyone changing the settings or the folder.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::InUse(_) | Self::Io { .. })
    }
}

/// Why a record was not taken. Nothing of it is in the spool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The cap or the disk is reached, and nothing may be dropped (any more) to make room.
    #[error("the spool is full")]
    Full,
    /// The record is larger than any that the spool takes.
    #[error("the record has {bytes} bytes, and the spool takes at most {limit}")]
    TooLarge {
        /// Its size, as stored.
        bytes: u64,
        /// The limit that it breaks.
        limit: u64,
    },
    /// The disk fails.
    #[error("the spool can't be written")]
    Io(#[source] io::Error),
}

impl AppendError {
    /// Whether the same record may be taken later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        !matches!(self, Self::TooLarge { .. })
    }
}

/// Why no record can be read now. Nothing is lost: try again later.
#[derive(Debug, thiserror::Error)]
#[error("{} can't be read", file.display())]
pub struct ReadError {
    /// The file.
    pub file: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// Some records are not known to be on disk. They can be read and delivered as long as the machine runs.
#[derive(Debug, thiserror::Error)]
#[error("{records} records of the spool are not known to be on disk")]
pub struct SyncError {
    /// How many records a power loss may take.
    pub records: u64,
    /// What the system says.
    pub source: io::Error,
}
