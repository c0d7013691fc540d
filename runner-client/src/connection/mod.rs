//! The connection to the coordinator.

mod better;
mod coordinator;
mod dial;
mod error;
mod fallback;
mod link;
mod live;
mod quic;
mod schedule;
mod tcp;
mod transport;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig};
use telemetry_certs::{ClientTls, Credentials, Roots, TlsError, client_config};
use telemetry_h3::transport::{TransportLimits, client};
use tokio_rustls::TlsConnector;

pub use coordinator::CoordinatorError;
pub use error::{ConnectError, ConnectErrorKind, SendError};
pub use fallback::TcpFallback;
pub use link::CoordinatorPeer;
pub use live::Carrier;
pub use transport::Transport;

pub(crate) use better::RETURN_INTERVAL;
pub(crate) use coordinator::Coordinator;
pub(crate) use link::{Link, TriedOut};

use crate::backoff::Jitter;
use crate::metrics::ConnectionMetrics;
use dial::Dialer;

/// What the client shows and trusts can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// Certificates that make no TLS configuration.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A TLS configuration that QUIC can't use.
    #[error(transparent)]
    Quic(#[from] NoInitialCipherSuite),
}

/// What the client shows and trusts, as each carrier wants it.
#[derive(Clone)]
pub(crate) struct Identity {
    quic: quinn::ClientConfig,
    tcp: TlsConnector,
}

/// Begins to keep a connection to one of `coordinators`, which are in order of preference. Call it in a runtime.
pub(crate) fn start(
    coordinators: Vec<Coordinator>,
    identity: Identity,
    fallback: Option<TcpFallback>,
    return_interval: Duration,
    jitter: Arc<Jitter>,
    request_timeout: Duration,
    metrics: ConnectionMetrics,
) -> io::Result<Arc<Link>> {
    let dialer = Dialer::new(coordinators, identity, fallback, return_interval, jitter)?;
    Ok(Link::start(dialer, request_timeout, metrics))
}

/// What the client shows and trusts.
pub(crate) fn identity(credentials: &Credentials, server_roots: &Roots) -> Result<Identity, IdentityError> {
    let tls = |alpn| client_config(ClientTls { credentials, server_roots, alpn });
    let mut quic = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls(&[b"h3"])?)?));
    quic.transport_config(Arc::new(client(&TransportLimits::default())));
    Ok(Identity { quic, tcp: TlsConnector::from(Arc::new(tls(&[b"h2"])?)) })
}
