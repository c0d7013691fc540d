//! A listener as those see it who only watch.

use std::net::SocketAddr;

use tokio::task::AbortHandle;

use super::metrics::ListenerMetrics;
use super::peers::{Connected, Peers};

/// Who is connected to a listener, and what it counts.
#[derive(Debug, Clone)]
pub struct ListenerView {
    pub(super) address: SocketAddr,
    pub(super) has_tcp: bool,
    pub(super) peers: Peers,
    pub(super) metrics: ListenerMetrics,
    pub(super) accepting: AbortHandle,
}

impl ListenerView {
    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Whether it still takes connections, or drains. It has ended otherwise.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        !self.accepting.is_finished()
    }

    /// Whether it listens there on TCP too.
    #[must_use]
    pub const fn has_tcp(&self) -> bool {
        self.has_tcp
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
