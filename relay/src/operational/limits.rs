//! Bounds of the operational stream.

use std::time::Duration;

/// The most points of a chunk.
pub(super) const CHUNK_POINTS: usize = 1_000;

/// The most memory of a chunk, in bytes, but for its last point. A thousand points of twenty labels take less.
pub(super) const CHUNK_BYTES: usize = 2 * 1024 * 1024;

/// The longest line, in bytes: the longest that VictoriaMetrics reads.
pub(super) const MAX_LINE_BYTES: usize = 256 * 1024;

/// What is taken of a batch and its points. A point that is over a limit is dropped and counted, the others go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointLimits {
    /// Points that are taken of one batch: 10,000.
    pub max_points: usize,
    /// Labels of a point as it goes on, `miren_runner` included: 37. With the name, `miren_tenant` and `miren_cluster` these
    /// are the 40 that VictoriaMetrics stores.
    pub max_labels: usize,
    /// Bytes of the metric name, and of a label's name: 256, as VictoriaMetrics stores.
    pub max_name_bytes: usize,
    /// Bytes of a label's value: 4,096, as VictoriaMetrics stores.
    pub max_value_bytes: usize,
    /// How far a timestamp may be in the future: 2 days, as VictoriaMetrics stores.
    pub max_future: Duration,
    /// Whether a point may be NaN: no, as VictoriaMetrics stores none.
    pub allow_nan: bool,
}

impl Default for PointLimits {
    fn default() -> Self {
        Self {
            max_points: 10_000,
            max_labels: 37,
            max_name_bytes: 256,
            max_value_bytes: 4_096,
            max_future: Duration::from_secs(2 * 24 * 60 * 60),
            allow_nan: false,
        }
    }
}

/// What may wait for one sink. What does not fit is dropped and counted, for this sink alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkLimits {
    /// Chunks: 1,024. A chunk is one batch or a part of it, so many small ones come at once where runners keep the time.
    pub max_chunks: usize,
    /// Memory of these chunks, in bytes: 32 MiB. Less than [`MIN_BYTES`](Self::MIN_BYTES) is taken for it.
    pub max_bytes: usize,
    /// How long a sink may take over one chunk: 10 s.
    pub timeout: Duration,
}

impl SinkLimits {
    /// The least that [`max_bytes`](Self::max_bytes) can be: the largest chunk fits.
    pub const MIN_BYTES: usize = 2 * CHUNK_BYTES;
}

impl Default for SinkLimits {
    fn default() -> Self {
        Self { max_chunks: 1_024, max_bytes: 32 * 1024 * 1024, timeout: Duration::from_secs(10) }
    }
}
