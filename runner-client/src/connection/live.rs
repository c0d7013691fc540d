//! A connection that a coordinator accepted, whatever it runs over.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use telemetry_proto::{Reason, Route, header};

use super::coordinator::Coordinator;
use super::error::{ConnectError, SendError};
use super::quic::QuicConnection;
use super::tcp::TcpConnection;

/// What a connection to a coordinator runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// QUIC, and HTTP/3 on it.
    Quic,
    /// TCP with TLS, and HTTP/2 on it: the way where UDP does not get through.
    Tcp,
}

impl Carrier {
    /// Both of them.
    pub(crate) const ALL: [Self; 2] = [Self::Quic, Self::Tcp];

    /// Its name, as in metrics and in the agent's status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::Tcp => "tcp",
        }
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A connection that the coordinator accepted, our certificate included.
pub(super) struct Live {
    coordinator: Coordinator,
    retired: AtomicBool,
    /// The coordinator takes no more requests on it.
    going_away: AtomicBool,
    connection: Connection,
}

enum Connection {
    Quic(QuicConnection),
    Tcp(TcpConnection),
}

impl Live {
    pub(super) const fn quic(connection: QuicConnection, coordinator: Coordinator) -> Self {
        Self::new(coordinator, Connection::Quic(connection))
    }

    pub(super) const fn tcp(connection: TcpConnection, coordinator: Coordinator) -> Self {
        Self::new(coordinator, Connection::Tcp(connection))
    }

    const fn new(coordinator: Coordinator, connection: Connection) -> Self {
        Self { coordinator, retired: AtomicBool::new(false), going_away: AtomicBool::new(false), connection }
    }

    pub(super) const fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    pub(super) const fn carrier(&self) -> Carrier {
        match self.connection {
            Connection::Quic(_) => Carrier::Quic,
            Connection::Tcp(_) => Carrier::Tcp,
        }
    }

    /// The address at the other end.
    pub(super) fn remote(&self) -> SocketAddr {
        match &self.connection {
            Connection::Quic(quic) => quic.remote(),
            Connection::Tcp(tcp) => tcp.remote(),
        }
    }

    /// The present estimate of the round trip; over TCP that of the beginning.
    pub(super) fn round_trip(&self) -> Duration {
        match &self.connection {
            Connection::Quic(quic) => quic.round_trip(),
            Connection::Tcp(tcp) => tcp.round_trip(),
        }
    }

    /// Whether new requests may go over it.
    pub(super) fn is_usable(&self) -> bool {
        let is_open = match &self.connection {
            Connection::Quic(quic) => quic.is_open(),
            Connection::Tcp(tcp) => tcp.is_open(),
        };
        is_open && !self.retired.load(Ordering::Relaxed)
    }

    /// No more new requests; those under way go on.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Whether the coordinator has said that it goes away.
    pub(super) fn is_going_away(&self) -> bool {
        self.going_away.load(Ordering::Relaxed)
    }

    /// Ends it, with all that is under way.
    pub(super) fn close(&self) {
        match &self.connection {
            Connection::Quic(quic) => quic.close(),
            Connection::Tcp(tcp) => tcp.close(),
        }
    }

    /// Why it ended, once it has.
    pub(super) async fn closed(&self) -> ConnectError {
        match &self.connection {
            Connection::Quic(quic) => quic.closed().await,
            Connection::Tcp(tcp) => tcp.closed().await,
        }
    }

    /// Resolves when the other side seems dead. Over TCP nothing is known before it is certain.
    pub(super) async fn suspected(&self) {
        match &self.connection {
            Connection::Quic(quic) => quic.suspected().await,
            Connection::Tcp(_) => std::future::pending().await,
        }
    }

    /// Whether the other side was heard after it was suspected.
    pub(super) fn spoke_since_suspicion(&self) -> bool {
        match &self.connection {
            Connection::Quic(quic) => quic.spoke_since_suspicion(),
            Connection::Tcp(_) => true,
        }
    }

    /// Watches, while a request is under way, whether what is sent is acknowledged. Over TCP, HTTP/2's own pings do that.
    pub(super) async fn mind_silence(&self) -> Infallible {
        match &self.connection {
            Connection::Quic(quic) => quic.mind_silence().await,
            Connection::Tcp(_) => std::future::pending().await,
        }
    }

    /// Sends `request` and reads the response whole. The caller bounds the wait.
    pub(super) async fn exchange(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, SendError> {
        *request.uri_mut() = self.absolute(request.uri());
        let result = match &self.connection {
            Connection::Quic(quic) => quic.exchange(request).await,
            Connection::Tcp(tcp) => tcp.exchange(request).await,
        };
        let result = result.and_then(taken);
        if let Err(SendError::NotSent(ConnectError::GoingAway)) = &result {
            self.going_away.store(true, Ordering::Relaxed);
            self.retire();
        }
        result
    }

    /// Waits for an answer to a request that costs the coordinator next to nothing. What it says is no matter: one that is too
    /// old to have a policy says so. The caller bounds the wait.
    pub(super) async fn prove(&self) -> Result<(), ConnectError> {
        let mut request = Request::new(Bytes::new());
        *request.method_mut() = Route::Policy.method();
        *request.uri_mut() = Uri::from_static(Route::Policy.path());
        match self.exchange(request).await {
            Ok(_) => Ok(()),
            Err(SendError::NotSent(error)) => Err(error),
            Err(SendError::Lost(error)) => Err(ConnectError::Broken(error)),
            Err(SendError::Timeout) => Err(ConnectError::Timeout),
        }
    }

    fn absolute(&self, relative: &Uri) -> Uri {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTPS);
        parts.authority = Some(self.coordinator.authority().clone());
        parts.path_and_query =
            Some(relative.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
        // The parts are whole and valid.
        Uri::from_parts(parts).unwrap_or_default()
    }
}

/// A coordinator that stops says so, to a request that came before its GOAWAY was heard. When to come again is not for it to
/// say: another one may be there already.
fn taken(response: Response<Bytes>) -> Result<Response<Bytes>, SendError> {
    let reason = response.headers().get(header::REASON).and_then(|reason| Reason::from_header(reason.as_bytes()));
    match reason {
        Some(Reason::Draining) => Err(SendError::NotSent(ConnectError::GoingAway)),
        _ => Ok(response),
    }
}
