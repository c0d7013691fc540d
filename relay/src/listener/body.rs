//! The body of a request, as it comes over HTTP/3.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use telemetry_h3::StreamFailure;
use telemetry_h3::guard::RecvStream;
use tokio::sync::oneshot;

/// The reading half of a request's stream.
pub(super) type Receiver = h3::server::RequestStream<RecvStream, Bytes>;

/// The body of a request. Its pieces are handed on as they arrived, uncopied; what is not read holds the sender back by flow
/// control. Trailers are not handed on.
///
/// The length is not compared with `Content-Length` here: that is the service's business, since it holds for every
/// transport.
pub struct RequestBody {
    receiver: Option<Receiver>,
    /// Where the receiver goes when the body is dropped before its end: it must not be stopped before the response is out.
    unread: Option<oneshot::Sender<Receiver>>,
}

/// A body broke off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body broke off: {0}")]
pub struct BodyError(#[from] pub StreamFailure);

impl RequestBody {
    pub(super) fn new(receiver: Receiver, unread: oneshot::Sender<Receiver>) -> Self {
        Self { receiver: Some(receiver), unread: Some(unread) }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(receiver) = &mut self.receiver else { return Poll::Ready(None) };
        match ready!(receiver.poll_recv_data(cx)) {
            Ok(Some(mut data)) => Poll::Ready(Some(Ok(Frame::data(data.copy_to_bytes(data.remaining()))))),
            Ok(None) => {
                self.receiver = None;
                Poll::Ready(None)
            }
            Err(error) => {
                self.receiver = None;
                Poll::Ready(Some(Err(StreamFailure::from(error).into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.receiver.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let (Some(receiver), Some(unread)) = (self.receiver.take(), self.unread.take()) {
            // If nobody takes it any more, dropping it stops the stream.
            let _ = unread.send(receiver);
        }
    }
}
