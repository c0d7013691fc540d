//! The cluster's certificate authority.

mod error;
mod loading;
pub(crate) mod params;
mod request;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rcgen::{
    CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyIdMethod, KeyPair,
    PublicKeyData, RevokedCertParams, SanType, SerialNumber,
};
use rustls_pki_types::CertificateDer;
use telemetry_proto::{Clock, SystemClock};
use time::OffsetDateTime;

use crate::cluster::ClusterName;
use crate::csr::CertificateRequest;
use crate::identity::runner_uri;
use crate::load;
use crate::writer::writer_uri;

pub use error::AuthorityError;
pub use request::{
    AUTHORITY_LIFETIME, BACKDATE, COORDINATOR_LIFETIME, CRL_LIFETIME, Certified, CoordinatorRequest, CrlRequest,
    Issued, KeyKind, RUNNER_LIFETIME, RunnerRequest, WriterRequest,
};

/// The common name of every coordinator. Its DNS names are in the SAN only: one such as `runner-7.example` must not
/// become a CN that looks like a runner's.
const COORDINATOR_COMMON_NAME: &str = "coordinator";

/// The authority that issues one cluster's certificates. Its `Debug` does not show the key.
pub struct ClusterAuthority {
    cluster: ClusterName,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    /// What follows a leaf in its chain. Nothing for a root; for an intermediate its own certificate and what is above
    /// it, but for the root.
    above: Vec<CertificateDer<'static>>,
    key_identifier: KeyIdMethod,
    not_after: OffsetDateTime,
    clock: Arc<dyn Clock>,
}

impl ClusterAuthority {
    /// Creates an authority with a key of its own. It lives for [`AUTHORITY_LIFETIME`] and may sign leaves only.
    ///
    /// # Errors
    /// [`AuthorityError::Random`] and [`AuthorityError::Sign`].
    pub fn create(cluster: &ClusterName, kind: KeyKind) -> Result<Self, AuthorityError> {
        Self::create_by_clock(cluster, kind, Arc::new(SystemClock))
    }

    /// Like [`create`](Self::create), by another clock, which the authority keeps.
    ///
    /// # Errors
    /// As [`create`](Self::create), and [`AuthorityError::BadTime`].
    pub fn create_by_clock(
        cluster: &ClusterName,
        kind: KeyKind,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, AuthorityError> {
        let params = params::authority(cluster, clock.now(), 0)?;
        Self::create_from(cluster, params, kind, clock)
    }

    /// The same authority by another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The cluster.
    #[must_use]
    pub const fn cluster(&self) -> &ClusterName {
        &self.cluster
    }

    /// The authority's own certificate as PEM. Of a root: what the cluster trusts.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        load::certificate_pem(&self.certificate)
    }

