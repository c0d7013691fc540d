//! Reading a body whole, bounded in size, in decoded size, in time and in memory.
//!
//! Only a complete body opens a request to a store: VictoriaMetrics keeps the earlier lines of a request that breaks off,
//! and may take half a number at its end for a whole one.

use std::io::{self, Write};
use std::mem;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::poll;
use http_body::Body;
use http_body_util::BodyExt;
use telemetry_proto::Reason;
use telemetry_proto::exposition::ControlScan;
use tokio::time::{Instant, timeout_at};

use super::blocks::Blocks;
use super::decode::Decoder;
use super::{Encoding, WriteHead};
use crate::admission::BodyReservation;
use crate::workers::Workers;

/// So much of an encoded body goes to the workers at once: decoding it takes far longer than starting a thread.
const DEAR_PIECE_BYTES: usize = 64 * 1024;

/// Bounds of one body.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BodyLimits {
    /// The largest body as received, in bytes.
    pub max_body_bytes: u64,
    /// The largest body after decompression, in bytes.
    pub max_decoded_bytes: u64,
    /// How long a body may make no progress.
    pub idle_timeout: Duration,
    /// The average speed that a body must keep over its whole length, in bytes a second; keeps one that sends a byte at
    /// a time from holding its memory for ever. The idle timeout is granted on top.
    pub min_bytes_per_second: u64,
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self {
            max_body_bytes: telemetry_proto::limits::MAX_BODY_BYTES,
            max_decoded_bytes: telemetry_proto::limits::MAX_DECODED_BYTES,
            idle_timeout: telemetry_proto::limits::BODY_IDLE_TIMEOUT,
            min_bytes_per_second: 32 * 1024,
        }
    }
}

/// A complete body. It gives its memory back to the budget when it is dropped.
#[derive(Debug)]
pub struct WholeBody {
    chunks: Vec<Bytes>,
    len: u64,
    decoded_len: u64,
    has_marker: bool,
    _reservation: BodyReservation,
}

impl WholeBody {
    /// A body of the relay's own making, outside any budget.
    pub(crate) fn of_text(text: Bytes) -> Self {
        let len = text.len() as u64;
        let reservation = BodyReservation::unlimited();
        Self { chunks: vec![text], len, decoded_len: len, has_marker: false, _reservation: reservation }
    }

    /// The length as received, in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The length after decompression, in bytes.
    #[must_use]
    pub const fn decoded_len(&self) -> u64 {
        self.decoded_len
    }

    /// Whether the bytes of the coordinator's marker occur in the decoded body. Only looked for where asked.
    #[must_use]
    pub const fn has_marker(&self) -> bool {
        self.has_marker
    }

    /// Lets its bytes go: another body has taken their place, and the memory that is reserved for them. Its lengths stay.
    pub(crate) fn let_go(&mut self) {
        self.chunks = Vec::new();
    }

    /// The pieces, in order.
    #[must_use]
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// Decodes the body into `sink`, for the rare one that must be parsed. It takes its time, and lets others go first between two
    /// pieces: a large body does not belong on a thread that others wait for.
    ///
    /// # Errors
    /// [`Reason::BodyMalformed`] or [`Reason::DecodedTooLarge`].
    pub fn decode_into<W: Write>(&self, sink: W, encoding: Encoding, max_decoded_bytes: u64) -> Result<W, Reason> {
        let mut decoder = Decoder::new(encoding, max_decoded_bytes, sink).map_err(|_| Reason::InternalError)?;
        self.chunks.iter().try_for_each(|chunk| decoder.push(chunk))?;
        decoder.finish()
    }
}

