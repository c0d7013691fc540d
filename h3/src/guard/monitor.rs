//! What whoever drives a connection can see of it, and do, beside h3.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use h3::error::Code;
use h3::quic::StreamId;
use quinn::{StoppedError, VarInt};

use super::shared::Shared;
use crate::Violation;

/// A view of one guarded connection, beside the h3 connection that owns it. Cheap to clone.
#[derive(Clone)]
pub struct Monitor {
    shared: Arc<Shared>,
}

impl Monitor {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The QUIC connection below.
    #[must_use]
    pub fn quic(&self) -> &quinn::Connection {
        &self.shared.connection
    }

    /// Whether the peer's SETTINGS arrived.
    #[must_use]
    pub fn has_settings(&self) -> bool {
        *self.shared.settings.borrow()
    }

    /// Completes when the peer's SETTINGS arrived. From a server of ours they say that it accepted the client's certificate,
    /// which it has not looked at yet when the client's own handshake is done; others may send them before they have looked
    /// (RFC 9001 section 5.7).
    ///
    /// Only while someone drives the h3 connection. Pends for ever if they never come.
    pub async fn settings(&self) {
        let mut settings = self.shared.settings.subscribe();
        // Fails only when the sender is gone, and we hold it.
        let _ = settings.wait_for(|seen| *seen).await;
    }

    /// What the peer did that made the guard close the connection.
    #[must_use]
    pub fn violation(&self) -> Option<Violation> {
        self.shared.violation()
    }

    /// How many of the peer's request streams ever ended before any response was sent on them. The guard closes the
    /// connection when too many do lately: see [`max_unanswered_streams`](crate::GuardLimits::max_unanswered_streams).
    #[must_use]
    pub fn unanswered_streams(&self) -> u64 {
        self.shared.unanswered_ever()
    }

    /// How many request streams of the peer were let through.
    #[must_use]
    pub fn accepted_streams(&self) -> u64 {
        self.shared.accepted_count.load(Ordering::Relaxed)
    }

    /// From now on turns away every request stream that h3 has not seen, with H3_REQUEST_REJECTED: nothing of it was
    /// processed, and the peer may send it elsewhere (RFC 9114 section 4.1.1).
    ///
    /// To be followed by `h3::server::Connection::shutdown(1)`, which then announces just the streams that were let through
    /// as the last ones. (h3 alone would announce the last accepted one as unprocessed, or accept one more than announced.)
    pub fn refuse_streams(&self) {
        self.shared.refusing.store(true, Ordering::Relaxed);
    }

    /// The watch over the request stream that h3 accepted last; once for each stream.
    #[must_use]
    pub fn take_watch(&self) -> Option<ResponseWatch> {
        self.shared.accepted.lock().take()
    }
}

/// Tells what becomes of the response on one request stream.
pub struct ResponseWatch {
    id: StreamId,
    end: Watched,
}

enum Watched {
    Pending(Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>> + Send + Sync>>),
    Ended(ResponseEnd),
}

/// What became of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseEnd {
    /// The whole of it arrived, if it was finished. (The reset of a response that was cancelled on this side arrived.)
    Delivered,
    /// The peer does not want it any more.
    Stopped(Code),
    /// The connection is gone.
    ConnectionLost,
}

impl ResponseWatch {
    pub(super) fn new(id: StreamId, stream: &quinn::SendStream) -> Self {
        Self { id, end: Watched::Pending(Box::pin(stream.stopped())) }
    }

    /// The stream's ID.
    #[must_use]
    pub const fn id(&self) -> StreamId {
        self.id
    }

    /// Completes when the response was delivered or nobody waits for it. May be dropped and called again.
    pub async fn ended(&mut self) -> ResponseEnd {
        let end = match &mut self.end {
            Watched::Ended(end) => return *end,
            Watched::Pending(stopped) => match stopped.as_mut().await {
                Ok(None) => ResponseEnd::Delivered,
                Ok(Some(code)) => ResponseEnd::Stopped(Code::from(code.into_inner())),
                Err(_) => ResponseEnd::ConnectionLost,
            },
        };
        self.end = Watched::Ended(end);
        end
    }
}
