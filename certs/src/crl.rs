//! Which certificates are no longer good.

use std::path::Path;
use std::time::SystemTime;

use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::revocation_list::CertificateRevocationList;

use crate::load::{self, LoadError, LoadFault, Origin};
use crate::parse;
use crate::tls;

/// Revocation lists (RFC 5280 section 5), readable, not yet checked against any root. Empty by default.
#[derive(Debug, Clone, Default)]
pub struct Crls {
    lists: Vec<CertificateRevocationListDer<'static>>,
}

/// What a revocation list says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevocationList {
    /// Who issued it, as text.
    pub issuer: String,
    /// The list's number, which grows with each issue; absent when the list has none or one beyond 64 bits.
    pub number: Option<u64>,
    /// When it was issued.
    pub this_update: SystemTime,
    /// When the next one is due. A list that is overdue stays in force.
    pub next_update: Option<SystemTime>,
    /// What is revoked.
    pub revoked: Vec<Revocation>,
}

/// One revoked certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    /// The serial number, in hex without separators: [`PeerIdentity::serial`](crate::PeerIdentity::serial).
    pub serial: String,
    /// When it was revoked.
    pub revoked_at: SystemTime,
}

impl Crls {
    /// Reads PEM with one or several lists.
    ///
    /// # Errors
    /// [`LoadError`] when there is no list in it, or one that cannot be read.
    pub fn from_pem(pem: &[u8]) -> Result<Self, LoadError> {
        Self::from_origin(&Origin::Text("revocation lists"), pem)
    }

    /// Reads a PEM file of at most 16 MiB with one or several lists.
    ///
    /// # Errors
    /// [`LoadError`], which names the file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let (origin, pem) = load::read_crl_file(path.as_ref())?;
        Self::from_origin(&origin, &pem)
    }

    /// Adds the lists of another file or text.
    pub fn extend(&mut self, other: Self) {
        self.lists.extend(other.lists);
    }

    /// Whether every list carries this authority's name and signature.
    #[must_use]
    pub fn are_issued_by(&self, authority: &CertificateDer<'_>) -> bool {
        let Some(authority) = parse::certificate(authority) else { return false };
        self.lists.iter().all(|der| self::parse(der).is_some_and(|list| tls::is_signed_by(&list, &authority)))
    }

    /// One list, readable or not.
    pub(crate) fn from_der(der: Vec<u8>) -> Self {
        Self { lists: vec![der.into()] }
    }

    /// The lists as rustls and [`ServerTls`](crate::ServerTls) want them.
    #[must_use]
    pub fn ders(&self) -> &[CertificateRevocationListDer<'static>] {
        &self.lists
    }

    /// What the lists say.
    #[must_use]
    pub fn read(&self) -> Vec<RevocationList> {
        self.lists.iter().filter_map(|der| read(der)).collect()
    }

    fn from_origin(origin: &Origin, pem: &[u8]) -> Result<Self, LoadError> {
        let lists = load::revocation_lists(origin, pem)?;
        match lists.iter().position(|der| read(der).is_none()) {
            Some(index) => Err(LoadError::new(origin, LoadFault::BadRevocationList { number: index + 1 })),
            None => Ok(Self { lists }),
        }
    }
}

/// Parses a list; `None` when it is not one, or something follows it.
pub(crate) fn parse(der: &[u8]) -> Option<CertificateRevocationList<'_>> {
    match x509_parser::parse_x509_crl(der) {
        Ok(([], list)) => Some(list),
        _ => None,
    }
}

fn read(der: &[u8]) -> Option<RevocationList> {
    let list = parse(der)?;
    let revoked = list
        .iter_revoked_certificates()
        .map(|entry| {
            let revoked_at = parse::system_time(entry.revocation_date)?;
            Some(Revocation { serial: parse::serial_hex(entry.raw_serial()), revoked_at })
        })
        .collect::<Option<_>>()?;
    Some(RevocationList {
        issuer: parse::printable(&list.issuer().to_string()),
        number: list.crl_number().and_then(|number| u64::try_from(number.clone()).ok()),
        this_update: parse::system_time(list.last_update())?,
        next_update: list.next_update().and_then(parse::system_time),
        revoked,
    })
}
