//! Loading an authority that exists.

use std::path::Path;
use std::sync::Arc;

use rcgen::{Issuer, KeyIdMethod, KeyPair};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use telemetry_proto::SystemClock;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};

use super::{AuthorityError, ClusterAuthority};
use crate::cluster::ClusterName;
use crate::credentials::Credentials;
use crate::load::{self, LoadError, LoadFault, Origin};
use crate::parse;

impl ClusterAuthority {
    /// Loads an authority of ours from PEM. If it is an intermediate, the certificates above follow its own.
    ///
    /// # Errors
    /// [`AuthorityError`] when it is no authority, does not name its cluster, or the key is not its own.
    pub fn load(certificate_pem: &str, key_pem: &str) -> Result<Self, AuthorityError> {
        Self::from_text(None, certificate_pem, key_pem)
    }

    /// Loads an authority from PEM for this cluster. One that was not made by us need not name it.
    ///
    /// # Errors
    /// As [`load`](Self::load), and [`AuthorityError::OtherCluster`].
    pub fn load_for(cluster: &ClusterName, certificate_pem: &str, key_pem: &str) -> Result<Self, AuthorityError> {
        Self::from_text(Some(cluster), certificate_pem, key_pem)
    }

    /// Loads an authority from PEM files. With `cluster` as [`load_for`](Self::load_for), else as [`load`](Self::load).
    ///
    /// # Errors
    /// As those two; [`AuthorityError::Load`] names the file.
    pub fn load_files(
        cluster: Option<&ClusterName>,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, AuthorityError> {
        let (certificate_origin, certificate) = load::read_file(certificate.as_ref())?;
        let (key_origin, key) = load::read_file(key.as_ref())?;
        Self::from_origins(cluster, (certificate_origin, &certificate), (key_origin, &key))
    }

    fn from_text(cluster: Option<&ClusterName>, certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        let certificate = (Origin::Text("CA certificate"), certificate.as_bytes());
        Self::from_origins(cluster, certificate, (Origin::Text("CA key"), key.as_bytes()))
    }

    fn from_origins(
        cluster: Option<&ClusterName>,
        (certificate_origin, certificate): (Origin, &[u8]),
        (key_origin, key): (Origin, &[u8]),
    ) -> Result<Self, AuthorityError> {
        let chain = load::certificates(&certificate_origin, certificate)?;
        let PrivateKeyDer::Pkcs8(key) = load::private_key(&key_origin, key)? else {
            return Err(AuthorityError::KeyNotPkcs8);
        };
        let key_pair = KeyPair::try_from(&key).map_err(|_| LoadError::new(&key_origin, LoadFault::UnusableKey))?;
        // Endpoints and authorities agree on what fits together.
        let own = Credentials::from_der(chain.clone(), key.into(), &certificate_origin, &key_origin)?.leaf().clone();
        let parsed = parse::certificate(&own).ok_or(AuthorityError::NotAuthority)?;
        check_signs(&parsed)?;
        check_subject(&parsed)?;
        Ok(Self {
            cluster: choose_cluster(cluster, &parsed)?,
            above: chain.into_iter().filter(|certificate| !is_self_issued(certificate)).collect(),
            key_identifier: key_identifier(&parsed),
            not_after: parsed.validity().not_after.to_datetime(),
            issuer: Issuer::from_ca_cert_der(&own, key_pair)?,
            certificate: own.clone(),
            clock: Arc::new(SystemClock),
        })
    }
}

fn check_signs(certificate: &X509Certificate<'_>) -> Result<(), AuthorityError> {
    let signs = certificate.key_usage().ok().flatten().is_some_and(|usage| usage.value.key_cert_sign());
    if parse::is_authority(certificate) == Some(true) && signs { Ok(()) } else { Err(AuthorityError::NotAuthority) }
}

/// rcgen writes an issuer's name anew from a map of single attributes. A name that does not survive that makes chains
/// that do not match, and one with an empty set makes rcgen panic.
fn check_subject(certificate: &X509Certificate<'_>) -> Result<(), AuthorityError> {
    let mut seen = Vec::new();
    for set in certificate.subject().iter() {
        let mut attributes = set.iter();
        match (attributes.next(), attributes.next()) {
            (Some(attribute), None) if !seen.contains(attribute.attr_type()) => {
                seen.push(attribute.attr_type().clone());
            }
            _ => return Err(AuthorityError::UnsupportedSubject),
        }
    }
    if seen.is_empty() { Err(AuthorityError::UnsupportedSubject) } else { Ok(()) }
}

fn choose_cluster(
    wanted: Option<&ClusterName>,
    certificate: &X509Certificate<'_>,
) -> Result<ClusterName, AuthorityError> {
    match (wanted, cluster_of(certificate)) {
        (Some(expected), Some(found)) if *expected != found => {
            Err(AuthorityError::OtherCluster { found, expected: expected.clone() })
        }
        (_, Some(found)) => Ok(found),
        (Some(expected), None) => Ok(expected.clone()),
        (None, None) => Err(AuthorityError::NoClusterName),
    }
}

/// The cluster of a signing certificate: SAN URI `spiffe://CLUSTER`.
fn cluster_of(certificate: &X509Certificate<'_>) -> Option<ClusterName> {
    let names = certificate.subject_alternative_name().ok()??;
    names.value.general_names.iter().find_map(|name| match name {
        GeneralName::URI(uri) => ClusterName::new(uri.strip_prefix("spiffe://")?).ok(),
        _ => None,
    })
}

fn key_identifier(certificate: &X509Certificate<'_>) -> KeyIdMethod {
    let known = certificate.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(identifier) => Some(KeyIdMethod::PreSpecified(identifier.0.to_vec())),
        _ => None,
    });
    known.unwrap_or(KeyIdMethod::Sha256)
}

fn is_self_issued(certificate: &CertificateDer<'_>) -> bool {
    parse::certificate(certificate).is_some_and(|parsed| parsed.subject().as_raw() == parsed.issuer().as_raw())
}
