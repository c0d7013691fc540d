//! A guarded connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId};
use quinn::ConnectionError;
use tokio_util::sync::ReusableBoxFuture;

use super::shared::{Shared, connection_error};
use super::uni::UniStreams;
use super::{BidiStream, Monitor, RecvStream, ResponseWatch, SendStream};
use crate::violation::quic_code;
use crate::{GuardError, GuardLimits, Violation};

/// A quinn connection for h3, guarded: see [the module](super).
pub struct Connection {
    shared: Arc<Shared>,
    accepting_bidi: ReusableBoxFuture<'static, Result<QuicBidi, ConnectionError>>,
    accepting_uni: ReusableBoxFuture<'static, Result<quinn::RecvStream, ConnectionError>>,
    uni: UniStreams,
    opener: OpenStreams,
}

type QuicBidi = (quinn::SendStream, quinn::RecvStream);

impl Connection {
    /// Guards `connection`.
    #[must_use]
    pub fn new(connection: quinn::Connection, limits: GuardLimits) -> Self {
        let shared = Arc::new(Shared::new(connection.clone(), limits));
        Self {
            accepting_bidi: ReusableBoxFuture::new(accept_bi(connection.clone())),
            accepting_uni: ReusableBoxFuture::new(accept_uni(connection)),
            uni: UniStreams::default(),
            opener: OpenStreams { shared: shared.clone(), bidi: None, uni: None },
            shared,
        }
    }

    /// A view of this connection, to be kept when h3 takes the connection itself.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::new(self.shared.clone())
    }

    fn violated(&self, violation: Violation) -> ConnectionErrorIncoming {
        self.shared.violated(violation);
        ConnectionErrorIncoming::Undefined(Arc::new(GuardError::from(violation)))
    }
}

impl quic::Connection<Bytes> for Connection {
    type RecvStream = RecvStream;
    type OpenStreams = OpenStreams;

    fn poll_accept_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<RecvStream, ConnectionErrorIncoming>> {
        while let Poll::Ready(accepted) = self.accepting_uni.poll(cx) {
            self.accepting_uni.set(accept_uni(self.shared.connection.clone()));
            self.uni.add(accepted.map_err(connection_error)?);
        }
        let control = ready!(self.uni.poll_control(&self.shared.limits, cx)).map_err(|v| self.violated(v))?;
        let id = stream_id(control.id())?;
        Poll::Ready(Ok(RecvStream::control(control, id, self.shared.clone())))
    }

    fn poll_accept_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<BidiStream, ConnectionErrorIncoming>> {
        loop {
            let accepted = ready!(self.accepting_bidi.poll(cx));
            self.accepting_bidi.set(accept_bi(self.shared.connection.clone()));
            let (mut send, mut recv) = accepted.map_err(connection_error)?;
            if self.shared.refusing.load(Ordering::Relaxed) {
                // Both fail only when the peer ended the stream already.
                let _ = recv.stop(quic_code(Code::H3_REQUEST_REJECTED));
                let _ = send.reset(quic_code(Code::H3_REQUEST_REJECTED));
                continue;
            }
            let id = stream_id(send.id())?;
            self.shared.accepted_count.fetch_add(1, Ordering::Relaxed);
            *self.shared.accepted.lock() = Some(ResponseWatch::new(id, &send));
            let send = SendStream::new(send, id, Some(self.shared.clone()));
            let recv = RecvStream::request(recv, id, self.shared.clone());
            return Poll::Ready(Ok(BidiStream::new(send, recv)));
        }
    }

    fn opener(&self) -> OpenStreams {
        self.opener.clone()
    }
}

impl quic::OpenStreams<Bytes> for Connection {
    type BidiStream = BidiStream;
    type SendStream = SendStream;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<BidiStream, StreamErrorIncoming>> {
        self.opener.poll_open_bidi(cx)
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendStream, StreamErrorIncoming>> {
        self.opener.poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.opener.close(code, reason);
    }
}

/// Opens guarded streams.
pub struct OpenStreams {
    shared: Arc<Shared>,
    bidi: Option<Opening<QuicBidi>>,
    uni: Option<Opening<quinn::SendStream>>,
}

/// Waits for the peer to allow another stream.
type Opening<S> = Pin<Box<dyn Future<Output = Result<S, ConnectionError>> + Send + Sync>>;

impl Clone for OpenStreams {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), bidi: None, uni: None }
    }
}

impl quic::OpenStreams<Bytes> for OpenStreams {
    type BidiStream = BidiStream;
    type SendStream = SendStream;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<BidiStream, StreamErrorIncoming>> {
        let connection = &self.shared.connection;
        let opening = self.bidi.get_or_insert_with(|| {
            let connection = connection.clone();
            Box::pin(async move { connection.open_bi().await })
        });
        let opened = ready!(opening.as_mut().poll(cx));
        self.bidi = None;
        let (send, recv) = opened.map_err(stream_error)?;
        let id = stream_id(send.id()).map_err(as_stream_error)?;
        let recv = RecvStream::response(recv, id, self.shared.clone());
        Poll::Ready(Ok(BidiStream::new(SendStream::new(send, id, None), recv)))
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendStream, StreamErrorIncoming>> {
        let connection = &self.shared.connection;
        let opening = self.uni.get_or_insert_with(|| {
            let connection = connection.clone();
            Box::pin(async move { connection.open_uni().await })
        });
        let opened = ready!(opening.as_mut().poll(cx));
        self.uni = None;
        let send = opened.map_err(stream_error)?;
        let id = stream_id(send.id()).map_err(as_stream_error)?;
        Poll::Ready(Ok(SendStream::new(send, id, None)))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.shared.connection.close(quic_code(code), reason);
    }
}

async fn accept_bi(connection: quinn::Connection) -> Result<QuicBidi, ConnectionError> {
    connection.accept_bi().await
}

async fn accept_uni(connection: quinn::Connection) -> Result<quinn::RecvStream, ConnectionError> {
    connection.accept_uni().await
}

/// quinn's ID as h3 knows it. Both are numbers below 2^62, so this does not fail.
fn stream_id(id: quinn::StreamId) -> Result<StreamId, ConnectionErrorIncoming> {
    StreamId::try_from(u64::from(id)).map_err(|invalid| ConnectionErrorIncoming::InternalError(invalid.to_string()))
}

fn stream_error(error: ConnectionError) -> StreamErrorIncoming {
    as_stream_error(connection_error(error))
}

fn as_stream_error(connection_error: ConnectionErrorIncoming) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error }
}
