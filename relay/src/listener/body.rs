//! The body of a request, as it comes over HTTP/3.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame};
use telemetry_h3::guard::RecvStream;
use telemetry_h3::{Code, StreamFailure};
use tokio::sync::oneshot;

/// The reading half of a request's stream.
pub(super) type Receiver = h3::server::RequestStream<RecvStream, Bytes>;

/// The body of a request. Its pieces are handed on as they arrived, uncopied; what is not read holds the sender back by flow
/// control. It ends well only if the stream did, after the trailers if there are any.
///
/// A piece is a part of one packet, and may be as little as one byte; it keeps the packet in memory. Whoever collects pieces
/// counts them as well as their bytes.
///
/// The length is not compared with `Content-Length` here: that is the service's business, since it holds for every
/// transport.
pub struct RequestBody {
    state: State,
    /// Where the receiver goes when the body is dropped before its end: it must not be stopped before the response is out.
    unread: Option<oneshot::Sender<Receiver>>,
}

enum State {
    Data(Receiver),
    Trailers(Receiver),
    Ended,
}

/// A body broke off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body broke off: {0}")]
pub struct BodyError(#[from] pub StreamFailure);

impl RequestBody {
    pub(super) fn new(receiver: Receiver, unread: oneshot::Sender<Receiver>) -> Self {
        Self { state: State::Data(receiver), unread: Some(unread) }
    }

    fn take(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Ended)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
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

    fn is_end_stream(&self) -> bool {
        matches!(self.state, State::Ended)
    }
}

impl Drop for RequestBody {
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
