//! Operational batches, which go to sinks instead of to a store.

use std::sync::Arc;

use http::StatusCode;

use crate::accepted::Accepted;
use crate::admission::BodyReservation;
use crate::intake::{Encoding, WholeBody};
use crate::once::Lease;
use crate::operational::{Attached, DropReason, Source};
use crate::refusal::Refusal;
use crate::service::Relay;
use crate::tenancy::Tenant;

/// A whole operational batch, with all that it holds until its points are queued.
pub(crate) struct Marked {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) source: Source,
    pub(crate) encoding: Encoding,
    pub(crate) body: WholeBody,
    pub(crate) sinks: Attached,
    pub(crate) lease: Option<Lease>,
    /// The memory to parse it in.
    pub(crate) working: BodyReservation,
}

impl Relay {
    /// Queues the points of a batch for the sinks. It is delivered whatever they do: these are gauges that are sampled
    /// again in seconds, and a refusal would be retried for ever.
    pub(crate) async fn hand_over(self: Arc<Self>, batch: Marked) -> Result<Accepted, Refusal> {
        let Marked { tenant, source, encoding, body, sinks, lease, working: _working } = batch;
        let tally = self.operational.take(&tenant, &source, encoding, &body, &sinks).await?;
        self.metrics.dropped_control_lines(tally.dropped(DropReason::ControlEntity));
        if let Some(lease) = lease {
            lease.acknowledge();
        }
        Ok(Accepted::delivered(StatusCode::NO_CONTENT))
    }
}
