//! The body of a request, whatever it comes over.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use telemetry_h3::guard::RecvStream;
use telemetry_h3::{Code, StreamFailure};
use tokio::sync::oneshot;

/// The reading half of a request's stream over HTTP/3.
pub(super) type Receiver = h3::server::RequestStream<RecvStream, Bytes>;

/// The body of a request. Its pieces are handed on as they arrived, uncopied; what is not read holds the sender back by flow
/// control. It ends well only if the stream did, after the trailers if there are any.
///
/// A piece is a part of one packet or one read, and may be as little as one byte; it keeps the whole of it in memory.
/// Whoever collects pieces counts them as well as their bytes.
///
/// The length is not compared with `Content-Length` here: that is the service's business, since it holds for every
/// transport.
pub struct RequestBody(Kind);

#[expect(
    clippy::large_enum_variant,
    reason = "nearly all requests come over HTTP/3, and should cost no allocation for that"
)]
enum Kind {
    Http3(Http3Body),
    Tcp(Incoming),
}

/// A body broke off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Over HTTP/3.
    #[error("the body broke off: {0}")]
    Http3(#[from] StreamFailure),
    /// Over HTTP/2 or HTTP/1.1: the stream was reset, the connection was lost, or the body has not the length or the form
    /// that its head announced.
    #[error("the body broke off")]
    Tcp,
}

impl RequestBody {
    pub(super) fn http3(receiver: Receiver, unread: oneshot::Sender<Receiver>) -> Self {
        Self(Kind::Http3(Http3Body { state: State::Data(receiver), unread: Some(unread) }))
    }

    pub(super) const fn tcp(body: Incoming) -> Self {
        Self(Kind::Tcp(body))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Kind::Http3(body) => body.poll_frame(cx),
            // hyper's own words may quote the peer's.
            Kind::Tcp(body) => Pin::new(body).poll_frame(cx).map_err(|_| BodyError::Tcp),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Http3(body) => matches!(body.state, State::Ended),
            Kind::Tcp(body) => body.is_end_stream(),
        }
    }
}

struct Http3Body {
    state: State,
    /// Where the receiver goes when the body is dropped before its end: it must not be stopped before the response is out.
    unread: Option<oneshot::Sender<Receiver>>,
}

enum State {
    Data(Receiver),
    Trailers(Receiver),
    Ended,
}

impl Http3Body {
    fn take(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Ended)
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let next = match &mut self.state {
                State::Data(receiver) => match ready!(receiver.poll_recv_data(cx)) {
                    Ok(Some(mut data)) => {
                        return Poll::Ready(Some(Ok(Frame::data(data.copy_to_bytes(data.remaining())))));
                    }
                    Ok(None) => {
                        if let State::Data(receiver) = self.take() {
                            self.state = State::Trailers(receiver);
                        }
                        continue;
                    }
                    Err(error) => Some(Err(error)),
                },
                State::Trailers(receiver) => ready!(receiver.poll_recv_trailers(cx)).transpose(),
                State::Ended => None,
            };
            self.state = State::Ended;
            return Poll::Ready(next.map(|trailers| match trailers {
                Ok(trailers) => Ok(Frame::trailers(trailers)),
                Err(error) => Err(StreamFailure::from(error).into()),
            }));
        }
    }
}

impl Drop for Http3Body {
    fn drop(&mut self) {
        if let (State::Data(receiver) | State::Trailers(receiver), Some(unread)) = (self.take(), self.unread.take())
            && let Err(receiver) = unread.send(receiver)
        {
            stop(receiver);
        }
    }
}

/// Tells the peer that the rest of its request is of no use, now that the response is complete (RFC 9114 section 4.1.1).
pub(super) fn stop(mut receiver: Receiver) {
    receiver.stop_sending(Code::H3_NO_ERROR);
}
