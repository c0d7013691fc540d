//! Reading X.509, the parts that several files need. All input may be hostile.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use x509_parser::certificate::X509Certificate;
use x509_parser::time::ASN1Time;
use x509_parser::x509::AttributeTypeAndValue;

/// Parses a certificate; `None` when it is not one, or something follows it.
pub(crate) fn certificate(der: &[u8]) -> Option<X509Certificate<'_>> {
    match x509_parser::parse_x509_certificate(der) {
        Ok(([], certificate)) => Some(certificate),
        _ => None,
    }
}

/// Whether the certificate may sign others (basicConstraints, RFC 5280 section 4.2.1.9); `None` when it does not say so
/// in a readable way.
pub(crate) fn is_authority(certificate: &X509Certificate<'_>) -> Option<bool> {
    Some(certificate.basic_constraints().ok()?.is_some_and(|constraints| constraints.value.ca))
}

/// An attribute's text, if it is UTF-8 and without control characters.
pub(crate) fn plain_text<'a>(attribute: &AttributeTypeAndValue<'a>) -> Option<&'a str> {
    attribute.as_str().ok().filter(|text| !text.chars().any(char::is_control))
}

/// Text from a certificate made fit for a terminal and a log line: control characters are escaped.
pub(crate) fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if c.is_control() {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
        out
    })
}

/// The address of a SAN iPAddress (RFC 5280 section 4.2.1.6): 4 or 16 octets.
pub(crate) fn ip_address(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(octets).ok().map(IpAddr::from)
}

/// A point in time. Dates that the platform cannot express do not occur: X.509 has years 0 to 9999.
pub(crate) fn system_time(time: ASN1Time) -> Option<SystemTime> {
    let seconds = time.timestamp();
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) }
}

/// A serial number in lowercase hex without separators and without the sign octet that DER may put first.
pub(crate) fn serial_hex(raw: &[u8]) -> String {
    let significant = match raw {
        [0, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    hex(significant)
}

/// Lowercase hex without separators.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The inverse of [`hex`]; separators are not accepted.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.is_empty() || !text.len().is_multiple_of(2) || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serials_are_hex_without_the_sign_octet() {
        assert_eq!(serial_hex(&[0, 0xab, 1]), "ab01");
        assert_eq!(serial_hex(&[0x0b, 1]), "0b01");
        assert_eq!(serial_hex(&[0]), "00");
        assert_eq!(from_hex("ab01"), Some(vec![0xab, 1]));
        for bad in ["", "a", "+1", "0x01", "zz", "ab:01", "ää"] {
            assert_eq!(from_hex(bad), None, "{bad}");
        }
    }
}
