//! What a body must become before its store may see it. Most bodies stay as they are.

use bytes::Bytes;
use telemetry_proto::{Reason, Signal, exposition};

use crate::admission::{BodyReservation, Sender};
use crate::intake::{WholeBody, WriteHead};
use crate::refusal::Refusal;
use crate::service::Relay;
use crate::traces;

/// A body that takes the received one's place, in identity encoding.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) bytes: Bytes,
    /// The memory that it takes, from the same budget as the received one's.
    _reservation: BodyReservation,
}

impl Relay {
    /// Takes out of a body what its sender may not write. `None`: the body stays as it is.
    pub(crate) async fn prepare(
        &self,
        signal: Signal,
        sender: &Sender<'_>,
        head: &WriteHead,
        body: &WholeBody,
    ) -> Result<Option<Prepared>, Refusal> {
        match signal {
            Signal::Metrics if body.has_marker() => self.without_control_lines(sender, head, body).await,
            Signal::Traces => self.rewrite_spans(sender, head, body).await.map(Some),
            Signal::Metrics | Signal::Logs => Ok(None),
        }
    }

    /// A runner never speaks as the coordinator: lines with the coordinator's own marker are dropped. Only the rare body
    /// in which the marker's bytes occur comes here.
    async fn without_control_lines(
        &self,
        sender: &Sender<'_>,
        head: &WriteHead,
        body: &WholeBody,
    ) -> Result<Option<Prepared>, Refusal> {
        // Once decoded, once without the lines.
        let (decoded, reservation) = self.decode(sender, head, body, body.decoded_len()).await?;
        let (kept, dropped) = exposition::without_control_lines(&decoded);
        if dropped == 0 {
            return Ok(None);
        }
        self.metrics.dropped_control_lines(dropped as u64);
        Ok(Some(Prepared { bytes: kept.into_owned().into(), _reservation: reservation }))
    }

    /// Spans are filed under the verified runner, with the attributes that the operator allows and no others.
    async fn rewrite_spans(
        &self,
        sender: &Sender<'_>,
        head: &WriteHead,
        body: &WholeBody,
    ) -> Result<Prepared, Refusal> {
        let settings = &self.traces;
        let decoded_len = usize::try_from(body.decoded_len()).unwrap_or(usize::MAX);
        let rewritten_len = settings.limits.max_rewritten_bytes(decoded_len) as u64;
        let (decoded, reservation) = self.decode(sender, head, body, rewritten_len).await?;
        let rewritten = traces::rewrite(&decoded, &settings.keep, sender.runner(), &settings.limits)
            .map_err(|error| Refusal::new(error.reason()).with_detail(error.to_string()))?;
        self.metrics.rewrote(rewritten.spans, &rewritten.removed);
        Ok(Prepared { bytes: rewritten.body, _reservation: reservation })
    }

    /// The decoded body in one piece, and memory for it and `more` bytes.
    async fn decode(
        &self,
        sender: &Sender<'_>,
        head: &WriteHead,
        body: &WholeBody,
        more: u64,
    ) -> Result<(Vec<u8>, BodyReservation), Refusal> {
        // A body that has to be held twice must not be larger than one that comes plain.
        if body.decoded_len() > self.body_limits.max_body_bytes {
            return Err(Reason::DecodedTooLarge.into());
        }
        let reservation = self.budget.reserve_more(sender, body.len(), body.decoded_len() + more).await?;
        let decoded = body.decode(head.encoding, self.body_limits.max_body_bytes)?;
        Ok((decoded, reservation))
    }
}
