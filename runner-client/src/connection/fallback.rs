//! When to go over TCP, and when to come back.

use std::time::Duration;

/// How a client gets round networks that block UDP: the same requests over TCP with TLS and HTTP/2, to the same address.
/// QUIC is preferred: it is dialled first, and tried again while TCP is in use. It takes over from TCP once it has answered a
/// request: some networks let its handshakes through, and nothing after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpFallback {
    /// How long QUIC is tried alone before TCP is tried beside it. 1 s. After a connection over TCP both begin at once.
    pub head_start: Duration,
    /// How long TCP is used before QUIC is tried again, each time; up to a third less by chance, so that runners part. 30 s.
    pub return_after: Duration,
}

impl Default for TcpFallback {
    fn default() -> Self {
        Self { head_start: Duration::from_secs(1), return_after: Duration::from_secs(30) }
    }
}
