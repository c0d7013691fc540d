//! A certificate for people.

use std::time::SystemTime;

use rustls_pki_types::CertificateDer;
use telemetry_proto::RunnerId;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{ExtendedKeyUsage, GeneralName};

use crate::identity::{self, IdentityError, PeerIdentity};
use crate::inspect::{self, KeySummary};
use crate::parse;

/// What a certificate says, as text for people. Control characters are escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateSummary {
    /// The subject's distinguished name.
    pub subject: String,
    /// The issuer's distinguished name.
    pub issuer: String,
    /// The serial number, in lowercase hex without separators.
    pub serial: String,
    /// Start of validity.
    pub not_before: SystemTime,
    /// End of validity.
    pub not_after: SystemTime,
    /// The subject's alternative names, such as `DNS:c.example`, `IP:192.0.2.1`, `URI:spiffe://c/runner/r7`.
    pub san: Vec<String>,
    /// The extended key usages, such as `clientAuth`. Empty: any.
    pub usages: Vec<String>,
    /// Whether it is an authority's.
    pub is_authority: bool,
    /// The key that it is for.
    pub key: KeySummary,
    /// SHA-256 of the DER.
    pub fingerprint: [u8; 32],
    /// The runner that it identifies, if it does.
    pub identity: Option<RunnerId>,
}

/// Describes a certificate. Says nothing about whether it should be trusted.
///
/// # Errors
/// [`IdentityError::Unreadable`].
pub fn describe(certificate: &CertificateDer<'_>) -> Result<CertificateSummary, IdentityError> {
    let parsed = parse::certificate(certificate).ok_or(IdentityError::Unreadable)?;
    Ok(CertificateSummary {
        subject: parse::printable(&parsed.subject().to_string()),
        issuer: parse::printable(&parsed.issuer().to_string()),
        serial: parse::serial_hex(parsed.raw_serial()),
        not_before: parse::system_time(parsed.validity().not_before).ok_or(IdentityError::Unreadable)?,
        not_after: parse::system_time(parsed.validity().not_after).ok_or(IdentityError::Unreadable)?,
        san: alternative_names(&parsed)?,
        usages: usages(&parsed)?,
        is_authority: parse::is_authority(&parsed).ok_or(IdentityError::Unreadable)?,
        key: inspect::of_public_key(parsed.public_key().raw).ok_or(IdentityError::Unreadable)?,
        fingerprint: identity::fingerprint(certificate),
        identity: PeerIdentity::from_leaf(certificate).ok().map(|identity| identity.runner),
    })
}

fn alternative_names(certificate: &X509Certificate<'_>) -> Result<Vec<String>, IdentityError> {
    let names = certificate.subject_alternative_name().map_err(|_| IdentityError::Unreadable)?;
    Ok(names
        .iter()
        .flat_map(|names| &names.value.general_names)
        .map(|name| parse::printable(&name_text(name)))
        .collect())
}

fn name_text(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(dns) => format!("DNS:{dns}"),
        GeneralName::URI(uri) => format!("URI:{uri}"),
        GeneralName::IPAddress(octets) => match parse::ip_address(octets) {
            Some(address) => format!("IP:{address}"),
            None => format!("IP:({})", parse::hex(octets)),
        },
        other => other.to_string(),
    }
}

fn usages(certificate: &X509Certificate<'_>) -> Result<Vec<String>, IdentityError> {
    let extension = certificate.extended_key_usage().map_err(|_| IdentityError::Unreadable)?;
    Ok(extension.map(|extension| usage_names(extension.value)).unwrap_or_default())
}

/// The names of RFC 5280, section 4.2.1.12.
fn usage_names(usage: &ExtendedKeyUsage<'_>) -> Vec<String> {
    let known = [
        (usage.any, "any"),
        (usage.server_auth, "serverAuth"),
        (usage.client_auth, "clientAuth"),
        (usage.code_signing, "codeSigning"),
        (usage.email_protection, "emailProtection"),
        (usage.time_stamping, "timeStamping"),
        (usage.ocsp_signing, "OCSPSigning"),
    ];
    let known = known.into_iter().filter(|(set, _)| *set).map(|(_, name)| name.to_owned());
    known.chain(usage.other.iter().map(ToString::to_string)).collect()
}
