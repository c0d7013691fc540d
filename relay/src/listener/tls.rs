//! What handshakes are done with.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;

use super::{ListenError, ListenerConfig, quic};

/// The application protocols over TCP, best first (RFC 9113 section 3.2, RFC 7301 section 6).
const ALPN_TCP: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// What handshakes are done with over either transport. One value, so that both change at once.
pub(super) struct Tls {
    quic: Arc<quinn::ServerConfig>,
    tcp: TlsAcceptor,
}

impl Tls {
    /// Takes a configuration that serves QUIC; TCP differs in its application protocols only.
    pub(super) fn new(config: &ListenerConfig, tls: Arc<rustls::ServerConfig>) -> Result<Self, ListenError> {
        let tcp = acceptor(&tls);
        Ok(Self { quic: Arc::new(quic::server_config(config, tls)?), tcp })
    }

    /// The same with another configuration.
    pub(super) fn renewed(&self, tls: Arc<rustls::ServerConfig>) -> Result<Self, ListenError> {
        let tcp = acceptor(&tls);
        Ok(Self { quic: Arc::new(quic::with_tls(&self.quic, tls)?), tcp })
    }

    pub(super) fn quic(&self) -> Arc<quinn::ServerConfig> {
        Arc::clone(&self.quic)
    }

    pub(super) const fn tcp(&self) -> &TlsAcceptor {
        &self.tcp
    }
}

fn acceptor(tls: &rustls::ServerConfig) -> TlsAcceptor {
    let mut tls = tls.clone();
    tls.alpn_protocols = ALPN_TCP.map(<[u8]>::to_vec).into();
    TlsAcceptor::from(Arc::new(tls))
}
