//! The unidirectional streams that a peer opens (RFC 9114 section 6.2).
//!
//! h3 sees the control stream and nothing else. The QPACK streams it would keep and never read, so that what a peer sends on
//! them stays in our buffers; they are drained here, within a limit.

use std::task::{Context, Poll};

use bytes::Bytes;
use h3::error::Code;
use quinn::ReadError;

use super::recv::poll_chunk;
use crate::violation::quic_code;
use crate::{GuardLimits, Violation, varint};

/// Sorts the streams by type and takes care of all but the control stream.
#[derive(Default)]
pub(super) struct UniStreams {
    /// Streams whose type has not arrived. Bounded by the number of streams that a peer may have open.
    untyped: Vec<Untyped>,
    control: Opened,
    encoder: Opened,
    decoder: Opened,
    qpack: Vec<quinn::RecvStream>,
    qpack_bytes: u64,
    unknown: u32,
}

/// Whether a stream that may exist once exists.
type Opened = bool;

impl UniStreams {
    pub(super) fn add(&mut self, stream: quinn::RecvStream) {
        self.untyped.push(Untyped { stream, bytes: [0; varint::MAX_LEN], len: 0 });
    }

    /// Reads what is there to read; ready with the control stream when that is among it.
    pub(super) fn poll_control(
        &mut self,
        limits: &GuardLimits,
        cx: &mut Context<'_>,
    ) -> Poll<Result<quinn::RecvStream, Violation>> {
        let mut next = 0;
        while let Some(stream) = self.untyped.get_mut(next) {
            let Poll::Ready(kind) = stream.poll_type(cx) else {
                next += 1;
                continue;
            };
            let stream = self.untyped.swap_remove(next).stream;
            match kind {
                Some(CONTROL) => {
                    open_once(&mut self.control)?;
                    return Poll::Ready(Ok(stream));
                }
                Some(ENCODER) => {
                    open_once(&mut self.encoder)?;
                    self.qpack.push(stream);
                }
                Some(DECODER) => {
                    open_once(&mut self.decoder)?;
                    self.qpack.push(stream);
                }
                // Clients may not push, and we never allow a server to.
                Some(PUSH) => return Poll::Ready(Err(Violation::UnexpectedStream)),
                Some(_) => self.turn_away(stream, limits)?,
                // A stream may end before its type arrives.
                None => {}
            }
        }
        self.drain_qpack(limits, cx)?;
        Poll::Pending
    }

    fn turn_away(&mut self, mut stream: quinn::RecvStream, limits: &GuardLimits) -> Result<(), Violation> {
        // Fails only when the stream has ended by itself.
        let _ = stream.stop(quic_code(Code::H3_STREAM_CREATION_ERROR));
        self.unknown = self.unknown.saturating_add(1);
        if self.unknown > limits.max_unknown_streams { Err(Violation::TooManyUnknownStreams) } else { Ok(()) }
    }

    fn drain_qpack(&mut self, limits: &GuardLimits, cx: &mut Context<'_>) -> Result<(), Violation> {
        for stream in &mut self.qpack {
            while let Poll::Ready(chunk) = poll_chunk(stream, usize::MAX, cx) {
                match chunk {
                    Ok(Some(chunk)) => self.qpack_bytes += chunk.len() as u64,
                    Ok(None) | Err(ReadError::Reset(_)) => return Err(Violation::ClosedCriticalStream),
                    // The connection is gone; whoever accepts streams will say so.
                    Err(_) => break,
                }
                if self.qpack_bytes > limits.max_qpack_bytes {
                    return Err(Violation::TooMuchQpack);
                }
            }
        }
        Ok(())
    }
}

/// A stream whose type has not arrived.
struct Untyped {
    stream: quinn::RecvStream,
    bytes: [u8; varint::MAX_LEN],
    len: usize,
}

impl Untyped {
    /// Ready with the type, or with `None` when the stream ended before. Reads not a byte more.
    fn poll_type(&mut self, cx: &mut Context<'_>) -> Poll<Option<u64>> {
        loop {
            let bytes = &self.bytes[..self.len];
            if let Some((kind, _)) = varint::read(bytes) {
                return Poll::Ready(Some(kind));
            }
            let missing = bytes.first().map_or(1, |first| varint::len(*first) - self.len);
            let chunk: Bytes = match std::task::ready!(poll_chunk(&mut self.stream, missing, cx)) {
                Ok(Some(chunk)) => chunk,
                Ok(None) | Err(_) => return Poll::Ready(None),
            };
            self.bytes[self.len..self.len + chunk.len()].copy_from_slice(&chunk);
            self.len += chunk.len();
        }
    }
}

fn open_once(opened: &mut Opened) -> Result<(), Violation> {
    if std::mem::replace(opened, true) { Err(Violation::UnexpectedStream) } else { Ok(()) }
}

// Stream types (RFC 9114 section 6.2, RFC 9204 section 4.2).
const CONTROL: u64 = 0x00;
const PUSH: u64 = 0x01;
const ENCODER: u64 = 0x02;
const DECODER: u64 = 0x03;
