//! Who takes chunks.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use telemetry_proto::Reason;

use super::Chunk;

/// What [`OperationalSink::take`] returns.
pub type SinkFuture<'a> = Pin<Box<dyn Future<Output = Result<(), SinkError>> + Send + 'a>>;

/// Takes the points of the operational stream.
///
/// Each sink has a queue and a task of its own: whatever it does, the others get their chunks and runners get their
/// answers. It is given one chunk at a time, in the order in which they came, and each chunk once.
pub trait OperationalSink: Send + Sync + 'static {
    /// Takes a chunk. The future is dropped when it takes longer than
    /// [`SinkLimits::timeout`](super::SinkLimits::timeout); one that blocks its thread keeps the thread.
    fn take(&self, chunk: Arc<Chunk>) -> SinkFuture<'_>;
}

/// A sink did not take a chunk. It is not given the chunk again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The store that it writes to did not acknowledge the points.
    #[error("{}", .0.text())]
    Store(Reason),
    /// Anything else. The text goes into the log, so it must not hold anything of the points.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}
