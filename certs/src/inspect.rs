//! What is in a PEM file, for people. Nothing secret of a key is shown.

use std::path::Path;

use rustls_pki_types::pem::{PemObject as _, SectionKind};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::crl::{Crls, RevocationList};
use crate::identity::sha256;
use crate::load::{self, LoadError, LoadFault};
use crate::summary::{CertificateSummary, describe};
use crate::tls;

/// One section of a PEM file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PemItem {
    /// A certificate.
    Certificate(Box<CertificateSummary>),
    /// A revocation list.
    RevocationList(RevocationList),
    /// A private key.
    PrivateKey(KeySummary),
    /// Something that this project has no use for, by its PEM label.
    Other(&'static str),
}

/// A key, by its public half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySummary {
    /// Its kind, such as `Ed25519`, `ECDSA P-256`, `RSA 2048`.
    pub kind: String,
    /// SHA-256 of the SubjectPublicKeyInfo: the same for a private key and for the certificates that are for it.
    pub fingerprint: [u8; 32],
}

/// Reads every section of a PEM file of at most 16 MiB.
///
/// # Errors
/// [`LoadError`], which names the file.
pub fn inspect_file(path: impl AsRef<Path>) -> Result<Vec<PemItem>, LoadError> {
    let (origin, pem) = load::read_crl_file(path.as_ref())?;
    let mut certificates = 0;
    let mut lists = Crls::default();
    let mut items = Vec::new();
    for (kind, der) in load::sections(&origin, &pem)? {
        items.push(match kind {
            SectionKind::Certificate => {
                certificates += 1;
                let fault = |_| LoadError::new(&origin, LoadFault::BadCertificate { number: certificates });
                PemItem::Certificate(Box::new(describe(&CertificateDer::from(der)).map_err(fault)?))
            }
            SectionKind::Crl => {
                lists.extend(Crls::from_der(der));
                let number = lists.ders().len();
                let fault = || LoadError::new(&origin, LoadFault::BadRevocationList { number });
                PemItem::RevocationList(lists.read().pop().filter(|_| lists.read().len() == number).ok_or_else(fault)?)
            }
            SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey => {
                let key = PrivateKeyDer::from_pem(kind, der);
                let summary = key.and_then(of_private_key);
                PemItem::PrivateKey(summary.ok_or_else(|| LoadError::new(&origin, LoadFault::UnusableKey))?)
            }
            SectionKind::PublicKey => PemItem::Other("PUBLIC KEY"),
            SectionKind::Csr => PemItem::Other("CERTIFICATE REQUEST"),
            _ => PemItem::Other("something else"),
        });
    }
    match items.is_empty() {
        true if load::has_encrypted_key(&pem) => Err(LoadError::new(&origin, LoadFault::EncryptedPrivateKey)),
        true => Err(LoadError::new(&origin, LoadFault::NoCertificate)),
        false => Ok(items),
    }
}

/// Reads a SubjectPublicKeyInfo.
pub(crate) fn of_public_key(spki: &[u8]) -> Option<KeySummary> {
    let (_, parsed) = SubjectPublicKeyInfo::from_der(spki).ok()?;
    let kind = match parsed.parsed() {
        Ok(PublicKey::RSA(key)) => format!("RSA {}", key.key_size()),
        Ok(PublicKey::EC(point)) => format!(
            "ECDSA P-{}",
            match point.key_size() {
                528 => 521,
                size => size,
            }
        ),
        _ if parsed.algorithm.algorithm == x509_parser::oid_registry::OID_SIG_ED25519 => "Ed25519".to_owned(),
        _ => parsed.algorithm.algorithm.to_string(),
    };
    Some(KeySummary { kind, fingerprint: sha256(spki) })
}

fn of_private_key(key: PrivateKeyDer<'static>) -> Option<KeySummary> {
    let key = tls::provider().key_provider.load_private_key(key).ok()?;
    of_public_key(&key.public_key()?)
}
