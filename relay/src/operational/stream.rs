//! An operational batch, from its whole body to the sinks.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use telemetry_proto::{Clock, Reason, RunnerId};

use super::limits::{CHUNK_BYTES, MAX_LINE_BYTES};
use super::lines::Lines;
use super::reader::{Reader, Tally};
use super::rules::Rules;
use super::{Attached, Chunk, DropReason, OperationalSinks, PointLimits};
use crate::gate::Principal;
use crate::intake::{Decoder, Encoding, WholeBody};
use crate::tenancy::Tenant;

/// The largest point for a byte of text: `a 1` with its line feed, which becomes a point with a runner's label.
const BYTES_PER_BYTE: u64 = 64;

/// The memory for a chunk that is being filled and a line that has not ended.
const WORKING_BYTES: usize = CHUNK_BYTES + MAX_LINE_BYTES;

/// Where the service hands operational batches to.
pub(crate) struct OperationalStream {
    sinks: OperationalSinks,
    limits: PointLimits,
    clock: Arc<dyn Clock>,
}

/// Whose series they are.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) runner: RunnerId,
    /// Whether the token names the runner too.
    pub(crate) is_named_by_token: bool,
}

impl Source {
    /// Whoever is no runner has no series of its own.
    pub(crate) fn of(principal: &Principal) -> Option<Self> {
        let runner = principal.author().runner()?.clone();
        Some(Self { runner, is_named_by_token: principal.is_named_by_token() })
    }
}

impl OperationalStream {
    pub(crate) const fn new(sinks: OperationalSinks, limits: PointLimits, clock: Arc<dyn Clock>) -> Self {
        Self { sinks, limits, clock }
    }

    pub(crate) const fn sinks(&self) -> &OperationalSinks {
        &self.sinks
    }

    /// The sinks as they are now, if there are any.
    pub(crate) fn attached(&self) -> Option<Attached> {
        self.sinks.attached()
    }

    /// The memory that parsing a body takes, in bytes: for a chunk and for a line, never for the whole.
    pub(crate) fn working_bytes(body: &WholeBody) -> u64 {
        body.decoded_len().saturating_mul(BYTES_PER_BYTE).min(WORKING_BYTES as u64)
    }

    /// Parses a batch and queues its points for the sinks. None of them is waited for.
    ///
    /// # Errors
    /// [`Reason::BodyMalformed`] when nothing of the body is text; nothing of it has gone anywhere then.
    pub(crate) async fn take(
        &self,
        tenant: &Arc<Tenant>,
        source: &Source,
        encoding: Encoding,
        body: &WholeBody,
        sinks: &Attached,
    ) -> Result<Tally, Reason> {
        let rules = Rules {
            limits: self.limits,
            runner: &source.runner,
            named_by_token: source.is_named_by_token,
            has_marker: body.has_marker(),
            now_ms: self.now_ms(),
        };
        let mut reader = Reader::new(tenant, rules, |chunk: Chunk| sinks.offer(chunk));
        let lines = Lines::to(|line| reader.read(line));
        let mut decoder = Decoder::new(encoding, body.decoded_len(), lines).map_err(|_| Reason::InternalError)?;
        for chunk in body.chunks() {
            decoder.push_in_turns(chunk).await?;
        }
        decoder.finish()?.finish();
        let tally = reader.finish();
        if tally.is_no_text() {
            return Err(Reason::BodyMalformed);
        }
        self.count(&tally);
        Ok(tally)
    }

    fn count(&self, tally: &Tally) {
        let metrics = self.sinks.metrics();
        metrics.accept(tally.accepted as u64);
        DropReason::ALL.into_iter().for_each(|reason| metrics.drop(reason, tally.dropped(reason)));
    }