/// Reads `body` to its end. `look_for_marker` says whether to search the decoded bytes for the coordinator's marker;
/// `workers` decode what takes long.
///
/// # Errors
/// The reason why the body is refused; nothing of it has gone anywhere then.
pub async fn read_whole<B>(
    body: B,
    head: &WriteHead,
    limits: BodyLimits,
    look_for_marker: bool,
    reservation: BodyReservation,
    workers: &Workers,
) -> Result<WholeBody, Reason>
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(body);
    let max_bytes = head.content_length.unwrap_or(limits.max_body_bytes);
    let slowest = Duration::from_secs(max_bytes / limits.min_bytes_per_second.max(1));
    let deadline = Instant::now() + limits.idle_timeout + slowest;
    let mut inspector = Inspector::new(head.encoding, limits.max_decoded_bytes, look_for_marker)?;
    let mut blocks = Blocks::new(max_bytes);
    let mut len = 0_u64;
    loop {
        let mut next = pin!(body.frame());
        // Most pieces are there already: a clock and a timer for each packet cost more than what is done with it.
        let frame = match poll!(&mut next) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                let patience = deadline.min(Instant::now() + limits.idle_timeout);
                timeout_at(patience, next).await.map_err(|_| Reason::BodyTooSlow)?
            }
        };
        let frame = match frame {
            None => break,
            Some(Err(_)) => return Err(Reason::BodyIncomplete),
            Some(Ok(frame)) => frame,
        };
        // Trailers mean nothing here and are dropped.
        let Ok(chunk) = frame.into_data() else { continue };
        if !chunk.has_remaining() {
            continue;
        }
        len += chunk.len() as u64;
        if len > max_bytes {
            return Err(if head.content_length.is_some() { Reason::LengthMismatch } else { Reason::BodyTooLarge });
        }
        inspector.push(&chunk, workers).await?;
        blocks.push(&chunk);
    }
    if head.content_length.is_some_and(|announced| announced != len) {
        return Err(Reason::LengthMismatch);
    }
    let seen = inspector.finish(workers).await?;
    let decoded_len = if head.encoding == Encoding::Identity { len } else { seen.bytes };
    Ok(WholeBody {
        chunks: blocks.finish(),
        len,
        decoded_len,
        has_marker: seen.has_marker(),
        _reservation: reservation,
    })
}

/// Looks at a body while it arrives, so that a bomb ends as soon as it goes off. Does nothing where nothing is to be seen.
struct Inspector {
    decoder: Option<Decoder<Observer>>,
    /// What is left for the workers, until it is worth a thread of theirs: a packet is not.
    dear: Vec<u8>,
}

impl Inspector {
    fn new(encoding: Encoding, max_decoded_bytes: u64, look_for_marker: bool) -> Result<Self, Reason> {
        let mut inspector = Self { decoder: None, dear: Vec::new() };
        if encoding != Encoding::Identity || look_for_marker {
            let observer = Observer { scan: look_for_marker.then(ControlScan::new), bytes: 0 };
            let decoder = Decoder::new(encoding, max_decoded_bytes, observer).map_err(|_| Reason::InternalError)?;
            inspector.decoder = Some(decoder);
        }
        Ok(inspector)
    }

    async fn push(&mut self, chunk: &[u8], workers: &Workers) -> Result<(), Reason> {
        let Some(decoder) = &mut self.decoder else { return Ok(()) };
        let left = decoder.push_until_dear(chunk).await?;
        self.dear.extend_from_slice(left);
        if self.dear.len() >= DEAR_PIECE_BYTES { self.work_off(workers).await } else { Ok(()) }
    }

    async fn work_off(&mut self, workers: &Workers) -> Result<(), Reason> {
        let Some(mut decoder) = self.decoder.take() else { return Ok(()) };
        let piece = mem::take(&mut self.dear);
        let work = move || decoder.push(&piece).map(|()| decoder);
        self.decoder = Some(workers.apart(work).await??);
        Ok(())
    }

    async fn finish(mut self, workers: &Workers) -> Result<Observer, Reason> {
        if !self.dear.is_empty() {
            self.work_off(workers).await?;
        }
        self.decoder.map_or(Ok(Observer::default()), Decoder::finish)
    }
}

/// Where decoded bytes go: counted, past the scan if there is one, and away.
#[derive(Default)]
struct Observer {
    scan: Option<ControlScan>,
    bytes: u64,
}

impl Observer {
    fn has_marker(&self) -> bool {
        self.scan.as_ref().is_some_and(ControlScan::found)
    }
}

