//! One connection: from the handshake to its end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use quinn::{ConnectionError, Incoming};
use rustls::pki_types::CertificateDer;
use telemetry_h3::Code;
use telemetry_h3::guard::Monitor;
use telemetry_h3::server::{self, Acceptor};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tower::Service;

use super::body::RequestBody;
use super::metrics::Meter;
use super::peers::Connected;
use super::request::{self, Failed, RequestContext};
use super::shared::{Shared, drain_begins, notice_panic, refusal_label};
use super::tls::Tls;
use super::transport::{Handle, varint};
use crate::gate::Peer;

/// How long a drained connection takes what its peer sent before it could know, at most.
const LAST_CALL: Duration = Duration::from_millis(500);

/// Does the handshake. A peer without an acceptable certificate does not get past it.
pub(super) async fn shake_hands(
    incoming: Incoming,
    tls: &Tls,
    shared: &Shared,
) -> Option<(quinn::Connection, Connected)> {
    let refuse = |kind| shared.metrics.count_refused(kind);
    let connecting = incoming.accept_with(tls.quic()).inspect_err(|error| refuse(handshake_failure(error))).ok()?;
    let connection = match timeout(shared.config.handshake_timeout, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            refuse(handshake_failure(&error));
            return None;
        }
        Err(_) => {
            refuse("handshake-timeout");
            return None;
        }
    };
    let Some(chain) = connection.peer_identity().and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok())
    else {
        // The TLS configuration requires a certificate; an embedder's may not.
        refuse("no-certificate");
        connection.close(varint(Code::H3_REQUEST_REJECTED), b"a client certificate is required");
        return None;
    };
    let Some(peer) = shared.identify(&chain, connection.remote_address()) else {
        refuse("no-runner");
        tracing::warn!(remote = %connection.remote_address(), "a certificate of the cluster names no runner");
        connection.close(varint(Code::H3_REQUEST_REJECTED), b"the certificate names no runner");
        return None;
    };
    let connected = Connected::new(peer, Arc::new(*chain), Handle::Quic(connection.clone()));
    Some((connection, connected))
}

/// Why a handshake failed, as a label.
fn handshake_failure(error: &ConnectionError) -> &'static str {
    match error {
        // The code that we closed it with: for most of them the alert of our TLS.
        ConnectionError::TransportError(error) => refusal_label(error.code.into()),
        ConnectionError::ConnectionClosed(_) | ConnectionError::ApplicationClosed(_) => "closed-by-peer",
        ConnectionError::TimedOut => "handshake-timeout",
        _ => "handshake",
    }
}

/// Serves the requests of a connection until it ends or the listener has drained. `tls` is what its handshake was done with.
pub(super) async fn serve<S, B>(
    connection: quinn::Connection,
    connected: Connected,
    tls: &Arc<Tls>,
    service: S,
    shared: Shared,
) where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    let _active = shared.metrics.connection();
    let peer = connected.peer.clone();
    let _presence = shared.peers.enter(connected, shared.config.max_connections_per_runner);
    // Whoever reloads asks again about every connection that is present. A handshake that was under way then was not, and
    // may have been done with what is no longer trusted.
    if !Arc::ptr_eq(tls, &shared.tls.load()) {
        shared.metrics.count_ended("reloaded");
        connection.close(varint(Code::H3_NO_ERROR), b"the TLS configuration has changed; try again");
        return;
    }
    tracing::debug!(peer = %peer.author(), remote = %peer.remote(), "peer connected");
    let Some((mut acceptor, monitor)) = Box::pin(begin(&connection, &shared)).await else { return };
    serve_requests(&mut acceptor, &monitor, &peer, service, &shared).await;
    drop(acceptor);
    if let Some(violation) = monitor.violation() {
        shared.metrics.count_ended(violation.as_str());
        tracing::warn!(peer = %peer.author(), remote = %peer.remote(), %violation, "a connection broke the rules");
    }
    tracing::debug!(peer = %peer.author(), remote = %peer.remote(), "peer disconnected");
}

/// Begins HTTP/3. The acceptor comes in a box: a future keeps the place of what it has taken apart, and this one's place is large.
async fn begin(connection: &quinn::Connection, shared: &Shared) -> Option<(Box<Acceptor>, Monitor)> {
    let begun = timeout(shared.config.handshake_timeout, server::begin(connection.clone(), shared.config.guard)).await;
    if let Ok(Ok((acceptor, monitor))) = begun {
        return Some((Box::new(acceptor), monitor));
    }
    shared.metrics.count_ended("no-http3");
    connection.close(varint(Code::H3_INTERNAL_ERROR), b"HTTP/3 did not begin");
    None
}

