//! What a body must become before its store may see it. Most bodies stay as they are.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use telemetry_proto::exposition::ControlFilter;
use telemetry_proto::{Reason, Signal};

use crate::admission::{BodyReservation, Sender};
use crate::intake::{Encoding, WholeBody, WriteHead};
use crate::refusal::Refusal;
use crate::rules::WriteRules;
use crate::service::Relay;
use crate::traces;

/// A body that takes the received one's place, in identity encoding.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) bytes: Bytes,
    /// The memory that it takes beyond the received one's.
    _reservation: BodyReservation,
}

impl Prepared {
    /// Lets the received body go, whose memory this one takes, and gives back what it does not need of the rest.
    fn instead_of(body: &mut WholeBody, bytes: Bytes, mut working: BodyReservation) -> Self {
        body.let_go();
        working.shrink_to((bytes.len() as u64).saturating_sub(body.len()));
        Self { bytes, _reservation: working }
    }
}

impl Relay {
    /// Takes out of a body what its sender may not write. `None`: the body stays as it is.
    pub(crate) async fn prepare(
        &self,
        rules: &Arc<WriteRules>,
        signal: Signal,
        sender: &Sender<'_>,
        head: &WriteHead,
        body: WholeBody,
    ) -> Result<(WholeBody, Option<Prepared>), Refusal> {
        match signal {
            Signal::Metrics if body.has_marker() => self.without_control_lines(rules, sender, head, body).await,
            Signal::Traces => self.rewrite_spans(rules, sender, head, body).await,
            Signal::Metrics | Signal::Logs => Ok((body, None)),
        }
    }

    /// A runner never speaks as the coordinator: lines with the coordinator's own marker are dropped. Only the rare body
    /// in which the marker's bytes occur comes here.
    async fn without_control_lines(
        &self,
        rules: &WriteRules,
        sender: &Sender<'_>,
        head: &WriteHead,
        body: WholeBody,
    ) -> Result<(WholeBody, Option<Prepared>), Refusal> {
        let work = |encoded: &Encoded| {
            let (kept, dropped) = encoded.decode_into(ControlFilter::with_capacity)?.finish();
            // Boxed, so that it takes no more than it holds.
            Ok((dropped > 0).then(|| (Bytes::from(kept.into_boxed_slice()), dropped)))
        };
        let (mut body, working, kept) = self.rework(rules, sender, head, body, 0, work).await?;
        let Some((bytes, dropped)) = kept else { return Ok((body, None)) };
        self.metrics.dropped_control_lines(dropped as u64);
        let prepared = Prepared::instead_of(&mut body, bytes, working);
        Ok((body, Some(prepared)))
    }

    /// Spans are filed under the verified runner, with the attributes that the operator allows and no others.
    async fn rewrite_spans(
        &self,
        rules: &Arc<WriteRules>,
        sender: &Sender<'_>,
        head: &WriteHead,
        body: WholeBody,
    ) -> Result<(WholeBody, Option<Prepared>), Refusal> {
        let decoded_len = usize::try_from(body.decoded_len()).unwrap_or(usize::MAX);
        let rewritten_len = rules.traces.limits.max_rewritten_bytes(decoded_len) as u64;
        let (rules_of_work, author) = (Arc::clone(rules), sender.author().clone());
        let work = move |encoded: &Encoded| {
            let decoded = encoded.decode_into(Vec::with_capacity)?;
            let settings = &rules_of_work.traces;
            traces::rewrite(&decoded, &settings.keep, &author, &settings.limits)
                .map_err(|error| Refusal::new(error.reason()).with_detail(error.to_string()))
        };
        let (mut body, working, rewritten) = self.rework(rules, sender, head, body, rewritten_len, work).await?;
        self.metrics.rewrote(rewritten.spans, &rewritten.removed);
        let prepared = Prepared::instead_of(&mut body, rewritten.body, working);
        Ok((body, Some(prepared)))
    }

    /// Decodes the body and makes something of it, in memory for the decoded body and `more` bytes. The body and its memory go
    /// along: the work does not end when its sender goes away.
    async fn rework<T: Send + 'static>(
        &self,
        rules: &WriteRules,
        sender: &Sender<'_>,
        head: &WriteHead,
        body: WholeBody,
        more: u64,
        work: impl FnOnce(&Encoded) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<(WholeBody, BodyReservation, T), Refusal> {
        let max_bytes = rules.body.max_body_bytes;
        // A body that is held decoded must not be larger than one that comes plain.
        if body.decoded_len() > max_bytes {
            return Err(Reason::DecodedTooLarge.into());
        }
        let reservation = self.budget.reserve_work(sender, body.decoded_len() + more).await?;
        let (bytes, encoded) = (body.decoded_len(), Encoded { body, encoding: head.encoding, max_bytes });
        let work = move || {
            let made = work(&encoded)?;
            Ok((encoded.body, reservation, made))
        };
        self.workers.run(bytes, work).await?
    }
}

/// A body that is to be decoded.
struct Encoded {
    body: WholeBody,
    encoding: Encoding,
    max_bytes: u64,
}

impl Encoded {
    /// Decodes it into what `sink` makes with room for so many bytes.
    fn decode_into<W: Write>(&self, sink: impl FnOnce(usize) -> W) -> Result<W, Reason> {
        let room = usize::try_from(self.body.decoded_len()).unwrap_or_default();
        self.body.decode_into(sink(room), self.encoding, self.max_bytes)
    }
}
