//! Peer and token together.

use std::sync::Arc;

use telemetry_proto::claims::VerifiedClaims;
use telemetry_proto::{Reason, RunnerId, Signal};

use super::{Author, Peer};

/// Who writes: a peer, and what it was found good for. There is no other way to make one than [`bind`](Self::bind) and
/// [`Writers::bind`](super::Writers::bind).
#[derive(Debug, Clone)]
pub struct Principal {
    peer: Peer,
    credential: Credential,
}

/// What was shown beside the certificate.
#[derive(Debug, Clone)]
pub enum Credential {
    /// A runner's workload token.
    Workload(Arc<VerifiedClaims>),
    /// The static token of a writer that is no runner.
    Static,
}

impl Principal {
    /// Binds a token to the runner that shows it, for a write of `signal`.
    ///
    /// A token that names no runner passed verification only because the operator accepts those; the certificate alone
    /// then says who writes.
    ///
    /// # Errors
    /// [`Reason::TokenRunnerMismatch`] when the token was minted for another runner, or is shown by someone who is none: it was
    /// stolen or mixed up; [`Reason::TokenSignalNotGranted`] when it does not grant `signal`.
    pub fn bind(peer: &Peer, claims: Arc<VerifiedClaims>, signal: Signal) -> Result<Self, Reason> {
        check_runner(&claims, peer.runner().ok_or(Reason::TokenRunnerMismatch)?)?;
        check_signal(&claims, signal)?;
        Ok(Self { peer: peer.clone(), credential: Credential::Workload(claims) })
    }

    pub(super) fn of_writer(peer: &Peer) -> Self {
        Self { peer: peer.clone(), credential: Credential::Static }
    }

    /// Under whose name it writes: what the certificate says, and the token does not contradict.
    #[must_use]
    pub const fn author(&self) -> &Author {
        self.peer.author()
    }

    /// Whether the token names the runner too.
    #[must_use]
    pub fn is_named_by_token(&self) -> bool {
        matches!(&self.credential, Credential::Workload(claims) if claims.runner.is_some())
    }

    /// What the handshake proved.
    #[must_use]
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// What was shown beside the certificate.
    #[must_use]
    pub const fn credential(&self) -> &Credential {
        &self.credential
    }
}

/// The token was minted for this runner, or names none.
pub(super) fn check_runner(claims: &VerifiedClaims, runner: &RunnerId) -> Result<(), Reason> {
    match &claims.runner {
        Some(named) if named != runner => Err(Reason::TokenRunnerMismatch),
        _ => Ok(()),
    }
}

/// The token grants this signal.
pub(super) fn check_signal(claims: &VerifiedClaims, signal: Signal) -> Result<(), Reason> {
    if claims.grants.allows(signal) { Ok(()) } else { Err(Reason::TokenSignalNotGranted) }
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
        assert_eq!((principal.author().label(), principal.is_named_by_token()), ("r7", true));
        for other in ["r8", "R7", "r7.", "r77"] {
            assert_eq!(bind(Some(other)).map(drop), Err(Reason::TokenRunnerMismatch), "{other}");
        }
    }

    #[test]
    fn without_a_runner_in_the_token_the_certificate_says_who_writes() {
        let principal = Principal::bind(&peer("r7"), claims(None, Grants::DEFAULT), Signal::Logs).unwrap();
        assert_eq!((principal.author().label(), principal.is_named_by_token()), ("r7", false));
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
