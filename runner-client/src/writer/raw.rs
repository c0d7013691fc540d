//! Bytes that are a batch already.

use std::sync::Arc;

use bytes::Bytes;
use telemetry_proto::Signal;
use telemetry_proto::limits::MAX_BODY_BYTES;

use crate::delivery::{NotTaken, Outbox, Pipelines};

/// A batch that somebody else has put together, in the format of the store: Prometheus text for metrics, JSON lines for
/// logs. What is in it is not looked at.
#[derive(Clone)]
pub struct RawBatch {
    /// Where it goes.
    pub signal: Signal,
    /// The body, not encoded; at most 32 MiB.
    pub body: Bytes,
    /// How many points, records or spans are in it, for the account.
    pub items: u64,
    /// The query of the request, without the question mark: see the route's in `docs/wire-contract.md`.
    pub query: Option<Box<str>>,
}

impl RawBatch {
    pub(crate) async fn submit(self, pipelines: &Arc<Pipelines>, confirm: bool) -> Result<(), NotTaken> {
        if self.body.len() as u64 > MAX_BODY_BYTES {
            return Err(NotTaken::Oversize);
        }
        let outbox: &Arc<Outbox> = match self.signal {
            Signal::Metrics => pipelines.metrics(),
            Signal::Logs => pipelines.logs(),
            Signal::Traces => pipelines.traces(),
        };
        match outbox.push_batch(self.body, self.items, self.query, confirm)? {
            Some(stored) => stored.await.unwrap_or(Err(NotTaken::Full)),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for RawBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawBatch")
            .field("signal", &self.signal)
            .field("bytes", &self.body.len())
            .field("items", &self.items)
            .finish_non_exhaustive()
    }
}
