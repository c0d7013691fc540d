//! The connection to the coordinator.

mod coordinator;
mod dial;
mod error;
mod link;
mod live;
mod schedule;
mod transport;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig};
use telemetry_certs::{ClientTls, Credentials, Roots, TlsError, client_config};
use telemetry_h3::transport::{TransportLimits, client};

pub use coordinator::CoordinatorError;
pub use error::{ConnectError, ConnectErrorKind, SendError};
pub use transport::Transport;

pub(crate) use coordinator::Coordinator;
pub(crate) use link::Link;

use crate::backoff::Jitter;
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

/// Begins to keep a connection to one of `coordinators`. Call it in a runtime.
pub(crate) fn start(
    coordinators: Vec<Coordinator>,
    identity: quinn::ClientConfig,
    jitter: Arc<Jitter>,
    request_timeout: Duration,
) -> io::Result<Arc<Link>> {
    Ok(Link::start(Dialer::new(coordinators, identity, jitter)?, request_timeout))
}

/// What the client shows and trusts, as quinn wants it.
pub(crate) fn identity(credentials: &Credentials, server_roots: &Roots) -> Result<quinn::ClientConfig, IdentityError> {
    let tls = client_config(ClientTls { credentials, server_roots, alpn: &[b"h3"] })?;
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(Arc::new(client(&TransportLimits::default())));
    Ok(config)
}
