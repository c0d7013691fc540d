//! A listener as those see it who only watch.

use std::net::SocketAddr;

use super::metrics::ListenerMetrics;
use super::peers::{Connected, Peers};

/// Who is connected to a listener, and what it counts.
#[derive(Debug, Clone)]
pub struct ListenerView {
    pub(super) address: SocketAddr,
    pub(super) peers: Peers,
    pub(super) metrics: ListenerMetrics,
}

impl ListenerView {
    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Who is connected.
    #[must_use]
    pub fn connected(&self) -> Vec<Connected> {
        self.peers.all()
    }

    /// What it counts.
    #[must_use]
    pub const fn metrics(&self) -> &ListenerMetrics {
        &self.metrics
    }
}
