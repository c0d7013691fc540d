//! The receiving half of a guarded stream.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h3::error::Code;
use h3::quic::{self, StreamErrorIncoming, StreamId};
use quinn::ReadError;

use super::shared::{Shared, connection_error};
use crate::frames::{Carries, FrameReader, Piece};
use crate::violation::{quic_code, quic_code_from};
use crate::{GuardError, Violation, field_section, varint};

/// The receiving half of a guarded stream: see [the module](super).
///
/// h3 gets every frame whole. A DATA frame that is still on its way is handed on as a frame of its own for each part that
/// is here: h3 is then never inside a frame when it waits, and has no frame to lose its place in when the stream fails.
///
/// Dropped before its end, it tells the peer to stop sending (H3_REQUEST_CANCELLED).
pub struct RecvStream {
    stream: quinn::RecvStream,
    id: StreamId,
    shared: Arc<Shared>,
    frames: FrameReader,
    /// What h3 gets before anything else: the payload of the DATA frame whose header it got last, or the type of the stream.
    next: Option<Bytes>,
    /// The last header made, and the size it announces: most packets are of one size.
    data_header: (usize, Bytes),
    ended: Option<Ended>,
}

/// How a stream ended. quinn forgets an error once it was told, and then reports a clean end.
#[derive(Debug, Clone)]
enum Ended {
    Cleanly,
    Reset { code: u64 },
    Lost(quinn::ConnectionError),
    Guard(GuardError),
}

impl RecvStream {
    /// Guards the direction in which a request comes.
    pub(super) fn request(stream: quinn::RecvStream, id: StreamId, shared: Arc<Shared>) -> Self {
        Self::new(stream, id, Carries::Request, None, shared)
    }

    /// Guards the direction in which a response comes.
    pub(super) fn response(stream: quinn::RecvStream, id: StreamId, shared: Arc<Shared>) -> Self {
        Self::new(stream, id, Carries::Response, None, shared)
    }

    /// Guards a control stream, of which the type was read. h3 wants to read it as well.
    pub(super) fn control(stream: quinn::RecvStream, id: StreamId, shared: Arc<Shared>) -> Self {
        Self::new(stream, id, Carries::Control, Some(Bytes::from_static(&[CONTROL_STREAM])), shared)
    }

    fn new(
        stream: quinn::RecvStream,
        id: StreamId,
        carries: Carries,
        next: Option<Bytes>,
        shared: Arc<Shared>,
    ) -> Self {
        let frames = FrameReader::new(carries, shared.limits);
        Self { stream, id, shared, frames, next, data_header: (0, Bytes::new()), ended: None }
    }

    /// What the peer did wrong on this stream.
    pub(super) fn violation(&self) -> Option<Violation> {
        match self.ended {
            Some(Ended::Guard(GuardError::Violation(violation))) => Some(violation),
            _ => None,
        }
    }

    /// What h3 gets next from the bytes that are here.
    fn next_chunk(&mut self) -> Result<Option<Bytes>, Violation> {
        if let Some(next) = self.next.take() {
            return Ok(Some(next));
        }
        match self.frames.next()? {
            Some(Piece::Frame(frame)) => {
                if self.frames.settings_seen() {
                    self.shared.settings.send_if_modified(|seen| !std::mem::replace(seen, true));
                }
                Ok(Some(field_section::plain(frame)))
            }
            Some(Piece::Data(payload)) => {
                if self.data_header.0 != payload.len() {
                    self.data_header = (payload.len(), data_header(payload.len()));
                }
                self.next = Some(payload);
                Ok(Some(self.data_header.1.clone()))
            }
            None => Ok(None),
        }
    }

    fn violated(&mut self, violation: Violation) -> Ended {
        self.shared.violated(violation);
        // Fails only when the stream has ended by itself.
        let _ = self.stream.stop(quic_code(violation.code()));
        Ended::Guard(violation.into())
    }
}

impl quic::RecvStream for RecvStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        loop {
            if let Some(ended) = &self.ended {
                return Poll::Ready(ended.as_result());
            }
            match self.next_chunk() {
                Ok(Some(chunk)) => return Poll::Ready(Ok(Some(chunk))),
                Ok(None) => {}
                Err(violation) => {
                    self.ended = Some(self.violated(violation));
                    continue;
                }
            }
            match ready!(poll_chunk(&mut self.stream, usize::MAX, cx)) {
                Ok(Some(chunk)) => self.frames.push(chunk),
                Ok(None) => {
                    self.ended = Some(match self.frames.check_end() {
                        Ok(()) => Ended::Cleanly,
                        Err(violation) => self.violated(violation),
                    });
                }
                Err(error) => self.ended = Some(error.into()),
            }
        }
    }

    fn stop_sending(&mut self, error_code: u64) {
        if self.ended.is_none() {
            // Fails only when the stream has ended by itself.
            let _ = self.stream.stop(quic_code_from(error_code));
            self.ended = Some(Ended::Guard(GuardError::ReadStopped));
        }
    }

    fn recv_id(&self) -> StreamId {
        self.id
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        quic::RecvStream::stop_sending(self, Code::H3_REQUEST_CANCELLED.value());
    }
}

impl Ended {
    fn as_result(&self) -> Result<Option<Bytes>, StreamErrorIncoming> {
        match self {
            Self::Cleanly => Ok(None),
            Self::Reset { code } => Err(StreamErrorIncoming::StreamTerminated { error_code: *code }),
            Self::Lost(error) => {
                Err(StreamErrorIncoming::ConnectionErrorIncoming { connection_error: connection_error(error.clone()) })
            }
            Self::Guard(error) => Err(StreamErrorIncoming::Unknown(Box::new(*error))),
        }
    }
}

impl From<ReadError> for Ended {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Reset { code: code.into_inner() },
            ReadError::ConnectionLost(error) => Self::Lost(error),
            // We read in order and never send early data, so only a stream that we closed ourselves is left.
            ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => {
                Self::Guard(GuardError::Closed)
            }
        }
    }
}

/// Polls for the next bytes, at most `max` of them. Nothing is lost when the future of a read is dropped, so none is kept.
pub(super) fn poll_chunk(
    stream: &mut quinn::RecvStream,
    max: usize,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<Bytes>, ReadError>> {
    let read = pin!(stream.read_chunk(max, true));
    read.poll(cx).map_ok(|chunk| chunk.map(|chunk| chunk.bytes))
}

/// The type of a control stream (RFC 9114 section 6.2.1), in its only encoding that anyone uses.
const CONTROL_STREAM: u8 = 0;

/// The type and length of a DATA frame.
fn data_header(len: usize) -> Bytes {
    let (encoded, encoded_len) = varint::write(len as u64);
    let mut header = [0; 1 + varint::MAX_LEN];
    header[1..=encoded_len].copy_from_slice(&encoded[..encoded_len]);
    Bytes::copy_from_slice(&header[..=encoded_len])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_header_announces_the_length() {
        assert_eq!(data_header(1), [0, 1].as_slice());
        assert_eq!(data_header(1_200), [0, 0x44, 0xb0].as_slice());
        assert_eq!(data_header(16_384), [0, 0x80, 0, 0x40, 0].as_slice());
    }
}
