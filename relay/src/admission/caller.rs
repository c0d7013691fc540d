//! Who asks.

use crate::gate::Author;
use crate::once::BatchId;

/// A runner, or a writer that counts as one, and the batch that it brings. A request that was refused is known again by
/// both; without a batch ID, one request of a runner is as good as another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Who writes.
    pub author: Author,
    /// The batch, if it has an ID.
    pub batch: Option<BatchId>,
}