impl Write for Observer {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.bytes += piece.len() as u64;
        if let Some(scan) = &mut self.scan {
            scan.feed(piece);
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use tokio::time::timeout;

    use super::*;
    use crate::intake::LogFields;
    use crate::intake::decode::tests::gzip;

    const SOON: Duration = Duration::from_secs(1);

    fn head(content_length: u64, encoding: Encoding) -> WriteHead {
        WriteHead {
            content_length: Some(content_length),
            encoding,
            operational: false,
            batch_id: None,
            log_fields: LogFields::default(),
        }
    }

    fn body(chunks: &[&[u8]]) -> impl Body<Data = Bytes, Error = Infallible> + use<> {
        let frames: Vec<_> = chunks.iter().map(|chunk| Ok(Frame::data(Bytes::copy_from_slice(chunk)))).collect();
        StreamBody::new(stream::iter(frames))
    }

    async fn read(chunks: &[&[u8]], head: &WriteHead) -> Result<WholeBody, Reason> {
        read_whole(body(chunks), head, BodyLimits::default(), true, BodyReservation::unlimited(), &Workers::default())
            .await
    }

    #[tokio::test]
    async fn a_body_is_taken_only_at_its_announced_length() {
        let whole = read(&[b"up ", b"", b"1\n"], &head(5, Encoding::Identity)).await.unwrap();
        assert_eq!((whole.len(), whole.chunks().concat()), (5, b"up 1\n".to_vec()));
        for wrong in [0, 4, 6] {
            let result = read(&[b"up 1\n"], &head(wrong, Encoding::Identity)).await;
            assert_eq!(result.unwrap_err(), Reason::LengthMismatch, "announced {wrong}");
        }
    }

    #[tokio::test]
    async fn the_marker_is_seen_across_chunks_and_behind_gzip() {
        let text = b"up{entity=\"miren/control\"} 1\n";
        for cut in 0..text.len() {
            let (a, b) = text.split_at(cut);
            assert!(read(&[a, b], &head(text.len() as u64, Encoding::Identity)).await.unwrap().has_marker());
        }
        let zipped = gzip(text);
        let whole = read(&[&zipped], &head(zipped.len() as u64, Encoding::Gzip)).await.unwrap();
        assert!(whole.has_marker());
        assert_eq!(whole.decode_into(Vec::new(), Encoding::Gzip, 1_000).unwrap(), text);
        assert!(!read(&[b"up 1\n"], &head(5, Encoding::Identity)).await.unwrap().has_marker());
    }

    #[tokio::test]
    async fn lesson_22_a_bomb_is_413() {
        let bomb = gzip(&vec![0; 1 << 22]);
        let limits = BodyLimits { max_decoded_bytes: 1 << 20, ..BodyLimits::default() };
        let head = head(bomb.len() as u64, Encoding::Gzip);
        let result =
            read_whole(body(&[&bomb]), &head, limits, false, BodyReservation::unlimited(), &Workers::default()).await;
        assert_eq!(result.unwrap_err(), Reason::DecodedTooLarge);
    }

    #[tokio::test(start_paused = true)]
    async fn packets_of_a_dear_body_are_not_a_thread_each() {
        // What does not shrink, so that it comes in many packets, behind what makes it dear.
        let noise: Vec<u8> = (0..3 * DEAR_PIECE_BYTES).map(|_| fastrand::u8(..)).collect();
        let body = gzip(&[vec![0; 2 << 20], noise.clone()].concat());
        let mut inspector = Inspector::new(Encoding::Gzip, u64::MAX, false).unwrap();
        let nobody = Workers::with_places(0);
        let packets: Vec<_> = body.chunks(1_200).collect();
        let (few, more) = body.split_at(DEAR_PIECE_BYTES / 1_200 * 1_200);
        for packet in few.chunks(1_200) {
            timeout(SOON, inspector.push(packet, &nobody)).await.expect("nothing was handed over yet").unwrap();
        }
        timeout(SOON, inspector.push(&more[..3_600], &nobody)).await.expect_err("it was handed over, and nobody works");

        let head = head(body.len() as u64, Encoding::Gzip);
        assert_eq!(read(&packets, &head).await.unwrap().decoded_len(), (2 << 20) + noise.len() as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_or_trickles_is_408() {
        let stalled = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let limits = BodyLimits::default();
        let started = Instant::now();
        let result = read_whole(
            stalled,
            &head(5, Encoding::Identity),
            limits,
            false,
            BodyReservation::unlimited(),
            &Workers::default(),
        )
        .await;
        assert_eq!(result.unwrap_err(), Reason::BodyTooSlow);
        assert_eq!(started.elapsed().as_secs(), limits.idle_timeout.as_secs());

        let trickle = StreamBody::new(Box::pin(stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(29)).await;
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x"))), ()))
        })));
        let result = read_whole(
            trickle,
            &head(100_000, Encoding::Identity),
            limits,
            false,
            BodyReservation::unlimited(),
            &Workers::default(),
        )
        .await;
        assert_eq!(result.unwrap_err(), Reason::BodyTooSlow);
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_kept_by_its_sender() {
        let frames = vec![Ok(Frame::data(Bytes::from_static(b"up"))), Err("reset")];
        let result = read_whole(
            StreamBody::new(stream::iter(frames)),
            &head(5, Encoding::Identity),
            BodyLimits::default(),
            false,
            BodyReservation::unlimited(),
            &Workers::default(),
        )
        .await;
        assert_eq!(result.unwrap_err(), Reason::BodyIncomplete);
    }
}
