//! Who asks.

use telemetry_proto::RunnerId;

use crate::once::BatchId;

/// A runner, and the batch that it brings. A request that was refused is known again by both; without a batch ID, one
/// request of a runner is as good as another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The runner.
    pub runner: RunnerId,
    /// The batch, if it has an ID.
    pub batch: Option<BatchId>,
}
