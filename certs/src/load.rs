//! Reading PEM, and saying what is wrong with it in words that help.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use rustls_pki_types::pem::{self, PemObject, SectionKind};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::parse;

/// The largest file of certificates or keys in bytes.
const MAX_PEM_BYTES: u64 = 1024 * 1024;
/// The largest file of revocation lists in bytes; an entry takes about 60.
const MAX_CRL_PEM_BYTES: u64 = 16 * 1024 * 1024;

/// A certificate, key or revocation list that cannot be used: where it came from, what is wrong, what to do.
#[derive(Debug, thiserror::Error)]
#[error("{origin}: {fault}")]
pub struct LoadError {
    origin: Origin,
    fault: LoadFault,
}

impl LoadError {
    pub(crate) fn new(origin: &Origin, fault: LoadFault) -> Self {
        Self { origin: origin.clone(), fault }
    }

    /// Where the PEM came from.
    #[must_use]
    pub const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// What is wrong with it.
    #[must_use]
    pub const fn fault(&self) -> &LoadFault {
        &self.fault
    }
}

/// Where PEM came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// Text in memory, by what it is: `certificate chain`, `private key` and so on.
    Text(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Text(what) => f.write_str(what),
        }
    }
}

/// What is wrong with PEM. The text of each says what to do about it. Certificates are counted from 1.
#[derive(Debug, thiserror::Error)]
pub enum LoadFault {
    /// There is no such file.
    #[error("no such file; check the path in the configuration")]
    Missing,
    /// The file cannot be read.
    #[error("cannot be read ({0}); check its permissions for the user that runs this program")]
    Unreadable(io::Error),
    /// The file is too large to be what it should be.
    #[error("larger than {limit} bytes; check that this is the right file")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// There is nothing in it.
    #[error("empty; write it again, and put it in place with a rename")]
    Empty,
    /// There is no PEM in it.
    #[error("not PEM (no line begins with -----BEGIN); convert DER with openssl first")]
    NotPem,
    /// A section begins and does not end.
    #[error("truncated (a PEM section has no end); copy it again, whole")]
    Truncated,
    /// A section's frame or base64 is broken.
    #[error("damaged (a PEM section cannot be decoded); copy it again")]
    Damaged,
    /// PEM, but without a certificate.
    #[error("holds PEM, but no certificate; are certificate and key swapped?")]
    NoCertificate,
    /// PEM, but without a private key.
    #[error("holds PEM, but no private key; are certificate and key swapped?")]
    NoPrivateKey,
    /// PEM, but without a revocation list.
    #[error("holds PEM, but no revocation list (X509 CRL)")]
    NoRevocationList,
    /// More than one private key.
    #[error("holds more than one private key; leave the one that belongs to the certificate")]
    SeveralPrivateKeys,
    /// A key behind a passphrase.
    #[error("the private key is encrypted; decrypt it with `openssl pkey` and protect the file by its permissions")]
    EncryptedPrivateKey,
    /// A key of a kind that we cannot use, or one that is damaged inside.
    #[error(
        "the private key cannot be used; expected Ed25519, ECDSA P-256, P-384 or P-521, or RSA of 2048 to 8192 bits"
    )]
    UnusableKey,
    /// A certificate is not X.509 version 3.
    #[error("certificate {number} cannot be read as X.509 version 3; issue it again")]
    BadCertificate {
        /// Which one.
        number: usize,
    },
    /// A root is no authority's certificate.
    #[error("certificate {number} is no authority's; a list of roots holds the cluster's CA, not a leaf")]
    NotAuthority {
        /// Which one.
        number: usize,
    },
    /// A revocation list cannot be read.
    #[error("revocation list {number} cannot be read; issue it again")]
    BadRevocationList {
        /// Which one.
        number: usize,
    },
    /// The key does not belong to the first certificate of the chain.
    #[error(
        "not the key of the first certificate in {chain}; the leaf comes first there, and both must be of one issue"
    )]
    KeyMismatch {
        /// Where the chain came from.
        chain: Origin,
    },
}

/// Reads a file of certificates or keys.
pub(crate) fn read_file(path: &Path) -> Result<(Origin, Vec<u8>), LoadError> {
    read_limited(path, MAX_PEM_BYTES)
}

/// Reads a file of revocation lists.
pub(crate) fn read_crl_file(path: &Path) -> Result<(Origin, Vec<u8>), LoadError> {
    read_limited(path, MAX_CRL_PEM_BYTES)
}

