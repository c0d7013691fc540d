//! Certificates that runners renew over the wire: a new key stays on the runner, and its certificate says what the old one
//! says.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use telemetry_certs::{
    CertificateRequest, CertificateRequestError, Certified, ClusterAuthority, MAX_CERTIFICATE_REQUEST_BYTES,
    PeerIdentity, RunnerRequest, describe,
};
use telemetry_proto::renew::RenewResponse;
use telemetry_proto::{Clock, Reason};

use crate::gate::{Identity, Peer};
use crate::issuer::{MintLimiter, MintRate};
use crate::refusal::Refusal;

/// Issues runners' certificates anew. The authority can be replaced, given or taken away while the relay runs.
pub struct CertificateIssuer {
    issuing: ArcSwapOption<Issuing>,
    limiter: MintLimiter,
    clock: Arc<dyn Clock>,
}

/// With what certificates are issued, and for how long.
#[derive(Debug)]
pub struct Issuing {
    /// The authority. Whoever holds its key can be any runner and the coordinator.
    pub authority: ClusterAuthority,
    /// How long a certificate lives.
    pub lifetime: Duration,
}

impl CertificateIssuer {
    /// Issues nothing until an authority is [published](Self::publish). One runner may ask as often as `rate` says.
    #[must_use]
    pub fn new(rate: MintRate, clock: Arc<dyn Clock>) -> Self {
        Self { issuing: ArcSwapOption::empty(), limiter: MintLimiter::new(rate), clock }
    }

    /// Issues with this authority from now on, or not at all.
    pub fn publish(&self, issuing: Option<Issuing>) {
        self.issuing.store(issuing.map(Arc::new));
    }

    /// Who issues, as `subject` and end; `None` where certificates are not renewed.
    #[must_use]
    pub fn authority(&self) -> Option<(String, SystemTime)> {
        let issuing = self.issuing.load_full()?;
        let summary = describe(issuing.authority.certificate()).ok()?;
        Some((summary.subject, summary.not_after))
    }

    /// Takes one request of the runner into account, before its body is read.
    pub(crate) fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        if self.issuing.load().is_none() {
            return Err(Reason::RenewalNotOffered.into());
        }
        let admitted = self.limiter.admit(&runner_of(peer)?.runner, self.clock.now());
        admitted.map_err(|wait| Refusal::new(Reason::RenewalRateLimited).with_retry_after(wait))
    }

    /// Certifies the key of a request for the runner whose certificate asks. Of the request nothing else is used: names,
    /// organisation and usage are those that the runner has now.
    pub(crate) fn renew(&self, request: &[u8], peer: &Peer) -> Result<RenewResponse, Refusal> {
        let issuing = self.issuing.load_full().ok_or(Reason::RenewalNotOffered)?;
        let request = CertificateRequest::read(request).map_err(refusal)?;
        let identity = runner_of(peer)?;
        if !request.may_be_of(&identity.runner) {
            return Err(Reason::CertificateRequestMismatch.into());
        }
        let wanted = RunnerRequest {
            lifetime: issuing.lifetime,
            organization: identity.organization.clone(),
            ..RunnerRequest::new(identity.runner.clone())
        };
        let certified = issuing.authority.certify_runner(&wanted, &request).map_err(|error| {
            tracing::error!(%error, "a certificate can't be renewed");
            Reason::InternalError
        })?;
        log(identity, &certified);
        Ok(RenewResponse {
            certificate_chain: certified.chain_pem,
            not_after: certified.not_after.into(),
            server_time: self.clock.now().into(),
        })
    }
}

impl std::fmt::Debug for CertificateIssuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateIssuer").field("issuing", &self.issuing.load()).finish_non_exhaustive()
    }
}

/// Too large a request is refused before it is read whole.
pub(crate) fn too_large() -> Refusal {
    Refusal::new(Reason::BodyTooLarge)
        .with_detail(format!("a certificate request is at most {MAX_CERTIFICATE_REQUEST_BYTES} bytes"))
}

fn refusal(error: CertificateRequestError) -> Refusal {
    match error {
        CertificateRequestError::TooLarge => too_large(),
        CertificateRequestError::Malformed => Reason::CertificateRequestMalformed.into(),
        CertificateRequestError::Key => Reason::CertificateRequestKey.into(),
        CertificateRequestError::Unproven => Reason::CertificateRequestUnproven.into(),
    }
}

/// Only runners have their certificates renewed: those of other writers are the operator's to issue.
fn runner_of(peer: &Peer) -> Result<&PeerIdentity, Reason> {
    match peer.identity() {
        Identity::Runner(identity) => Ok(identity),
        Identity::Writer(_) => Err(Reason::CertificateRequestMismatch),
    }
}

/// Which certificates a runner has had must be known when it is to be shut out by a revocation list.
fn log(of: &PeerIdentity, certified: &Certified) {
    let serial = describe(&certified.leaf).map(|summary| summary.serial).unwrap_or_default();
    let ends = time::OffsetDateTime::from(certified.not_after);
    tracing::info!(runner = %of.runner, serial, before = of.serial, %ends, "a runner's certificate was renewed");
}
