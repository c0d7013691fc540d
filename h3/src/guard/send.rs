//! The sending half of a guarded stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{self, StreamErrorIncoming, StreamId, WriteBuf};
use quinn::WriteError;

use super::shared::{Shared, connection_error};
use crate::GuardError;
use crate::violation::{quic_code, quic_code_from};

/// The sending half of a guarded stream: see [the module](super).
///
/// Dropped before it was finished, it is reset (H3_REQUEST_CANCELLED): the peer must not take what it has for the whole.
pub struct SendStream {
    stream: quinn::SendStream,
    id: StreamId,
    /// The frame under way.
    writing: Option<WriteBuf<Bytes>>,
    closed: Option<Closed>,
    /// What the peer is told when the stream is dropped unfinished.
    pub(super) abandon_code: Code,
    /// Set on a request stream that a peer opened, until the first frame of the response is written.
    awaiting_response: Option<Arc<Shared>>,
}

/// How a stream was closed.
#[derive(Debug, Clone)]
enum Closed {
    /// Finished or reset on this side.
    Here,
    /// Reset on this side, since a write was given up half way.
    Abandoned,
    /// The peer stopped it.
    Stopped {
        code: u64,
    },
    Lost(quinn::ConnectionError),
}

impl SendStream {
    pub(super) fn new(stream: quinn::SendStream, id: StreamId, awaiting_response: Option<Arc<Shared>>) -> Self {
        let abandon_code = Code::H3_REQUEST_CANCELLED;
        Self { stream, id, writing: None, closed: None, abandon_code, awaiting_response }
    }

    /// Fails if nothing can be written any more; a frame that an earlier write left half way is such a case.
    fn check_open(&mut self) -> Result<(), StreamErrorIncoming> {
        if self.closed.is_none() && self.writing.take().is_some() {
            self.close_with(Code::H3_INTERNAL_ERROR.value(), Closed::Abandoned);
        }
        self.closed.as_ref().map_or(Ok(()), |closed| Err(closed.as_error()))
    }

    fn close_with(&mut self, code: u64, closed: Closed) {
        // Fails only when the stream is closed already.
        let _ = self.stream.reset(quic_code_from(code));
        self.closed = Some(closed);
    }
}

impl quic::SendStream<Bytes> for SendStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        if let Some(closed) = &self.closed {
            return Poll::Ready(Err(closed.as_error()));
        }
        let Some(writing) = &mut self.writing else { return Poll::Ready(Ok(())) };
        while writing.has_remaining() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, writing.chunk())) {
                Ok(written) => writing.advance(written),
                Err(error) => {
                    let closed = Closed::from(error);
                    let error = closed.as_error();
                    self.writing = None;
                    self.closed = Some(closed);
                    return Poll::Ready(Err(error));
                }
            }
        }
        self.writing = None;
        self.awaiting_response = None;
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.check_open()?;
        self.writing = Some(data.into());
        Ok(())
    }

    fn poll_finish(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.check_open()?;
        // Fails only when the stream is closed already.
        let _ = self.stream.finish();
        self.closed = Some(Closed::Here);
        Poll::Ready(Ok(()))
    }

    fn reset(&mut self, reset_code: u64) {
        self.close_with(reset_code, Closed::Here);
    }

    fn send_id(&self) -> StreamId {
        self.id
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if self.closed.is_none() {
            // quinn would finish it. Fails only when the connection is gone.
            let _ = self.stream.reset(quic_code(self.abandon_code));
        }
        if let Some(shared) = self.awaiting_response.take() {
            shared.count_unanswered();
        }
    }
}

impl Closed {
    fn as_error(&self) -> StreamErrorIncoming {
        match self {
            Self::Here => StreamErrorIncoming::Unknown(Box::new(GuardError::Closed)),
            Self::Abandoned => StreamErrorIncoming::Unknown(Box::new(GuardError::WriteAbandoned)),
            Self::Stopped { code } => StreamErrorIncoming::StreamTerminated { error_code: *code },
            Self::Lost(error) => {
                StreamErrorIncoming::ConnectionErrorIncoming { connection_error: connection_error(error.clone()) }
            }
        }
    }
}

impl From<WriteError> for Closed {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::Stopped { code: code.into_inner() },
            WriteError::ConnectionLost(error) => Self::Lost(error),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => Self::Here,
        }
    }
}
