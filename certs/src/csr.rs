//! What a runner asks to have certified: a PKCS #10 request (RFC 2986). All input may be hostile.

use std::fmt;

use rcgen::{CertificateParams, KeyPair, SubjectPublicKeyInfo};
use rustls_pki_types::pem::{PemObject, SectionKind};
use telemetry_proto::RunnerId;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;

use crate::authority::{AuthorityError, KeyKind, params};
use crate::credentials::Credentials;
use crate::identity::runner_common_name;
use crate::load::LoadError;
use crate::tls;

/// The largest request in bytes, as PEM or DER. One for an RSA key of 4096 bits takes less than 2 KiB.
pub const MAX_CERTIFICATE_REQUEST_BYTES: usize = 8 * 1024;
/// The sizes of RSA keys that are certified, in bits: what rustls verifies, and no more than costs little.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=4_096;

/// A request whose sender has proved that it holds the private key. Nothing else of it is ever put into a certificate.
#[derive(Debug, Clone)]
pub struct CertificateRequest {
    pub(crate) public_key: SubjectPublicKeyInfo,
    common_names: Vec<String>,
    other_subject: bool,
    alternative_names: Vec<String>,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CertificateRequestError {
    /// Larger than [`MAX_CERTIFICATE_REQUEST_BYTES`].
    #[error("the request is larger than {MAX_CERTIFICATE_REQUEST_BYTES} bytes")]
    TooLarge,
    /// Neither DER of a request nor PEM with exactly one (`CERTIFICATE REQUEST`).
    #[error("this is no PKCS #10 request, in DER or in PEM")]
    Malformed,
    /// The key is of a kind that is not certified.
    #[error("the key is none of Ed25519, ECDSA P-256, RSA of 2048 to 4096 bits")]
    Key,
    /// The signature is not by the key that is in the request: who sends it may not hold the private key.
    #[error("the request is not signed by the key that it is for")]
    Unproven,
}

impl CertificateRequest {
    /// Reads a request and verifies the proof of possession.
    ///
    /// # Errors
    /// [`CertificateRequestError`].
    pub fn read(bytes: &[u8]) -> Result<Self, CertificateRequestError> {
        if bytes.len() > MAX_CERTIFICATE_REQUEST_BYTES {
            return Err(CertificateRequestError::TooLarge);
        }
        match bytes.trim_ascii_start().starts_with(b"-----BEGIN ") {
            true => Self::from_der(&der_of_pem(bytes).ok_or(CertificateRequestError::Malformed)?),
            false => Self::from_der(bytes),
        }
    }

    /// Whether it names this runner, or nobody. Whoever asks in another's name is refused, although the name would not be
    /// used: it is a mistake, or someone tries.
    #[must_use]
    pub fn may_be_of(&self, runner: &RunnerId) -> bool {
        let (common_name, path) = (runner_common_name(runner), format!("runner/{runner}"));
        let is_own_uri = |name: &String| {
            let rest = name.strip_prefix("spiffe://").and_then(|rest| rest.split_once('/'));
            rest.is_some_and(|(_, of_cluster)| of_cluster == path)
        };
        self.common_names.iter().all(|name| *name == common_name)
            && self.alternative_names.iter().all(is_own_uri)
            && !self.other_subject
    }

