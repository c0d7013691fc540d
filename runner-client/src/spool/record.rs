//! What is stored: a batch and what delivery must know about it.

use std::fmt;

use bytes::Bytes;
use telemetry_proto::Signal;
use telemetry_proto::limits::MAX_BODY_BYTES;
use ulid::Ulid;

use super::format::SegmentName;

/// The largest [`Record::extra`], in bytes.
pub const MAX_EXTRA_BYTES: usize = 1024;

/// The largest [`Record::body`], in bytes: the largest that a relay takes.
pub const MAX_RECORD_BODY_BYTES: u64 = MAX_BODY_BYTES;

/// A signal that the spool takes. Spans never go to the spool, so there is no value for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SpoolSignal {
    /// Batches for VictoriaMetrics.
    Metrics,
    /// Batches for VictoriaLogs.
    Logs,
}

impl SpoolSignal {
    /// Every signal that the spool takes.
    pub const ALL: [Self; 2] = [Self::Metrics, Self::Logs];
}

impl From<SpoolSignal> for Signal {
    fn from(signal: SpoolSignal) -> Self {
        match signal {
            SpoolSignal::Metrics => Self::Metrics,
            SpoolSignal::Logs => Self::Logs,
        }
    }
}

impl fmt::Display for SpoolSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Signal::from(*self).as_str())
    }
}

/// One value for each signal of the spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerSignal<T> {
    /// The value for metrics.
    pub metrics: T,
    /// The value for logs.
    pub logs: T,
}

impl<T> PerSignal<T> {
    /// The value of one signal.
    #[must_use]
    pub const fn get(&self, signal: SpoolSignal) -> &T {
        match signal {
            SpoolSignal::Metrics => &self.metrics,
            SpoolSignal::Logs => &self.logs,
        }
    }

    /// The value of one signal, to be changed.
    pub const fn get_mut(&mut self, signal: SpoolSignal) -> &mut T {
        match signal {
            SpoolSignal::Metrics => &mut self.metrics,
            SpoolSignal::Logs => &mut self.logs,
        }
    }

    /// The values of all signals.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        [&self.metrics, &self.logs].into_iter()
    }

    /// The values of all signals, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        [&mut self.metrics, &mut self.logs].into_iter()
    }
}

/// How a body is encoded: what goes into `Content-Encoding` when it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BodyEncoding {
    /// As it is.
    Identity,
    /// gzip (RFC 1952).
    Gzip,
    /// Zstandard (RFC 8878).
    Zstd,
}

impl BodyEncoding {
    /// Its name as in `Content-Encoding`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// A batch as it is stored. It has no place for a token: a batch is authenticated when it is sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// What it holds and where it goes.
    pub signal: SpoolSignal,
    /// Chosen once per batch: the relay stores a batch at most once, so that a second delivery does no harm.
    pub batch_id: Ulid,
    /// When the batch was made, in milliseconds since 1970. Its age is counted from here.
    pub created_unix_ms: u64,
    /// How many points or log records it holds.
    pub items: u64,
    /// How the body is encoded.
    pub encoding: BodyEncoding,
    /// What else delivery wants back (a stream mark, names of fields), at most [`MAX_EXTRA_BYTES`]. Opaque to the
    /// spool. It ends up on disk: never put a credential here.
    pub extra: Bytes,
    /// The body of the request, at most [`MAX_RECORD_BODY_BYTES`].
    pub body: Bytes,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("signal", &self.signal)
            .field("batch_id", &self.batch_id)
            .field("created_unix_ms", &self.created_unix_ms)
            .field("items", &self.items)
            .field("encoding", &self.encoding)
            .field("extra_bytes", &self.extra.len())
            .field("body_bytes", &self.body.len())
            .finish()
    }
}

/// Where a record is. Valid until the spool is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Position {
    pub(super) segment: SegmentName,
    pub(super) offset: u64,
    pub(super) seq: u64,
    pub(super) items: u64,
}

impl Position {
    /// The signal of the record.
    #[must_use]
    pub const fn signal(&self) -> SpoolSignal {
        self.segment.signal
    }

    /// How many points or log records the record holds.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.items
    }
}

/// A record that came back, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// What to [acknowledge](super::Spool::acknowledge) when the batch is settled.
    pub position: Position,
    /// The batch, exactly as it was appended.
    pub record: Record,
}

/// Records, and the points or log records in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// How many records.
    pub records: u64,
    /// How many points or log records they hold.
    pub items: u64,
}

impl Amount {
    pub(super) const fn add(&mut self, other: Self) {
        self.records += other.records;
        self.items += other.items;
    }
}

/// Why the spool gave up records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropCause {
    /// The cap or the disk was reached, and these were the oldest.
    SpoolFull,
    /// They waited for longer than the age limit.
    TooOld,
    /// Their bytes on disk are no longer what was written.
    Damaged,
}

impl DropCause {
    /// Every cause.
    pub const ALL: [Self; 3] = [Self::SpoolFull, Self::TooOld, Self::Damaged];

    /// The stable name, as in the label `reason` of `telemetry_dropped_total`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SpoolFull => "spool_full",
            Self::TooOld => "too_old",
            Self::Damaged => "damaged",
        }
    }
}

/// What was given up, for the caller's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// The signal of the records.
    pub signal: SpoolSignal,
    /// Why they were given up.
    pub cause: DropCause,
    /// How much it was.
    pub amount: Amount,
}
