//! Who a certificate says its holder is, where that is no runner.

use std::time::SystemTime;

use rustls_pki_types::CertificateDer;
use telemetry_proto::WriterName;

use crate::cluster::ClusterName;
use crate::identity::{IdentityError, common_name, fingerprint, looks_like_runner, spiffe_uri};
use crate::parse;

/// The names in the client certificate of a writer that is no runner. Which writer that is, is for a configuration to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterIdentity {
    /// The one SPIFFE ID among the SAN URIs, if there is one.
    pub uri: Option<String>,
    /// The subject's common name, if there is one.
    pub common_name: Option<String>,
    /// End of validity.
    pub not_after: SystemTime,
    /// The serial number, in lowercase hex without separators.
    pub serial: String,
    /// SHA-256 of the certificate's DER.
    pub fingerprint: [u8; 32],
}

impl WriterIdentity {
    /// Reads the names of a certificate whose chain was verified.
    ///
    /// A certificate that could be taken for a runner's is nobody else's: what tells a runner from others must not depend on
    /// what is configured. DNS names, which older issuers let a runner choose, are not looked at.
    ///
    /// # Errors
    /// [`IdentityError`]: it is an authority's or a runner's, names nobody, or names somebody more than once.
    pub fn from_leaf(leaf: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let certificate = parse::certificate(leaf).ok_or(IdentityError::Unreadable)?;
        if parse::is_authority(&certificate).ok_or(IdentityError::Unreadable)? {
            return Err(IdentityError::Authority);
        }
        if looks_like_runner(leaf) {
            return Err(IdentityError::Runner);
        }
        let (uri, common_name) = (spiffe_uri(&certificate)?, common_name(&certificate)?);
        let names = [uri, common_name];
        if names.into_iter().flatten().any(|name| name.is_empty() || name.chars().any(char::is_control)) {
            return Err(IdentityError::BadText);
        }
        if names.into_iter().all(|name| name.is_none()) {
            return Err(IdentityError::Nameless);
        }
        Ok(Self {
            uri: uri.map(str::to_owned),
            common_name: common_name.map(str::to_owned),
            not_after: parse::system_time(certificate.validity().not_after).ok_or(IdentityError::Unreadable)?,
            serial: parse::serial_hex(certificate.raw_serial()),
            fingerprint: fingerprint(leaf),
        })
    }
}

/// The SPIFFE URI of a writer of a cluster, as [`ClusterAuthority`](crate::ClusterAuthority) issues it.
#[must_use]
pub fn writer_uri(cluster: &ClusterName, writer: &WriterName) -> String {
    format!("spiffe://{cluster}/writer/{writer}")
}

/// The names of cluster and writer in a URI that looks like one of [`writer_uri`].
#[must_use]
pub fn split_writer_uri(uri: &str) -> Option<(&str, &str)> {
    uri.strip_prefix("spiffe://")?.split_once("/writer/")
}