async fn serve_requests<S, B>(acceptor: &mut Acceptor, monitor: &Monitor, peer: &Peer, service: S, shared: &Shared)
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    let config = &shared.config;
    let context = RequestContext {
        peer: peer.clone(),
        header_timeout: config.header_timeout,
        write_timeout: config.write_timeout,
        metrics: shared.metrics.clone(),
    };
    let max_requests = config.transport.max_requests as usize;
    let mut draining = shared.draining.clone();
    let mut phase = Phase::Open;
    let mut requests = JoinSet::new();
    let mut settings = std::pin::pin!(timeout(config.handshake_timeout, monitor.settings()));
    let mut has_settings = false;
    while !(phase == Phase::Closed && requests.is_empty()) {
        tokio::select! {
            biased;
            // Finished requests make room for new ones.
            Some(ended) = requests.join_next() => account(ended, &shared.metrics),
            () = drain_begins(&mut draining), if phase == Phase::Open => {
                let announced = Box::pin(announce_end(acceptor, monitor, config.write_timeout)).await;
                let Ok(last_call) = announced else { break };
                phase = Phase::LastCall(last_call);
            }
            () = sleep_until(phase.ends()), if matches!(phase, Phase::LastCall(_)) => {
                let closed = Box::pin(close_door(acceptor, monitor, config.write_timeout)).await;
                let Ok(()) = closed else { break };
                phase = Phase::Closed;
            }
            in_time = &mut settings, if !has_settings => match in_time {
                Ok(()) => has_settings = true,
                Err(_) => {
                    shared.metrics.count_ended("no-settings");
                    monitor.quic().close(varint(Code::H3_MISSING_SETTINGS), b"no SETTINGS in time");
                    break;
                }
            },
            // This is also what drives the control stream. A peer has no more streams than this, so that their number can
            // be reached only while some are being cleared away.
            accepted = acceptor.accept(), if requests.len() < max_requests => match accepted {
                Ok(Some(resolver)) => {
                    let served = request::serve(resolver, monitor.take_watch(), service.clone(), context.clone());
                    // Boxed: a task moves what it runs several times, and a request's future is large.
                    requests.spawn(Box::pin(served));
                }
                // The peer goes away and all its requests are done, or the connection is lost.
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(peer = %peer.author(), error = ended(&error), "a connection ended");
                    break;
                }
            },
        }
    }
    // What still runs has nobody left to answer to.
    requests.abort_all();
    while let Some(ended) = requests.join_next().await {
        account(ended, &shared.metrics);
    }
}

/// How far a connection has come on the way to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// The peer was told that the end is near. What it sends until then is served.
    LastCall(Instant),
    /// Only what runs is finished.
    Closed,
}

impl Phase {
    /// When a last call ends.
    fn ends(self) -> Instant {
        match self {
            Self::LastCall(until) => until,
            Self::Open | Self::Closed => Instant::now(),
        }
    }
}

/// Says that the end is near, without naming a last request: those on their way shall not be lost (RFC 9114 section 5.2).
/// Tells when that has reached the peer, and what it sent before has reached us.
async fn announce_end(acceptor: &mut Acceptor, monitor: &Monitor, patience: Duration) -> Result<Instant, Gone> {
    // Before its first request h3 can't name a later one than that.
    if monitor.accepted_streams() > 0 {
        shut_down(acceptor, usize::MAX, patience).await?;
    }
    Ok(Instant::now() + monitor.quic().rtt().min(LAST_CALL))
}

/// Takes no more requests, and names the last one that was taken.
async fn close_door(acceptor: &mut Acceptor, monitor: &Monitor, patience: Duration) -> Result<(), Gone> {
    monitor.refuse_streams();
    shut_down(acceptor, 1, patience).await
}

/// The peer can't be told any more.
struct Gone;

async fn shut_down(acceptor: &mut Acceptor, more: usize, patience: Duration) -> Result<(), Gone> {
    match timeout(patience, acceptor.shutdown(more)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(Gone),
    }
}

fn account(ended: Result<Result<(), Failed>, JoinError>, metrics: &Meter) {
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(failed)) => metrics.count_failed(failed.as_str()),
        Err(error) => {
            metrics.count_failed(if error.is_panic() { "panicked" } else { "cut-off" });
            notice_panic(&error);
        }
    }
}

/// h3's own words may quote the peer's.
fn ended(error: &h3::error::ConnectionError) -> &'static str {
    if error.is_h3_no_error() { "closed by the peer" } else { "failed" }
}
