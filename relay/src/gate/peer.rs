//! What the TLS handshake proved.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use telemetry_certs::{PeerIdentity, WriterIdentity};
use telemetry_proto::{Reason, RunnerId, WriterName};

use super::{Activity, Author};

/// Who is at the other end of a connection. Travels with every request as an extension; cheap to clone.
#[derive(Debug, Clone)]
pub struct Peer {
    author: Author,
    identity: Arc<Identity>,
    activity: Arc<Activity>,
    remote: SocketAddr,
}

/// What a peer's certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// It is a runner's.
    Runner(PeerIdentity),
    /// It is that of a writer that is no runner.
    Writer(WriterIdentity),
}

impl Identity {
    /// End of validity.
    #[must_use]
    pub const fn not_after(&self) -> SystemTime {
        match self {
            Self::Runner(identity) => identity.not_after,
            Self::Writer(identity) => identity.not_after,
        }
    }

    /// The subject's organisation (O) in a runner's certificate, if there is one.
    #[must_use]
    pub fn organization(&self) -> Option<&str> {
        match self {
            Self::Runner(identity) => identity.organization.as_deref(),
            Self::Writer(_) => None,
        }
    }
}

impl Peer {
    /// The runner with this identity. `remote` is for logs; an address is never an identity.
    #[must_use]
    pub fn new(identity: PeerIdentity, remote: SocketAddr) -> Self {
        Self::of(identity.runner.clone().into(), Identity::Runner(identity), remote)
    }

    /// The writer of this name. That the certificate is its own is for [`Writers`](super::Writers) to say, at each request.
    #[must_use]
    pub fn writer(name: WriterName, identity: WriterIdentity, remote: SocketAddr) -> Self {
        Self::of(name.into(), Identity::Writer(identity), remote)
    }

    fn of(author: Author, identity: Identity, remote: SocketAddr) -> Self {
        Self { author, identity: Arc::new(identity), activity: Arc::default(), remote }
    }

    /// Under whose name it writes.
    #[must_use]
    pub const fn author(&self) -> &Author {
        &self.author
    }

    /// The runner that the certificate names; `None` where it is that of a writer that is no runner.
    #[must_use]
    pub const fn runner(&self) -> Option<&RunnerId> {
        self.author.runner()
    }

    /// All that the certificate says.
    #[must_use]
    pub fn identity(&self) -> &Identity {
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
        if now > self.identity.not_after() { Err(Reason::CertificateExpired) } else { Ok(()) }
    }
}
