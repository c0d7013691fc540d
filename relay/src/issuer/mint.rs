//! Minting: from a request and a certificate to a token.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telemetry_proto::claims::{Audience, Claims, IDENTITY_TYPE_SYSTEM};
use telemetry_proto::mint::{MintRequest, MintResponse};
use telemetry_proto::{Clock, Reason, RunnerId, Signal};
use time::OffsetDateTime;

use super::rate::MintLimiter;
use super::{IssuerConfig, IssuerConfigError, KeyRing, RotationError, SigningKey};
use crate::gate::{KeySet, Peer, RunnerRegistry};

/// Mints workload tokens.
pub struct Issuer {
    config: IssuerConfig,
    keys: KeyRing,
    clock: Arc<dyn Clock>,
    registry: Arc<dyn RunnerRegistry>,
    limiter: Arc<MintLimiter>,
}

impl Issuer {
    /// An issuer that signs with the keys of `keys`.
    ///
    /// # Errors
    /// [`IssuerConfigError`] names the setting that can't work.
    pub fn new(
        config: IssuerConfig,
        keys: KeyRing,
        clock: Arc<dyn Clock>,
        registry: Arc<dyn RunnerRegistry>,
    ) -> Result<Self, IssuerConfigError> {
        config.check()?;
        let limiter = Arc::new(MintLimiter::new(config.rate));
        Ok(Self { config, keys, clock, registry, limiter })
    }

    /// An issuer that takes this one's place, with other settings and keys. How often each runner asked is not forgotten,
    /// unless the rate is another one.
    ///
    /// Verifiers must accept what it signs before it takes that place.
    ///
    /// # Errors
    /// [`IssuerConfigError`] names the setting that can't work.
    pub fn succeeded_by(&self, config: IssuerConfig, keys: KeyRing) -> Result<Self, IssuerConfigError> {
        config.check()?;
        let limiter = if config.rate == self.config.rate {
            Arc::clone(&self.limiter)
        } else {
            Arc::new(MintLimiter::new(config.rate))
        };
        let (clock, registry) = (Arc::clone(&self.clock), Arc::clone(&self.registry));
        Ok(Self { config, keys, clock, registry, limiter })
    }

    /// Answers a runner's `POST /_identity/token`. The runner is the one of the certificate; whoever is none gets no token.
    ///
    /// # Errors
    /// [`Reason::CertificateExpired`], [`Reason::RunnerRemoved`], [`Reason::MintNotAllowed`]; [`Reason::MintRateLimited`] when
    /// the runner asked too often, and then [`retry_after`](Self::retry_after) says how long to wait.
    pub fn mint(&self, request: &MintRequest, peer: &Peer) -> Result<MintResponse, Reason> {
        peer.check_alive(self.clock.now())?;
        let runner = peer.runner().ok_or(Reason::MintNotAllowed)?;
        self.check_allowed(request, runner)?;
        self.limiter.admit(runner, self.clock.now()).map_err(|_| Reason::MintRateLimited)?;
        self.sign(request, runner)
    }

    /// Mints for a runner that the caller vouches for: for a coordinator that runs a runner in its own process. The rules are
    /// those of [`mint`](Self::mint), but there is no rate.
    ///
    /// # Errors
    /// [`Reason::RunnerRemoved`], [`Reason::MintNotAllowed`].
    pub fn mint_for(&self, request: &MintRequest, runner: &RunnerId) -> Result<MintResponse, Reason> {
        self.check_allowed(request, runner)?;
        self.sign(request, runner)
    }

    /// How long the runner has to wait before it may ask again: the value of `Retry-After`, in whole seconds and at least 1.
    #[must_use]
    pub fn retry_after(&self, runner: &RunnerId) -> Duration {
        let wait = self.limiter.wait(runner, self.clock.now());
        Duration::from_secs(wait.as_millis().div_ceil(1_000).try_into().unwrap_or(u64::MAX).max(1))
    }

    /// The public keys as a JWKS document (RFC 7517 section 5).
    #[must_use]
    pub fn jwks(&self) -> Bytes {
        self.keys.jwks()
    }

    /// The public keys, for a verifier in this process.
    #[must_use]
    pub fn public_keys(&self) -> KeySet {
        self.keys.public_keys()
    }

    /// The keys, to rotate them step by step.
    #[must_use]
    pub const fn keys(&self) -> &KeyRing {
        &self.keys
    }

