//! Who a certificate says its holder is.

use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use rustls_pki_types::CertificateDer;
use telemetry_proto::{RunnerId, RunnerIdError};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use crate::cluster::ClusterName;
use crate::parse;

/// What the common name of a runner's certificate begins with.
const COMMON_NAME_PREFIX: &str = "runner-";
/// What a SPIFFE ID begins with (RFC 3986: a scheme is compared without regard to case).
const SPIFFE: &str = "spiffe:";

/// The identity of a runner, as its verified client certificate states it. Parsed once per connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The runner.
    pub runner: RunnerId,
    /// Where in the certificate the runner's ID was found.
    pub source: IdentitySource,
    /// The subject's organisation (O), if there is one.
    pub organization: Option<String>,
    /// Start of validity.
    pub not_before: SystemTime,
    /// End of validity.
    pub not_after: SystemTime,
    /// The serial number, in lowercase hex without separators.
    pub serial: String,
    /// SHA-256 of the certificate's DER.
    pub fingerprint: [u8; 32],
}

/// Where in the certificate the runner's ID was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentitySource {
    /// SAN URI `spiffe://CLUSTER/runner/ID`.
    SanUri,
    /// CN `runner-ID`, of older issuers.
    CommonName,
}

/// The certificate does not say clearly which runner its holder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Not X.509, or with something behind it, or with unreadable names.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// The certificate of an authority is nobody's identity.
    #[error("the certificate is an authority's, not a runner's")]
    Authority,
    /// There is neither a SAN URI `spiffe://CLUSTER/runner/ID` nor a CN `runner-ID`.
    #[error("the certificate names no runner")]
    NoRunner,
    /// A SPIFFE ID of another form: the holder is something else, or someone tries.
    #[error("the certificate's SPIFFE ID is not of the form spiffe://CLUSTER/runner/ID")]
    NotRunnerUri,
    /// Two SPIFFE IDs or two common names.
    #[error("the certificate names its holder more than once")]
    Ambiguous,
    /// The SAN URI and the CN name different runners.
    #[error("the certificate's SAN URI and CN name different runners")]
    Disagreement,
    /// The ID has a character that no runner ID has, such as NUL or `*`, or is too long.
    #[error("the certificate's runner ID is malformed")]
    BadId(#[from] RunnerIdError),
    /// CN or O is not UTF-8, or has control characters.
    #[error("the certificate's subject is not plain text")]
    BadText,
    /// Where the holder must be something else, the certificate is a runner's, or could be taken for one.
    #[error("the certificate is a runner's")]
    Runner,
    /// Where the holder must be something else than a runner, there is neither a SPIFFE ID nor a CN.
    #[error("the certificate names nobody")]
    Nameless,
}

impl PeerIdentity {
    /// Reads who the holder of a certificate is. The chain must have been verified: nothing here looks at signatures,
    /// validity or usage.
    ///
    /// The SAN URI counts first, then the CN. Where both are of a runner's form they must agree. DNS names, which
    /// older issuers let a runner choose, are not looked at.
    ///
    /// # Errors
    /// [`IdentityError`] when the certificate does not name exactly one runner.
    pub fn from_leaf(leaf: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let certificate = parse::certificate(leaf).ok_or(IdentityError::Unreadable)?;
        if parse::is_authority(&certificate).ok_or(IdentityError::Unreadable)? {
            return Err(IdentityError::Authority);
        }
        let (runner, source) = match (runner_of_uri(&certificate)?, runner_of_common_name(&certificate)?) {
            (Some(by_uri), Some(by_name)) if by_uri != by_name => return Err(IdentityError::Disagreement),
            (Some(by_uri), _) => (by_uri, IdentitySource::SanUri),
            (None, Some(by_name)) => (by_name, IdentitySource::CommonName),
            (None, None) => return Err(IdentityError::NoRunner),
        };
        let validity = certificate.validity();
        Ok(Self {
            runner,
            source,
            organization: organization(&certificate)?,
            not_before: parse::system_time(validity.not_before).ok_or(IdentityError::Unreadable)?,
            not_after: parse::system_time(validity.not_after).ok_or(IdentityError::Unreadable)?,
            serial: parse::serial_hex(certificate.raw_serial()),
            fingerprint: fingerprint(leaf),
        })
    }
}

