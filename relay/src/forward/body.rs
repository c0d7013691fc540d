//! A whole body as hyper takes it: block by block, none of them copied.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::intake::WholeBody;

/// The body of a request to a store. Holds the memory reservation until hyper lets go of it.
#[derive(Debug)]
pub(super) struct UpstreamBody {
    body: Upstream,
    next: usize,
    left: u64,
}

#[derive(Debug)]
enum Upstream {
    Nothing,
    AsReceived(WholeBody),
    /// A body that the relay had to write anew, beside the received one, which holds the reservation.
    Rewritten(Bytes, #[expect(dead_code, reason = "held for its reservation")] WholeBody),
}

impl UpstreamBody {
    pub(super) const fn nothing() -> Self {
        Self { body: Upstream::Nothing, next: 0, left: 0 }
    }

    pub(super) const fn as_received(body: WholeBody) -> Self {
        let left = body.len();
        Self { body: Upstream::AsReceived(body), next: 0, left }
    }

    pub(super) const fn rewritten(bytes: Bytes, received: WholeBody) -> Self {
        let left = bytes.len() as u64;
        Self { body: Upstream::Rewritten(bytes, received), next: 0, left }
    }

    fn pieces(&self) -> &[Bytes] {
        match &self.body {
            Upstream::Nothing => &[],
            Upstream::AsReceived(body) => body.chunks(),
            Upstream::Rewritten(bytes, _) => std::slice::from_ref(bytes),
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(piece) = self.pieces().get(self.next).cloned() else { return Poll::Ready(None) };
        self.next += 1;
        self.left = self.left.saturating_sub(piece.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.next >= self.pieces().len()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
