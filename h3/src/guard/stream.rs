//! A guarded bidirectional stream.

use std::task::{Context, Poll};

use bytes::Bytes;
use h3::quic::{self, StreamErrorIncoming, StreamId, WriteBuf};

use super::{RecvStream, SendStream};

/// A guarded bidirectional stream: a request and its response.
pub struct BidiStream {
    send: SendStream,
    recv: RecvStream,
}

impl BidiStream {
    pub(super) fn new(send: SendStream, recv: RecvStream) -> Self {
        Self { send, recv }
    }
}

impl quic::BidiStream<Bytes> for BidiStream {
    type SendStream = SendStream;
    type RecvStream = RecvStream;

    fn split(self) -> (SendStream, RecvStream) {
        (self.send, self.recv)
    }
}

impl quic::RecvStream for BidiStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        let polled = self.recv.poll_data(cx);
        if let Some(violation) = self.recv.violation() {
            self.send.abandon_code = violation.code();
        }
        polled
    }

    fn stop_sending(&mut self, error_code: u64) {
        self.recv.stop_sending(error_code);
    }

    fn recv_id(&self) -> StreamId {
        self.recv.recv_id()
    }
}

impl quic::SendStream<Bytes> for BidiStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.send.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_finish(cx)
    }

    fn reset(&mut self, reset_code: u64) {
        self.send.reset(reset_code);
    }

    fn send_id(&self) -> StreamId {
        self.send.send_id()
    }
}