    /// Signs with `next` from now on, after `publish` has made verifiers accept it: see [`KeyRing::rotate`].
    ///
    /// # Errors
    /// [`RotationError`].
    pub fn rotate(&self, next: SigningKey, publish: impl FnOnce(&KeySet)) -> Result<(), RotationError> {
        self.keys.rotate(next, publish)
    }

    /// Takes a former key away: see [`KeyRing::retire`].
    ///
    /// # Errors
    /// [`RotationError`].
    pub fn retire(&self, kid: &str) -> Result<KeySet, RotationError> {
        self.keys.retire(kid)
    }

    fn check_allowed(&self, request: &MintRequest, runner: &RunnerId) -> Result<(), Reason> {
        if !self.registry.is_registered(runner) {
            return Err(Reason::RunnerRemoved);
        }
        let workload = self.config.workloads.contains(&request.system_workload);
        let audience = !request.audience.is_empty()
            && request.audience.iter().all(|audience| self.config.audiences.contains(audience));
        // What a token without the claim grants: `Grants::DEFAULT`.
        let signals = request.signals.as_deref().unwrap_or(&[Signal::Metrics, Signal::Logs]);
        let granted = !signals.is_empty() && signals.iter().all(|signal| self.config.signals.contains(signal));
        if workload && audience && granted { Ok(()) } else { Err(Reason::MintNotAllowed) }
    }

    fn sign(&self, request: &MintRequest, runner: &RunnerId) -> Result<MintResponse, Reason> {
        let issued = self.clock.unix_seconds();
        let lifetime =
            Duration::from_secs(request.ttl_seconds).clamp(self.config.min_lifetime, self.config.max_lifetime);
        let expires = issued + lifetime.as_secs();
        let claims = self.claims(request, runner, issued, expires).ok_or(Reason::InternalError)?;
        let token = self.keys.signing().sign(&claims).map_err(|error| {
            tracing::error!(%error, "a workload token can't be signed");
            Reason::InternalError
        })?;
        Ok(MintResponse { token, expires_at: time_of_day(expires)?, server_time: time_of_day(issued)? })
    }

    /// `None` when there is no randomness to be had.
    fn claims(&self, request: &MintRequest, runner: &RunnerId, issued: u64, expires: u64) -> Option<Claims> {
        let runner_id = (self.config.runner_id_claim.clone(), runner.as_str().into());
        Some(Claims {
            iss: self.config.issuer.clone(),
            sub: self.subject(&request.system_workload),
            aud: Audience::Many(unique(&request.audience)),
            exp: expires,
            nbf: issued,
            iat: issued,
            identity_type: Some(IDENTITY_TYPE_SYSTEM.to_owned()),
            system_workload: Some(request.system_workload.clone()),
            signals: request.signals.as_ref().map(|signals| unique(&names(signals))),
            organization_id: self.config.organization.clone(),
            cluster_id: self.config.cluster.clone(),
            jti: Some(random_id()?),
            extra: [runner_id].into_iter().collect(),
        })
    }

    /// `[org:ORG:][cluster:CLUSTER:]system:WORKLOAD`.
    fn subject(&self, workload: &str) -> String {
        let mut subject = String::new();
        for (label, value) in [("org", &self.config.organization), ("cluster", &self.config.cluster)] {
            if let Some(value) = value {
                subject.extend([label, ":", value.as_str(), ":"]);
            }
        }
        subject.extend(["system:", workload]);
        subject
    }
}

impl std::fmt::Debug for Issuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issuer").field("config", &self.config).field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// Fails for a clock beyond the year 9999.
fn time_of_day(unix_seconds: u64) -> Result<OffsetDateTime, Reason> {
    let seconds = i64::try_from(unix_seconds).map_err(|_| Reason::InternalError)?;
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| Reason::InternalError)
}

fn names(signals: &[Signal]) -> Vec<String> {
    signals.iter().map(|signal| signal.as_str().to_owned()).collect()
}

/// Every name once, in the order given: what is asked for a thousand times is written once.
fn unique(names: &[String]) -> Vec<String> {
    let mut unique = Vec::new();
    for name in names {
        if !unique.contains(name) {
            unique.push(name.clone());
        }
    }
    unique
}

/// 128 random bits in hex.
fn random_id() -> Option<String> {
    let mut bits = [0; 16];
    aws_lc_rs::rand::fill(&mut bits).ok()?;
    let mut id = String::with_capacity(32);
    for byte in bits {
        write!(id, "{byte:02x}").ok()?;
    }
    Some(id)
}

#[cfg(test)]
mod tests;
