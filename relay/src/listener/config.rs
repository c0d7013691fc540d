//! Where and how to listen.

use std::net::SocketAddr;
use std::time::Duration;
use std::{fmt, io};

use telemetry_h3::GuardLimits;
use telemetry_h3::transport::TransportLimits;
use telemetry_h3::udp::WANTED_BUFFER_BYTES;

/// Where and how to listen. The defaults are for peers that nobody trusts.
#[derive(Clone, PartialEq)]
pub struct ListenerConfig {
    /// The UDP address, and the TCP address if [`tcp`](Self::tcp) is set.
    pub address: SocketAddr,
    /// Whether the same is served over TCP too, for networks that block UDP: on the same port, with HTTP/2 and HTTP/1.1, the
    /// same certificates and the same limits. Each of its connections costs a file descriptor. Default no.
    pub tcp: bool,
    /// Connections at a time, all runners and both transports together. Default 10,000.
    pub max_connections: usize,
    /// Connections at a time of one runner, over both transports; its oldest is closed for a new one. Default 16.
    pub max_connections_per_runner: usize,
    /// Handshakes at a time, over each transport. Default 256. Beyond it attempts from addresses that have proved themselves wait
    /// for 2 s; others are ignored, or over TCP closed; honest clients repeat theirs.
    pub max_handshakes: usize,
    /// Handshakes at a time from one IPv4 address or one IPv6 network (64-bit prefix). Default 64.
    pub max_handshakes_per_network: usize,
    /// From this many handshakes on, an address must prove itself with a Retry (RFC 9000 section 8.1.2). Default 64.
    pub retry_handshakes: usize,
    /// How long a handshake may take, and then the peer's SETTINGS. Default 10 s.
    pub handshake_timeout: Duration,
    /// How long the headers of a request may take. Default 10 s.
    pub header_timeout: Duration,
    /// How long a response may make no progress, and how long it may take to arrive once it is complete. Default 30 s.
    pub write_timeout: Duration,
    /// The UDP socket's buffers, in bytes each way. The system may grant less. Default 4 MiB.
    pub udp_buffer_bytes: usize,
    /// What one QUIC connection may use.
    pub transport: TransportLimits,
    /// What one HTTP/3 connection may use.
    pub guard: GuardLimits,
    /// The key of stateless resets (RFC 9000 section 10.3). Secret: with it, anyone can end any connection. Persisted, it
    /// lets clients notice a restart at once; without one they wait for their own idle timeout.
    pub reset_key: Option<[u8; 64]>,
}

impl ListenerConfig {
    /// The defaults at `address`.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            tcp: false,
            max_connections: 10_000,
            max_connections_per_runner: 16,
            max_handshakes: 256,
            max_handshakes_per_network: 64,
            retry_handshakes: 64,
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            udp_buffer_bytes: WANTED_BUFFER_BYTES,
            transport: TransportLimits::default(),
            guard: GuardLimits::default(),
            reset_key: None,
        }
    }
}

/// Without the secret.
impl fmt::Debug for ListenerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerConfig")
            .field("address", &self.address)
            .field("tcp", &self.tcp)
            .field("max_connections", &self.max_connections)
            .field("max_connections_per_runner", &self.max_connections_per_runner)
            .field("max_handshakes", &self.max_handshakes)
            .field("max_handshakes_per_network", &self.max_handshakes_per_network)
            .field("retry_handshakes", &self.retry_handshakes)
            .field("handshake_timeout", &self.handshake_timeout)
            .field("header_timeout", &self.header_timeout)
            .field("write_timeout", &self.write_timeout)
            .field("udp_buffer_bytes", &self.udp_buffer_bytes)
            .field("transport", &self.transport)
            .field("guard", &self.guard)
            .field("has_reset_key", &self.reset_key.is_some())
            .finish_non_exhaustive()
    }
}

/// Listening is impossible.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address can't be bound.
    #[error("can't listen on UDP {address}: {source}; is another program there, or is the port below 1024?")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The same address can't be bound for TCP.
    #[error("can't listen on TCP {address}: {source}; is another program there, or is the port below 1024?")]
    BindTcp {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The TLS configuration has no cipher suite that QUIC can use for its first packets (RFC 9001 section 5.2).
    #[error("the TLS configuration is of no use for QUIC: it lacks TLS13_AES_128_GCM_SHA256")]
    Tls,
    /// The TLS configuration accepts early data, which anyone can replay (RFC 8446 section 8).
    #[error("the TLS configuration accepts early data, which can be replayed: set max_early_data_size to 0")]
    EarlyData,
    /// The TLS configuration lets clients resume, which skips the verification of their certificates: a runner that was
    /// removed would come back.
    #[error(
        "the TLS configuration issues tickets, and resumption skips client certificates: set send_tls13_tickets to 0"
    )]
    Resumption,
    /// The TLS configuration does not offer HTTP/3.
    #[error("the TLS configuration does not offer HTTP/3: add h3 to its ALPN protocols")]
    Alpn,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reset_key_is_not_shown() {
        let mut config = ListenerConfig::new(([127, 0, 0, 1], 0).into());
        config.reset_key = Some([0xa5; 64]);
        let shown = format!("{config:?}");
        assert!(shown.contains("has_reset_key: true") && !shown.contains("165"), "{shown}");
    }
}
