//! What QUIC is told before it listens.

use std::sync::Arc;

use aws_lc_rs::hmac;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use quinn_proto::HashedConnectionIdGenerator;
use telemetry_h3::{transport, udp};

use super::{ListenError, ListenerConfig};

/// How much may wait for the accept loop: connection attempts, and the bytes of one and of all of them.
const MAX_INCOMING: usize = 1_024;
const INCOMING_BYTES: u64 = 64 * 1024;
const INCOMING_BYTES_TOTAL: u64 = 16 * 1024 * 1024;

/// The application protocol (RFC 9114 section 3.1).
const ALPN: &[u8] = b"h3";

/// Binds the socket.
pub(super) fn bind(config: &ListenerConfig, server: &ServerConfig) -> Result<Endpoint, ListenError> {
    let bind_failed = |source| ListenError::Bind { address: config.address, source };
    let (socket, granted) = udp::bind_udp(config.address, config.udp_buffer_bytes).map_err(bind_failed)?;
    if granted.receive < config.udp_buffer_bytes {
        tracing::warn!(
            wanted_bytes = config.udp_buffer_bytes,
            granted_bytes = granted.receive,
            "the UDP receive buffer is smaller than wanted; raise net.core.rmem_max"
        );
    }
    let endpoint = endpoint_config(config.reset_key.as_ref());
    Endpoint::new(endpoint, Some(server.clone()), socket, Arc::new(TokioRuntime)).map_err(bind_failed)
}

/// The settings of a server with this TLS configuration.
pub(super) fn server_config(
    config: &ListenerConfig,
    tls: Arc<rustls::ServerConfig>,
) -> Result<ServerConfig, ListenError> {
    let mut server = ServerConfig::with_crypto(Arc::new(crypto(tls)?));
    server
        .transport_config(Arc::new(transport::server(&config.transport)))
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES_TOTAL);
    Ok(server)
}

/// The same settings with another TLS configuration. All else stays: another token key would break the Retry tokens that
/// are out.
pub(super) fn with_tls(server: &ServerConfig, tls: Arc<rustls::ServerConfig>) -> Result<ServerConfig, ListenError> {
    let mut server = server.clone();
    server.crypto = Arc::new(crypto(tls)?);
    Ok(server)
}

/// Takes a TLS configuration that lets no one in without asking for a certificate. Whether it asks at all can't be seen
/// here; a connection without a certificate is closed after its handshake.
fn crypto(tls: Arc<rustls::ServerConfig>) -> Result<QuicServerConfig, ListenError> {
    if tls.max_early_data_size > 0 {
        return Err(ListenError::EarlyData);
    }
    if tls.send_tls13_tickets > 0 {
        return Err(ListenError::Resumption);
    }
    if !tls.alpn_protocols.iter().any(|protocol| protocol == ALPN) {
        return Err(ListenError::Alpn);
    }
    // `QuicServerConfig::new` and `with_single_cert` would allow early data.
    QuicServerConfig::try_from(tls).map_err(|_| ListenError::Tls)
}

fn endpoint_config(reset_key: Option<&[u8; 64]>) -> EndpointConfig {
    let Some(reset_key) = reset_key else { return EndpointConfig::default() };
    let reset_key = hmac::Key::new(hmac::HMAC_SHA256, reset_key);
    // An endpoint resets only connections whose IDs it takes for its own, so that the IDs must persist as well. They are
    // seen by everyone and their hash is weak; the reset key can't be told from a key that is made of it.
    let connection_ids = hmac::sign(&reset_key, b"connection IDs");
    let connection_ids = connection_ids.as_ref().iter().take(8).fold(0, |key, byte| key << 8 | u64::from(*byte));
    let mut config = EndpointConfig::new(Arc::new(reset_key));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(connection_ids)));
    config
}