    fn from_der(der: &[u8]) -> Result<Self, CertificateRequestError> {
        let (rest, request) =
            X509CertificationRequest::from_der(der).map_err(|_| CertificateRequestError::Malformed)?;
        if !rest.is_empty() {
            return Err(CertificateRequestError::Malformed);
        }
        let public_key = public_key(&request)?;
        prove(&request)?;
        let subject = &request.certification_request_info.subject;
        let common_names = subject.iter_common_name().map(|name| name.as_str().map(str::to_owned));
        let common_names =
            common_names.collect::<Result<Vec<_>, _>>().map_err(|_| CertificateRequestError::Malformed)?;
        // The organisation is the operator's business: what the request says of it is not looked at.
        let other_subject = subject.iter_attributes().any(|attribute| {
            let kind = attribute.attr_type();
            *kind != x509_parser::oid_registry::OID_X509_COMMON_NAME
                && *kind != x509_parser::oid_registry::OID_X509_ORGANIZATION_NAME
        });
        Ok(Self { public_key, common_names, other_subject, alternative_names: alternative_names(&request) })
    }
}

/// A new key on its way to a certificate. It never leaves the machine; its `Debug` does not show it.
pub struct PendingKey {
    key: KeyPair,
    request: Vec<u8>,
}

impl PendingKey {
    /// Makes a key, and the request of `runner` to have it certified.
    ///
    /// # Errors
    /// [`AuthorityError::Random`] and [`AuthorityError::Sign`].
    pub fn generate(kind: KeyKind, runner: &RunnerId) -> Result<Self, AuthorityError> {
        let key = params::generate(kind)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = params::runner_subject(runner, None)?;
        let request = params.serialize_request(&key)?.der().to_vec();
        Ok(Self { key, request })
    }

    /// The request, DER.
    #[must_use]
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// The key as PEM (PKCS #8). Secret.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// The key together with the chain that was issued for it, PEM.
    ///
    /// # Errors
    /// [`LoadError`] when the chain is none, or is for another key.
    pub fn with_chain(&self, chain_pem: &str) -> Result<Credentials, LoadError> {
        Credentials::from_pem(chain_pem.as_bytes(), self.key_pem().as_bytes())
    }
}

impl fmt::Debug for PendingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingKey").finish_non_exhaustive()
    }
}

/// The one section of PEM, of the kind that a request has.
fn der_of_pem(pem: &[u8]) -> Option<Vec<u8>> {
    let mut sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(pem);
    match (sections.next()?.ok()?, sections.next()) {
        ((SectionKind::Csr, der), None) => Some(der),
        _ => None,
    }
}

fn public_key(request: &X509CertificationRequest<'_>) -> Result<SubjectPublicKeyInfo, CertificateRequestError> {
    let spki = &request.certification_request_info.subject_pki;
    let known = SubjectPublicKeyInfo::from_der(spki.raw).map_err(|_| CertificateRequestError::Key)?;
    let algorithm = rcgen::PublicKeyData::algorithm(&known);
    let is_allowed = if *algorithm == rcgen::PKCS_ED25519 || *algorithm == rcgen::PKCS_ECDSA_P256_SHA256 {
        true
    } else {
        matches!(spki.parsed(), Ok(PublicKey::RSA(key)) if RSA_BITS.contains(&key.key_size()))
    };
    if is_allowed { Ok(known) } else { Err(CertificateRequestError::Key) }
}

/// The request is signed by its own key, with an algorithm that the WebPKI knows for that kind of key.
fn prove(request: &X509CertificationRequest<'_>) -> Result<(), CertificateRequestError> {
    let info = &request.certification_request_info;
    let key = &info.subject_pki.subject_public_key.data;
    let provider = tls::provider();
    let mut algorithms = provider.signature_verification_algorithms.all.iter();
    let proven =
        algorithms.any(|algorithm| algorithm.verify_signature(key, info.raw, &request.signature_value.data).is_ok());
    if proven { Ok(()) } else { Err(CertificateRequestError::Unproven) }
}

/// Every name of every kind, as text; what is no URI can be nobody's.
fn alternative_names(request: &X509CertificationRequest<'_>) -> Vec<String> {
    let attributes = request.certification_request_info.iter_attributes();
    let extensions = attributes.filter_map(|attribute| match attribute.parsed_attribute() {
        ParsedCriAttribute::ExtensionRequest(requested) => Some(&requested.extensions),
        _ => None,
    });
    let names = extensions.flatten().filter_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    names
        .flatten()
        .map(|name| match name {
            GeneralName::URI(uri) => (*uri).to_owned(),
            other => other.to_string(),
        })
        .collect()
}
