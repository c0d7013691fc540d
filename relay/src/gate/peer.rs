//! What the TLS handshake proved.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use telemetry_certs::PeerIdentity;
use telemetry_proto::{Reason, RunnerId};

use super::Activity;

/// The runner at the other end of a connection. Travels with every request as an extension; cheap to clone.
#[derive(Debug, Clone)]
pub struct Peer {
    identity: Arc<PeerIdentity>,
    activity: Arc<Activity>,
    remote: SocketAddr,
}

impl Peer {
    /// The peer with this identity. `remote` is for logs; an address is never an identity.
    #[must_use]
    pub fn new(identity: PeerIdentity, remote: SocketAddr) -> Self {
        Self { identity: Arc::new(identity), activity: Arc::default(), remote }
    }

    /// The runner that the certificate names.
    #[must_use]
    pub fn runner(&self) -> &RunnerId {
        &self.identity.runner
    }

    /// All that the certificate says.
    #[must_use]
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    /// What was done on the connection so far.
    #[must_use]
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Where the connection came from when it was accepted.
    #[must_use]
    pub const fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Asks whether the certificate still lives. Connections are long: the handshake's answer ages.
    ///
    /// # Errors
    /// [`Reason::CertificateExpired`].
    pub fn check_alive(&self, now: SystemTime) -> Result<(), Reason> {
        if now > self.identity.not_after { Err(Reason::CertificateExpired) } else { Ok(()) }
    }
}
