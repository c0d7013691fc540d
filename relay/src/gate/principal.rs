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

#[cfg(test)]
mod tests {
    use telemetry_proto::claims::Grants;

    use super::*;
    use crate::gate::fixtures::{NOW, peer, runner};

    fn claims(id: Option<&str>, grants: Grants) -> Arc<VerifiedClaims> {
        let runner = id.map(runner);
        Arc::new(VerifiedClaims { runner, grants, organization: None, not_before: NOW, expires_at: NOW + 60 })
    }

    #[test]
    fn certificate_and_token_must_name_the_same_runner() {
        let bind = |id| Principal::bind(&peer("r7"), claims(id, Grants::DEFAULT), Signal::Logs);
        let principal = bind(Some("r7")).unwrap();
        assert_eq!((principal.runner().as_str(), principal.is_named_by_token()), ("r7", true));
        for other in ["r8", "R7", "r7.", "r77"] {
            assert_eq!(bind(Some(other)).map(drop), Err(Reason::TokenRunnerMismatch), "{other}");
        }
    }

    #[test]
    fn without_a_runner_in_the_token_the_certificate_says_who_writes() {
        let principal = Principal::bind(&peer("r7"), claims(None, Grants::DEFAULT), Signal::Logs).unwrap();
        assert_eq!((principal.runner().as_str(), principal.is_named_by_token()), ("r7", false));
    }

    #[test]
    fn a_signal_needs_its_own_grant() {
        for granted in Signal::ALL {
            for asked in Signal::ALL {
                let bound = Principal::bind(&peer("r7"), claims(Some("r7"), Grants::of(&[granted])), asked).map(drop);
                let expected = if granted == asked { Ok(()) } else { Err(Reason::TokenSignalNotGranted) };
                assert_eq!(bound, expected, "{granted} for {asked}");
            }
        }
        let stolen = Principal::bind(&peer("r8"), claims(Some("r7"), Grants::NONE), Signal::Logs).map(drop);
        assert_eq!(stolen, Err(Reason::TokenRunnerMismatch), "the worse of two faults is told");
    }
}
