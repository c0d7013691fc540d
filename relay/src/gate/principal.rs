//! Peer and token together.

use std::sync::Arc;

use telemetry_proto::claims::VerifiedClaims;
use telemetry_proto::{Reason, RunnerId, Signal};

use super::Peer;

/// Who writes: a peer and a verified token, bound to one runner. There is no other way to make one than
/// [`bind`](Self::bind).
#[derive(Debug, Clone)]
pub struct Principal {
    peer: Peer,
    claims: Arc<VerifiedClaims>,
}

impl Principal {
    /// Binds a token to the peer that shows it, for a write of `signal`.
    ///
    /// A token that names no runner passed verification only because the operator accepts those; the certificate alone
    /// then says who writes.
    ///
    /// # Errors
    /// [`Reason::TokenRunnerMismatch`] when the token was minted for another runner: it was stolen or mixed up;
    /// [`Reason::TokenSignalNotGranted`] when it does not grant `signal`.
    pub fn bind(peer: &Peer, claims: Arc<VerifiedClaims>, signal: Signal) -> Result<Self, Reason> {
        if claims.runner.as_ref().is_some_and(|runner| runner != peer.runner()) {
            return Err(Reason::TokenRunnerMismatch);
        }
        if !claims.grants.allows(signal) {
            return Err(Reason::TokenSignalNotGranted);
        }
        Ok(Self { peer: peer.clone(), claims })
    }

    /// The runner: what the certificate says, and the token does not contradict.
    #[must_use]
    pub fn runner(&self) -> &RunnerId {
        self.peer.runner()
    }

    /// Whether the token names the runner too.
    #[must_use]
    pub fn is_named_by_token(&self) -> bool {
        self.claims.runner.is_some()
    }

    /// What the handshake proved.
    #[must_use]
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// What the token says.
    #[must_use]
    pub fn claims(&self) -> &VerifiedClaims {
        &self.claims
    }
}
