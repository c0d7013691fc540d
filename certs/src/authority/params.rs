//! The parts that certificates are made of, each validated before it is signed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::Ed25519KeyPair;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SanType, SerialNumber, SubjectPublicKeyInfo,
};
use rustls_pki_types::{CertificateDer, DnsName, PrivatePkcs8KeyDer};
use telemetry_proto::RunnerId;
use time::OffsetDateTime;

use super::error::AuthorityError;
use super::request::{AUTHORITY_LIFETIME, BACKDATE, KeyKind};
use crate::cluster::ClusterName;
use crate::identity::runner_common_name;
use crate::parse;

/// The longest organisation (RFC 5280 appendix A.1, ub-organization-name) in characters.
const MAX_ORGANIZATION: usize = 64;
/// The longest serial number in octets (RFC 5280 section 4.1.2.2).
const MAX_SERIAL: usize = 20;
/// Random octets in a serial number of ours.
const SERIAL: usize = 16;

/// A new authority. Its common name ends in random digits, so that an authority and the one that replaces it have
/// different subjects, and errors that name one name the right one.
pub(crate) fn authority(
    cluster: &ClusterName,
    now: SystemTime,
    path_length: u8,
) -> Result<CertificateParams, AuthorityError> {
    let mut tag = [0; 4];
    aws_lc_rs::rand::fill(&mut tag).map_err(|_| AuthorityError::Random)?;
    let mut params = CertificateParams::default();
    params.serial_number = Some(random_serial()?);
    (params.not_before, params.not_after) = validity(now, AUTHORITY_LIFETIME)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, cluster.as_str());
    params.distinguished_name.push(DnType::CommonName, format!("telemetry CA {}", parse::hex(&tag)));
    // What a signing certificate of a trust domain says (SPIFFE X509-SVID, section 2); `load` finds the cluster here.
    params.subject_alt_names = vec![uri(format!("spiffe://{cluster}"))?];
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(path_length));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// A leaf that ends no later than its authority.
pub(crate) fn leaf(
    now: SystemTime,
    lifetime: Duration,
    authority_end: OffsetDateTime,
) -> Result<CertificateParams, AuthorityError> {
    let mut params = CertificateParams::default();
    params.serial_number = Some(random_serial()?);
    let (not_before, not_after) = validity(now, lifetime)?;
    if authority_end <= date(now)? {
        return Err(AuthorityError::Expired);
    }
    (params.not_before, params.not_after) = (not_before, not_after.min(authority_end));
    params.distinguished_name = DistinguishedName::new();
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// From [`BACKDATE`] before now to `lifetime` after it; at the end of what X.509 can express if that is sooner.
pub(crate) fn validity(
    now: SystemTime,
    lifetime: Duration,
) -> Result<(OffsetDateTime, OffsetDateTime), AuthorityError> {
    if lifetime < Duration::from_secs(1) {
        return Err(AuthorityError::NoLifetime);
    }
    let not_before = date(now.checked_sub(BACKDATE).ok_or(AuthorityError::BadTime)?)?;
    let not_after = now.checked_add(lifetime).and_then(|end| date(end).ok()).unwrap_or(END_OF_TIME);
    Ok((not_before, not_after))
}

/// The last second that X.509 can express (RFC 5280 section 4.1.2.5).
const END_OF_TIME: OffsetDateTime = time::macros::datetime!(9999-12-31 23:59:59 UTC);

/// A time as certificates write it: whole seconds, years 1970 to 9999.
pub(crate) fn date(time: SystemTime) -> Result<OffsetDateTime, AuthorityError> {
    let seconds = time.duration_since(UNIX_EPOCH).map_err(|_| AuthorityError::BadTime)?.as_secs();
    let date = i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    date.ok_or(AuthorityError::BadTime)
}

/// The subject of a runner's certificate.
pub(crate) fn runner_subject(
    runner: &RunnerId,
    organization: Option<&str>,
) -> Result<DistinguishedName, AuthorityError> {
    let mut subject = DistinguishedName::new();
    if let Some(organization) = organization {
        let length = organization.chars().count();
        if !(1..=MAX_ORGANIZATION).contains(&length) || organization.chars().any(char::is_control) {
            return Err(AuthorityError::BadOrganization);
        }
        subject.push(DnType::OrganizationName, organization);
    }
    subject.push(DnType::CommonName, runner_common_name(runner));
    Ok(subject)
}

pub(crate) fn dns_name(name: &str) -> Result<SanType, AuthorityError> {
    let bad = || AuthorityError::BadDnsName(name.to_owned());
    DnsName::try_from(name).map_err(|_| bad())?;
    Ok(SanType::DnsName(name.try_into().map_err(|_| bad())?))
}

pub(crate) fn uri(uri: String) -> Result<SanType, AuthorityError> {
    Ok(SanType::URI(uri.try_into()?))
}

pub(crate) fn generate(kind: KeyKind) -> Result<KeyPair, AuthorityError> {
    match kind {
        KeyKind::Ed25519 => ed25519(),
        KeyKind::P256 => Ok(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?),
    }
}

/// In version 1 of PKCS #8, without the public key: OpenSSL 3.0 and what stands on it can't read version 2, which is what
/// rcgen would write.
pub(crate) fn ed25519() -> Result<KeyPair, AuthorityError> {
    let key = Ed25519KeyPair::generate().and_then(|pair| pair.to_pkcs8v1()).map_err(|_| AuthorityError::Random)?;
    Ok(KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(key.as_ref()), &PKCS_ED25519)?)
}

/// The public key of a certificate.
pub(crate) fn key_of(certificate: &CertificateDer<'_>) -> Result<SubjectPublicKeyInfo, AuthorityError> {
    let parsed = parse::certificate(certificate).ok_or(AuthorityError::BadKey)?;
    SubjectPublicKeyInfo::from_der(parsed.public_key().raw).map_err(|_| AuthorityError::BadKey)
}

/// The serial number of a certificate that someone else named in hex.
pub(crate) fn parse_serial(text: &str) -> Result<SerialNumber, AuthorityError> {
    let octets = parse::from_hex(text).filter(|octets| octets.len() <= MAX_SERIAL);
    octets.map(SerialNumber::from).ok_or_else(|| AuthorityError::BadSerial(text.to_owned()))
}

/// Random, so that no two authorities need to remember what they issued. Never zero nor negative.
fn random_serial() -> Result<SerialNumber, AuthorityError> {
    let mut octets = [0; SERIAL];
    aws_lc_rs::rand::fill(&mut octets).map_err(|_| AuthorityError::Random)?;
    octets[0] = octets[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&octets))
}