/// Whether a certificate could be a runner's. For the client, which refuses a server that shows one: certificates of
/// older issuers have server usage and names that the runner chose.
///
/// Tolerant where [`PeerIdentity::from_leaf`] is strict: any SAN URI with `/runner/` in it and any CN that begins with
/// `runner-` counts, in any case, beside whatever else. What cannot be read counts too.
#[must_use]
pub fn looks_like_runner(leaf: &CertificateDer<'_>) -> bool {
    let Some(certificate) = parse::certificate(leaf) else { return true };
    let Ok(names) = certificate.subject_alternative_name() else { return true };
    let by_uri = names.is_some_and(|names| {
        names.value.general_names.iter().any(|name| match name {
            GeneralName::URI(uri) => uri.to_ascii_lowercase().contains("/runner/"),
            // A name that cannot be read.
            GeneralName::Invalid(..) => true,
            _ => false,
        })
    });
    by_uri || certificate.subject().iter_common_name().any(|name| hints_at_runner(name.as_slice()))
}

/// SHA-256 of the certificate's DER.
pub(crate) fn fingerprint(leaf: &CertificateDer<'_>) -> [u8; 32] {
    sha256(leaf)
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

/// The SPIFFE URI that names a runner of a cluster.
pub(crate) fn runner_uri(cluster: &ClusterName, runner: &RunnerId) -> String {
    format!("spiffe://{cluster}/runner/{runner}")
}

/// The common name that names a runner.
pub(crate) fn runner_common_name(runner: &RunnerId) -> String {
    format!("{COMMON_NAME_PREFIX}{runner}")
}

fn runner_of_uri(certificate: &X509Certificate<'_>) -> Result<Option<RunnerId>, IdentityError> {
    spiffe_uri(certificate)?.map(parse_runner_uri).transpose()
}

/// The one SPIFFE ID that a certificate may have (SPIFFE X509-SVID, section 2). URIs of other schemes are nobody's business
/// here.
pub(crate) fn spiffe_uri<'c>(certificate: &'c X509Certificate<'_>) -> Result<Option<&'c str>, IdentityError> {
    let names = certificate.subject_alternative_name().map_err(|_| IdentityError::Unreadable)?;
    let mut found = None;
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        let uri = match name {
            GeneralName::URI(uri) => *uri,
            GeneralName::Invalid(..) => return Err(IdentityError::Unreadable),
            _ => continue,
        };
        if starts_with_ignore_case(uri.as_bytes(), SPIFFE) && found.replace(uri).is_some() {
            return Err(IdentityError::Ambiguous);
        }
    }
    Ok(found)
}

fn parse_runner_uri(uri: &str) -> Result<RunnerId, IdentityError> {
    let rest = uri.strip_prefix("spiffe://").ok_or(IdentityError::NotRunnerUri)?;
    let (cluster, path) = rest.split_once('/').ok_or(IdentityError::NotRunnerUri)?;
    ClusterName::new(cluster).map_err(|_| IdentityError::NotRunnerUri)?;
    let id = path.strip_prefix("runner/").ok_or(IdentityError::NotRunnerUri)?;
    Ok(RunnerId::new(id)?)
}

fn runner_of_common_name(certificate: &X509Certificate<'_>) -> Result<Option<RunnerId>, IdentityError> {
    let Some(text) = common_name(certificate)? else { return Ok(None) };
    text.strip_prefix(COMMON_NAME_PREFIX).map(|id| RunnerId::new(id).map_err(IdentityError::from)).transpose()
}

/// The common name, if there is one. Control characters are the caller's business: a CN of a runner's form with a NUL in it
/// is a bad ID, not bad text.
pub(crate) fn common_name<'c>(certificate: &'c X509Certificate<'_>) -> Result<Option<&'c str>, IdentityError> {
    let mut names = certificate.subject().iter_common_name();
    let Some(name) = names.next() else { return Ok(None) };
    if names.next().is_some() {
        return Err(IdentityError::Ambiguous);
    }
    name.as_str().map(Some).map_err(|_| IdentityError::BadText)
}

/// The organisation, if there is exactly one. Tenants may be chosen by it, so that several give none.
fn organization(certificate: &X509Certificate<'_>) -> Result<Option<String>, IdentityError> {
    let mut all = certificate.subject().iter_organization();
    match (all.next(), all.next()) {
        (Some(one), None) => Ok(Some(parse::plain_text(one).ok_or(IdentityError::BadText)?.to_owned())),
        _ => Ok(None),
    }
}

/// Without zero octets, text of two and four octets a character reads like ASCII.
fn hints_at_runner(common_name: &[u8]) -> bool {
    let ascii: Vec<u8> = common_name.iter().copied().filter(|octet| *octet != 0).collect();
    starts_with_ignore_case(&ascii, COMMON_NAME_PREFIX)
}

fn starts_with_ignore_case(text: &[u8], prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
}