    /// When the authority's own certificate ends.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.not_after.into()
    }

    /// The authority's own certificate as DER.
    #[must_use]
    pub const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The private key as PEM (PKCS #8). Secret.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Issues a coordinator's certificate: the names asked for, EKU serverAuth only.
    ///
    /// # Errors
    /// [`AuthorityError`] when a name is not one, or there is none, or the authority has expired.
    pub fn issue_coordinator(&self, request: &CoordinatorRequest) -> Result<Issued, AuthorityError> {
        self.sign(&self.coordinator_params(request)?, &params::generate(request.key_kind)?)
    }

    /// Issues a coordinator's certificate for the key that another certificate has. The request's kind of key is not looked
    /// at.
    ///
    /// # Errors
    /// As [`issue_coordinator`](Self::issue_coordinator), and [`AuthorityError::BadKey`].
    pub fn reissue_coordinator(
        &self,
        request: &CoordinatorRequest,
        key_of: &CertificateDer<'_>,
    ) -> Result<Certified, AuthorityError> {
        self.certify(&self.coordinator_params(request)?, &params::key_of(key_of)?)
    }

    fn coordinator_params(&self, request: &CoordinatorRequest) -> Result<CertificateParams, AuthorityError> {
        let mut params = params::leaf(self.clock.now(), request.lifetime, self.not_after)?;
        params.distinguished_name.push(DnType::CommonName, COORDINATOR_COMMON_NAME);
        let dns_names = request.dns_names.iter().map(|name| params::dns_name(name));
        let addresses = request.ip_addresses.iter().map(|address| Ok(SanType::IpAddress(*address)));
        params.subject_alt_names = dns_names.chain(addresses).collect::<Result<_, AuthorityError>>()?;
        if params.subject_alt_names.is_empty() {
            return Err(AuthorityError::NoNames);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        Ok(params)
    }

    /// Issues a runner's certificate: CN `runner-ID`, SAN URI `spiffe://CLUSTER/runner/ID`, EKU clientAuth only.
    ///
    /// # Errors
    /// [`AuthorityError`] when the organisation is not one, or the authority has expired.
    pub fn issue_runner(&self, request: &RunnerRequest) -> Result<Issued, AuthorityError> {
        self.sign(&self.runner_params(request)?, &params::generate(request.key_kind)?)
    }

    /// Issues a runner's certificate for the key of a request that the runner made. Names, usage and lifetime are those of
    /// `request`; nothing but the key is taken from `key_of`. The request's kind of key is not looked at.
    ///
    /// # Errors
    /// As [`issue_runner`](Self::issue_runner).
    pub fn certify_runner(
        &self,
        request: &RunnerRequest,
        key_of: &CertificateRequest,
    ) -> Result<Certified, AuthorityError> {
        self.certify(&self.runner_params(request)?, &key_of.public_key)
    }

    /// Issues a runner's certificate for the key that another certificate has. The request's kind of key is not looked at.
    ///
    /// # Errors
    /// As [`issue_runner`](Self::issue_runner), and [`AuthorityError::BadKey`].
    pub fn reissue_runner(
        &self,
        request: &RunnerRequest,
        key_of: &CertificateDer<'_>,
    ) -> Result<Certified, AuthorityError> {
        self.certify(&self.runner_params(request)?, &params::key_of(key_of)?)
    }

    fn runner_params(&self, request: &RunnerRequest) -> Result<CertificateParams, AuthorityError> {
        let mut params = params::leaf(self.clock.now(), request.lifetime, self.not_after)?;
        params.distinguished_name = params::runner_subject(&request.runner, request.organization.as_deref())?;
        params.subject_alt_names = vec![params::uri(runner_uri(&self.cluster, &request.runner))?];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Ok(params)
    }

    /// Issues the certificate of a writer that is no runner: CN `writer-NAME`, SAN URI `spiffe://CLUSTER/writer/NAME`, EKU
    /// clientAuth only.
    ///
    /// # Errors
    /// [`AuthorityError`] when the authority has expired.
    pub fn issue_writer(&self, request: &WriterRequest) -> Result<Issued, AuthorityError> {
        self.sign(&self.writer_params(request)?, &params::generate(request.key_kind)?)
    }

    /// Issues a writer's certificate for the key of another certificate, whose holder keeps it. The kind of key in the request
    /// means nothing.
    ///
    /// # Errors
    /// As for [`issue_writer`](Self::issue_writer), and [`AuthorityError::BadKey`].
    pub fn reissue_writer(
        &self,
        request: &WriterRequest,
        key_of: &CertificateDer<'_>,
    ) -> Result<Certified, AuthorityError> {
        self.certify(&self.writer_params(request)?, &params::key_of(key_of)?)
    }

    fn writer_params(&self, request: &WriterRequest) -> Result<CertificateParams, AuthorityError> {
        let mut params = params::leaf(self.clock.now(), request.lifetime, self.not_after)?;
        params.distinguished_name.push(DnType::CommonName, format!("writer-{}", request.writer));
        params.subject_alt_names = vec![params::uri(writer_uri(&self.cluster, &request.writer))?];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Ok(params)
    }

    /// Issues a revocation list as PEM. It replaces the one before.
    ///
    /// # Errors
    /// [`AuthorityError::BadSerial`], [`AuthorityError::NoLifetime`], [`AuthorityError::BadTime`].
    pub fn issue_crl(&self, request: &CrlRequest) -> Result<String, AuthorityError> {
        let (this_update, next_update) = params::validity(self.clock.now(), request.lifetime)?;
        let revoked_certs = request.revoked.iter().map(|revocation| {
            Ok(RevokedCertParams {
                serial_number: params::parse_serial(&revocation.serial)?,
                revocation_time: params::date(revocation.revoked_at)?,
                reason_code: None,
                invalidity_date: None,
            })
        });
        let params = CertificateRevocationListParams {
            this_update,
            next_update,
            crl_number: SerialNumber::from(request.number),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect::<Result<_, AuthorityError>>()?,
            key_identifier_method: self.key_identifier.clone(),
        };
        Ok(params.signed_by(&self.issuer)?.pem()?)
    }

    pub(crate) fn create_from(
        cluster: &ClusterName,
        params: CertificateParams,
        kind: KeyKind,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, AuthorityError> {
        let key = params::generate(kind)?;
        Ok(Self {
            cluster: cluster.clone(),
            certificate: params.self_signed(&key)?.into(),
            above: Vec::new(),
            key_identifier: params.key_identifier_method.clone(),
            not_after: params.not_after,
            issuer: Issuer::new(params, key),
            clock,
        })
    }

    /// Signs a leaf and puts its chain together.
    pub(crate) fn sign(&self, params: &CertificateParams, key: &KeyPair) -> Result<Issued, AuthorityError> {
        Ok(Issued { chain_pem: self.certify(params, key)?.chain_pem, key_pem: key.serialize_pem() })
    }

    /// Signs a leaf for a key that is someone else's, and puts its chain together.
    fn certify(&self, params: &CertificateParams, key: &impl PublicKeyData) -> Result<Certified, AuthorityError> {
        let leaf = params.signed_by(key, &self.issuer)?;
        let mut chain_pem = leaf.pem();
        chain_pem.extend(self.above.iter().map(|certificate| load::certificate_pem(certificate)));
        Ok(Certified { chain_pem, leaf: leaf.into(), not_after: params.not_after.into() })
    }
}

impl fmt::Debug for ClusterAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterAuthority")
            .field("cluster", &self.cluster)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}