/// Reads the certificates of a PEM file of at most 1 MiB: at least one, each of them readable.
///
/// # Errors
/// [`LoadError`], which names the file.
pub fn read_certificates(path: impl AsRef<Path>) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let (origin, pem) = read_file(path.as_ref())?;
    certificates(&origin, &pem)
}

/// All certificates, at least one, each of them readable.
pub(crate) fn certificates(origin: &Origin, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let all: Vec<CertificateDer<'static>> = sections(origin, pem)?
        .into_iter()
        .filter(|(kind, _)| *kind == SectionKind::Certificate)
        .map(|(_, der)| der.into())
        .collect();
    if all.is_empty() {
        return Err(LoadError::new(origin, LoadFault::NoCertificate));
    }
    match all.iter().position(|der| parse::certificate(der).is_none()) {
        Some(index) => Err(LoadError::new(origin, LoadFault::BadCertificate { number: index + 1 })),
        None => Ok(all),
    }
}

/// The one private key.
pub(crate) fn private_key(origin: &Origin, pem: &[u8]) -> Result<PrivateKeyDer<'static>, LoadError> {
    let mut keys = sections(origin, pem)?.into_iter().filter_map(|(kind, der)| PrivateKeyDer::from_pem(kind, der));
    match (keys.next(), keys.next()) {
        (Some(key), None) => Ok(key),
        (Some(_), Some(_)) => Err(LoadError::new(origin, LoadFault::SeveralPrivateKeys)),
        (None, _) if has_encrypted_key(pem) => Err(LoadError::new(origin, LoadFault::EncryptedPrivateKey)),
        (None, _) => Err(LoadError::new(origin, LoadFault::NoPrivateKey)),
    }
}

/// All revocation lists, at least one.
pub(crate) fn revocation_lists(
    origin: &Origin,
    pem: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, LoadError> {
    let all: Vec<CertificateRevocationListDer<'static>> = sections(origin, pem)?
        .into_iter()
        .filter(|(kind, _)| *kind == SectionKind::Crl)
        .map(|(_, der)| der.into())
        .collect();
    if all.is_empty() { Err(LoadError::new(origin, LoadFault::NoRevocationList)) } else { Ok(all) }
}

/// A certificate as PEM (RFC 7468 section 5).
pub(crate) fn certificate_pem(der: &CertificateDer<'_>) -> String {
    let base64 = BASE64_STANDARD.encode(der);
    let mut pem = String::with_capacity(base64.len() + base64.len() / 64 + 60);
    pem.push_str("-----BEGIN CERTIFICATE-----\n");
    let mut rest = base64.as_str();
    while !rest.is_empty() {
        // Base64 is ASCII: every index is a boundary.
        let (line, tail) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = tail;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

fn read_limited(path: &Path, limit: u64) -> Result<(Origin, Vec<u8>), LoadError> {
    let origin = Origin::File(path.to_owned());
    let mut content = Vec::new();
    // One byte more than allowed tells a file at the limit from one beyond it.
    match File::open(path).and_then(|file| file.take(limit + 1).read_to_end(&mut content)) {
        Ok(read) if read as u64 > limit => Err(LoadError::new(&origin, LoadFault::TooLarge { limit })),
        Ok(_) => Ok((origin, content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(LoadError::new(&origin, LoadFault::Missing)),
        Err(error) => Err(LoadError::new(&origin, LoadFault::Unreadable(error))),
    }
}

/// Every section of a known kind. One that is broken spoils them all: half a chain is worse than none.
pub(crate) fn sections(origin: &Origin, pem: &[u8]) -> Result<Vec<(SectionKind, Vec<u8>)>, LoadError> {
    let fault = |fault| Err(LoadError::new(origin, fault));
    if pem.trim_ascii().is_empty() {
        return fault(LoadFault::Empty);
    }
    if !pem.split(|byte| matches!(byte, b'\n' | b'\r')).any(|line| line.starts_with(b"-----BEGIN ")) {
        return fault(LoadFault::NotPem);
    }
    match <(SectionKind, Vec<u8>)>::pem_slice_iter(pem).collect() {
        Ok(sections) => Ok(sections),
        Err(pem::Error::MissingSectionEnd { .. }) => fault(LoadFault::Truncated),
        Err(_) => fault(LoadFault::Damaged),
    }
}

pub(crate) fn has_encrypted_key(pem: &[u8]) -> bool {
    pem.split(|byte| matches!(byte, b'\n' | b'\r')).any(|line| line.starts_with(b"-----BEGIN ENCRYPTED PRIVATE KEY"))
}