    fn now_ms(&self) -> i64 {
        let since_1970 = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::super::testing::{Recording, tenant};
    use super::super::{OperationalMetrics, SinkLimits};
    use super::*;
    use crate::Workers;
    use crate::admission::BodyReservation;
    use crate::gate::fixtures::{TestClock, runner};
    use crate::intake::{BodyLimits, LogFields, WriteHead, gzip, read_whole};

    fn source(named_by_token: bool) -> Source {
        Source { runner: runner("r7"), is_named_by_token: named_by_token }
    }

    async fn whole(bytes: &[u8], encoding: Encoding, piece: usize) -> WholeBody {
        let content_length = Some(bytes.len() as u64);
        let log_fields = LogFields::default();
        let head = WriteHead { content_length, encoding, operational: true, batch_id: None, log_fields };
        let frames = bytes.chunks(piece).map(|piece| Ok::<_, Infallible>(Frame::data(piece.to_vec().into())));
        let body = StreamBody::new(stream::iter(frames.collect::<Vec<_>>()));
        read_whole(body, &head, BodyLimits::default(), true, BodyReservation::unlimited(), &Workers::default())
            .await
            .unwrap()
    }

    /// The points that a body becomes, as text, and what it is answered with.
    async fn take(bytes: &[u8], encoding: Encoding, piece: usize) -> (Vec<String>, Result<Tally, Reason>) {
        let sinks = OperationalSinks::new(SinkLimits::default(), &OperationalMetrics::default());
        let (recording, mut seen) = Recording::new();
        sinks.attach("recording", recording);
        let stream = OperationalStream::new(sinks.clone(), PointLimits::default(), TestClock::new());
        let body = whole(bytes, encoding, piece).await;
        let outcome = stream.take(&tenant(), &source(true), encoding, &body, &stream.attached().unwrap()).await;
        sinks.close().await;
        (seen.lines(), outcome)
    }

    #[tokio::test]
    async fn points_are_the_same_however_the_body_is_cut_and_encoded() {
        let text = b"up 1\nbad.name 2\n\n# x\nup{a=\"b\"} 3 4\nup{entity=\"miren/control\"} 5";
        let expected = ["up{miren_runner=\"r7\"} 1 1900000000000", "up{a=\"b\",miren_runner=\"r7\"} 3 4"];
        let gzip = gzip(text);
        let zstd = zstd::encode_all(&text[..], 3).unwrap();
        for (body, encoding) in [(&text[..], Encoding::Identity), (&gzip, Encoding::Gzip), (&zstd, Encoding::Zstd)] {
            for piece in [1, 7, 1_000] {
                let (lines, outcome) = take(body, encoding, piece).await;
                assert_eq!(lines, expected, "{encoding:?} in pieces of {piece}");
                let tally = outcome.unwrap();
                let dropped = [DropReason::Unparseable, DropReason::ControlEntity].map(|r| tally.dropped(r));
                assert_eq!((tally.accepted, dropped), (2, [1, 1]));
            }
        }
    }

    #[tokio::test]
    async fn a_body_that_is_no_text_is_refused_and_one_with_bad_lines_is_not() {
        for body in [&b"\xff\xfe\x00"[..], b"\x1f\x8b\x08\xff\n\xff\n"] {
            let (lines, outcome) = take(body, Encoding::Identity, 1_000).await;
            assert_eq!((lines.len(), outcome), (0, Err(Reason::BodyMalformed)));
        }
        for body in [&b""[..], b"\n", b"no batch", b"\xff\nup", b"{\"json\":1}"] {
            let (lines, outcome) = take(body, Encoding::Identity, 1_000).await;
            assert_eq!((lines.len(), outcome.unwrap().accepted), (0, 0));
        }
    }

    #[tokio::test]
    async fn every_point_is_counted_once() {
        let sinks = OperationalSinks::new(SinkLimits::default(), &OperationalMetrics::default());
        sinks.attach("recording", Recording::new().0);
        let stream = OperationalStream::new(sinks.clone(), PointLimits::default(), TestClock::new());
        let body = whole(b"up{miren_runner=\"r8\"} 1\nup 2\nup NaN\n", Encoding::Identity, 1_000).await;
        let attached = stream.attached().unwrap();
        stream.take(&tenant(), &source(false), Encoding::Identity, &body, &attached).await.unwrap();
        let metrics = sinks.metrics();
        assert_eq!((metrics.accepted(), metrics.dropped(DropReason::NoRunner)), (1, 2));
    }

    #[tokio::test]
    async fn the_memory_for_parsing_is_as_large_as_the_points_of_a_small_body_and_bounded_for_a_large_one() {
        let text = "a 1\n".repeat(100);
        let body = whole(text.as_bytes(), Encoding::Identity, 1_000).await;
        let sinks = OperationalSinks::new(SinkLimits::default(), &OperationalMetrics::default());
        let (recording, mut seen) = Recording::new();
        sinks.attach("recording", recording);
        let stream = OperationalStream::new(sinks.clone(), PointLimits::default(), TestClock::new());
        stream.take(&tenant(), &source(true), Encoding::Identity, &body, &stream.attached().unwrap()).await.unwrap();
        sinks.close().await;
        let bytes: usize = seen.chunks().iter().map(|chunk| chunk.bytes()).sum();
        assert!(OperationalStream::working_bytes(&body) >= bytes as u64, "{bytes}");
        let large = whole(&vec![b'\n'; 10_000_000], Encoding::Identity, 1_000_000).await;
        assert_eq!(OperationalStream::working_bytes(&large), WORKING_BYTES as u64);
    }
}
