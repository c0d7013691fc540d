//! What the TLS alerts of a failed handshake mean.
//!
//! QUIC carries a TLS alert as the error code 0x100 plus the alert (RFC 9001 section 4.8; alerts: RFC 8446 section 6).
//! A client whose certificate is refused sees a successful connection first, since in TLS 1.3 the server verifies it
//! after the client is done. The code comes with the close of the connection.

use rustls::{AlertDescription, Error};

/// Why the peer refused our certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CertificateRefusal {
    /// The peer requires a certificate and we showed none.
    #[error("the peer requires a certificate and none was shown: configure this runner's certificate and key")]
    NoCertificate,
    /// The peer does not trust our issuer, or has no revocation list of it.
    #[error("the peer does not trust our certificate's issuer: enrol in this cluster again, or check the address")]
    UnknownCa,
    /// Our certificate is over, or not valid yet by the peer's clock.
    #[error("our certificate has expired or is not valid yet: renew it, and compare the clocks")]
    Expired,
    /// Our certificate is revoked.
    #[error("our certificate is revoked: ask the cluster's operator for a new one")]
    Revoked,
    /// Our certificate is not for clients.
    #[error("our certificate is not for this use: a runner needs one with client usage (EKU clientAuth)")]
    WrongUsage,
    /// The peer cannot use our certificate for another reason.
    #[error("the peer cannot use our certificate: issue it again, with an Ed25519, ECDSA or RSA key")]
    Bad,
}

impl CertificateRefusal {
    /// Reads the code that the *peer* closed the connection with (`ConnectionError::ConnectionClosed` in quinn, not
    /// `TransportError`). `None`: the code is not about a certificate.
    #[must_use]
    pub const fn from_quic_code(code: u64) -> Option<Self> {
        Some(match code {
            // certificate_required
            0x174 => Self::NoCertificate,
            // unknown_ca
            0x130 => Self::UnknownCa,
            // certificate_expired
            0x12d => Self::Expired,
            // certificate_revoked
            0x12c => Self::Revoked,
            // unsupported_certificate
            0x12b => Self::WrongUsage,
            // bad_certificate, certificate_unknown; illegal_parameter (Go: the key's kind is not accepted);
            // access_denied; decrypt_error (a signature that does not verify)
            0x12a | 0x12e | 0x12f | 0x131 | 0x133 => Self::Bad,
            _ => return None,
        })
    }

    /// Reads the error of a TLS connection without QUIC: an alert that the peer sent.
    #[must_use]
    pub fn from_rustls(error: &Error) -> Option<Self> {
        match error {
            Error::AlertReceived(alert) => Self::from_quic_code(quic_code(*alert)),
            _ => None,
        }
    }
}

/// Why we refused the server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ServerDistrust {
    /// We do not trust its issuer.
    #[error("the server's certificate is of another issuer: check the address and the configured CA")]
    UnknownCa,
    /// It is over, or not valid yet by our clock.
    #[error("the server's certificate has expired or is not valid yet: renew it, and compare the clocks")]
    Expired,
    /// It is not for servers.
    #[error("the server's certificate is not for servers: a coordinator needs one with server usage (EKU serverAuth)")]
    WrongUsage,
    /// It is a runner's.
    #[error("the server shows a runner's certificate: a runner poses as the coordinator, or the address is a runner's")]
    Runner,
    /// It is not for the name we dialled, or cannot be read.
    #[error("the server's certificate is not for this name: dial a name that it holds, or issue it with this one")]
    WrongName,
    /// Its signature does not verify.
    #[error("the server's certificate or handshake is not signed as it claims: someone may be in between")]
    BadSignature,
}

impl ServerDistrust {
    /// Reads the code that *we* closed the connection with (`ConnectionError::TransportError` in quinn) under
    /// [`client_config`](crate::client_config). `None`: the code is not about the server's certificate.
    #[must_use]
    pub const fn from_quic_code(code: u64) -> Option<Self> {
        Some(match code {
            0x130 => Self::UnknownCa,
            0x12d => Self::Expired,
            0x12b => Self::WrongUsage,
            // certificate_unknown: rustls sends it for the errors of verifiers that are not its own, and of those
            // there is one.
            0x12e => Self::Runner,
            0x12a => Self::WrongName,
            0x133 => Self::BadSignature,
            _ => return None,
        })
    }

    /// Reads the error of a TLS connection without QUIC, under [`client_config`](crate::client_config).
    #[must_use]
    pub fn from_rustls(error: &Error) -> Option<Self> {
        match error {
            Error::InvalidCertificate(reason) => Self::from_quic_code(quic_code(reason.clone().into())),
            _ => None,
        }
    }
}

/// The QUIC error code of a TLS alert (RFC 9001 section 4.8).
fn quic_code(alert: AlertDescription) -> u64 {
    0x100 | u64::from(u8::from(alert))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_are_not_about_certificates_mean_nothing_here() {
        // NO_ERROR, CONNECTION_REFUSED, no_application_protocol, handshake_failure, protocol_version, H3_NO_ERROR
        for code in [0, 2, 0x178, 0x128, 0x146, 0x100, 0x2e, u64::MAX] {
            assert_eq!(CertificateRefusal::from_quic_code(code), None, "{code:#x}");
            assert_eq!(ServerDistrust::from_quic_code(code), None, "{code:#x}");
        }
    }

    #[test]
    fn every_refusal_names_a_remedy() {
        for code in [0x174, 0x130, 0x12d, 0x12c, 0x12b, 0x12a, 0x12e, 0x12f] {
            let text = CertificateRefusal::from_quic_code(code).unwrap().to_string();
            assert!(text.contains(": "), "{text}");
        }
    }
}
