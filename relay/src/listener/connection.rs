//! One connection: from the handshake to its end.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use quinn::{ConnectionError, Incoming};
use rustls::pki_types::CertificateDer;
use telemetry_certs::PeerIdentity;
use telemetry_h3::Code;
use telemetry_h3::guard::Monitor;
use telemetry_h3::server::{self, Acceptor};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::Service;

use super::body::RequestBody;
use super::metrics::{Counted, ListenerMetrics};
use super::peers::{Connected, Peers};
use super::request::{self, RequestLimits};
use super::{ListenerConfig, varint};
use crate::gate::Peer;

/// What every connection shares.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) config: Arc<ListenerConfig>,
    pub(super) metrics: ListenerMetrics,
    pub(super) peers: Peers,
    /// True once the listener drains.
    pub(super) draining: watch::Receiver<bool>,
}

/// Does the handshake. A peer without an acceptable certificate does not get past it.
pub(super) async fn shake_hands(
    incoming: Incoming,
    tls: Arc<quinn::ServerConfig>,
    shared: &Shared,
) -> Option<(quinn::Connection, Connected)> {
    let refuse = |kind| shared.metrics.count_refused(kind);
    let connecting = incoming.accept_with(tls).inspect_err(|_| refuse("handshake")).ok()?;
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
    let identity = chain.first().map(PeerIdentity::from_leaf);
    let Some(Ok(identity)) = identity else {
        refuse("no-runner");
        tracing::warn!(remote = %connection.remote_address(), "a certificate of the cluster names no runner");
        connection.close(varint(Code::H3_REQUEST_REJECTED), b"the certificate names no runner");
        return None;
    };
    let peer = Peer::new(identity, connection.remote_address());
    let connected = Connected::new(peer, Arc::new(*chain), connection.clone());
    Some((connection, connected))
}

/// The peer's part in a failed handshake, as a label.
fn handshake_failure(error: &ConnectionError) -> &'static str {
    match error {
        ConnectionError::TransportError(_) => "certificate",
        ConnectionError::ConnectionClosed(_) | ConnectionError::ApplicationClosed(_) => "closed-by-peer",
        ConnectionError::TimedOut => "handshake-timeout",
        _ => "handshake",
    }
}

/// Serves the requests of a connection until it ends or the listener has drained.
pub(super) async fn serve<S, B>(connection: quinn::Connection, connected: Connected, service: S, shared: Shared)
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    let _active = Counted::new(&shared.metrics.active);
    shared.metrics.count_accepted();
    let peer = connected.peer.clone();
    let _presence = shared.peers.enter(connected, shared.config.max_connections_per_runner);
    tracing::debug!(runner = %peer.runner(), remote = %peer.remote(), "runner connected");
    let begun = timeout(shared.config.handshake_timeout, server::begin(connection.clone(), shared.config.guard)).await;
    let Ok(Ok((acceptor, monitor))) = begun else {
        shared.metrics.count_ended("no-http3");
        connection.close(varint(Code::H3_INTERNAL_ERROR), b"HTTP/3 did not begin");
        return;
    };
    serve_requests(acceptor, &monitor, &peer, service, &shared).await;
    if let Some(violation) = monitor.violation() {
        shared.metrics.count_ended("violation");
        tracing::warn!(runner = %peer.runner(), remote = %peer.remote(), %violation, "a connection broke the rules");
    }
    tracing::debug!(runner = %peer.runner(), remote = %peer.remote(), "runner disconnected");
}

async fn serve_requests<S, B>(mut acceptor: Acceptor, monitor: &Monitor, peer: &Peer, service: S, shared: &Shared)
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    let config = &shared.config;
    let limits = RequestLimits { header_timeout: config.header_timeout, write_timeout: config.write_timeout };
    let max_requests = config.transport.max_requests as usize;
    let mut draining = shared.draining.clone();
    let mut requests = JoinSet::new();
    let mut going_away = false;
    let settings = timeout(config.handshake_timeout, monitor.settings());
    let mut settings = std::pin::pin!(settings);
    let mut has_settings = false;
    loop {
        if going_away && requests.is_empty() {
            break;
        }
        tokio::select! {
            biased;
            // Finished requests make room for new ones, and tell when a drained connection may end.
            Some(_) = requests.join_next() => {}
            () = drain_begins(&mut draining), if !going_away => {
                going_away = true;
                monitor.refuse_streams();
                if !matches!(timeout(config.write_timeout, acceptor.shutdown(1)).await, Ok(Ok(()))) {
                    break;
                }
            }
            in_time = &mut settings, if !has_settings => match in_time {
                Ok(()) => has_settings = true,
                Err(_) => {
                    shared.metrics.count_ended("no-settings");
                    break;
                }
            },
            // Also drives the control stream, so it is polled even when no request would be taken.
            accepted = acceptor.accept(), if requests.len() < max_requests => match accepted {
                Ok(Some(resolver)) => {
                    let watch = monitor.take_watch();
                    let (peer, service) = (peer.clone(), service.clone());
                    requests.spawn(request::serve(
                        resolver, watch, peer, service, limits.clone(), shared.metrics.clone(),
                    ));
                }
                // The peer goes away and all its requests are done, or the connection is lost.
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(runner = %peer.runner(), error = ended(&error), "a connection ended");
                    break;
                }
            },
        }
    }
    // What still runs has nobody left to answer to.
    requests.abort_all();
    while requests.join_next().await.is_some() {}
}

/// Completes when the listener drains, or when its handle is gone.
pub(super) async fn drain_begins(draining: &mut watch::Receiver<bool>) {
    let _ = draining.wait_for(|drain| *drain).await;
}

/// h3's own words may quote the peer's.
fn ended(error: &h3::error::ConnectionError) -> &'static str {
    if error.is_h3_no_error() { "closed by the peer" } else { "failed" }
}
