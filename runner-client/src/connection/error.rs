//! Why there is no connection, and what became of a request.

use std::error::Error;
use std::io;
use std::sync::Arc;

use quinn::ConnectionError;
use telemetry_certs::{CertificateRefusal, ServerDistrust};

/// The code of a connection that ends without an error (RFC 9114 section 8.1).
pub(super) const H3_NO_ERROR: quinn::VarInt = quinn::VarInt::from_u32(0x100);

/// Why there is no connection to a coordinator.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The coordinator refuses the runner's certificate.
    #[error("the coordinator refuses the runner's certificate: {0}")]
    Refused(CertificateRefusal),
    /// The runner does not trust the certificate of whoever answers.
    #[error("the coordinator's certificate is not trusted: {0}")]
    UntrustedServer(ServerDistrust),
    /// The name of the coordinator can't be resolved.
    #[error("the name of the coordinator can't be resolved")]
    Unresolvable(#[source] Arc<io::Error>),
    /// Nothing can be sent to the coordinator's address.
    #[error("the coordinator's address can't be used")]
    Unreachable(#[source] Arc<quinn::ConnectError>),
    /// The coordinator does not answer.
    #[error("the coordinator does not answer")]
    Timeout,
    /// The other side ended the connection, or does not speak HTTP/3 as we do.
    #[error("the connection is broken")]
    Broken(#[source] Arc<dyn Error + Send + Sync>),
    /// The coordinator is about to go away and takes no more requests.
    #[error("the coordinator is going away")]
    GoingAway,
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// What kind of trouble a [`ConnectError`] is: whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectErrorKind {
    /// The network or the coordinator is away: time may heal it.
    Outage,
    /// One side does not trust the other: someone must change a certificate or an address.
    Identity,
    /// The client was closed.
    Closed,
}

impl ConnectError {
    /// What kind of trouble it is.
    #[must_use]
    pub const fn kind(&self) -> ConnectErrorKind {
        match self {
            Self::Refused(_) | Self::UntrustedServer(_) => ConnectErrorKind::Identity,
            Self::Closed => ConnectErrorKind::Closed,
            _ => ConnectErrorKind::Outage,
        }
    }

    /// Whether it makes sense to dial again without a change of certificates or addresses.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self.kind(), ConnectErrorKind::Outage)
    }
}

/// A TLS alert is an error code of QUIC (RFC 9001 section 4.8). Whose alert it was tells who distrusts whom.
impl From<ConnectionError> for ConnectError {
    fn from(error: ConnectionError) -> Self {
        let known = match &error {
            ConnectionError::ConnectionClosed(close) => {
                CertificateRefusal::from_quic_code(close.error_code.into()).map(Self::Refused)
            }
            ConnectionError::TransportError(ours) => {
                ServerDistrust::from_quic_code(ours.code.into()).map(Self::UntrustedServer)
            }
            ConnectionError::ApplicationClosed(close) if close.error_code == H3_NO_ERROR => Some(Self::GoingAway),
            ConnectionError::TimedOut => Some(Self::Timeout),
            ConnectionError::LocallyClosed => Some(Self::Closed),
            _ => None,
        };
        known.unwrap_or_else(|| Self::Broken(Arc::new(error)))
    }
}

/// What became of a request that has no response.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There is no connection, or the other side did not look at the request.
    #[error("not sent: {0}")]
    NotSent(#[source] ConnectError),
    /// The connection or the stream broke. The other side may have got the request or not.
    #[error("the request was lost: {0}")]
    Lost(#[source] Arc<dyn Error + Send + Sync>),
    /// There was no whole response in time. The other side may have got the request or not.
    #[error("no response in time")]
    Timeout,
}

impl SendError {
    /// Whether nothing was sent because the network or the coordinator is away.
    #[must_use]
    pub const fn is_outage(&self) -> bool {
        matches!(self, Self::NotSent(error) if matches!(error.kind(), ConnectErrorKind::Outage))
    }

    /// The label `outcome` of `telemetry_requests_total`.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::NotSent(_) => "not-sent",
            Self::Lost(_) => "lost",
            Self::Timeout => "timeout",
        }
    }
}

#[cfg(test)]
mod tests {
    use quinn::{ConnectionClose, TransportErrorCode};

    use super::*;

    fn closed_by_peer(error_code: TransportErrorCode) -> ConnectError {
        ConnectionError::ConnectionClosed(ConnectionClose { error_code, frame_type: None, reason: "".into() }).into()
    }

    #[test]
    fn the_peers_alert_about_our_certificate_is_a_refusal_and_no_outage() {
        for (alert, expected) in [
            (0x74, CertificateRefusal::NoCertificate),
            (0x30, CertificateRefusal::UnknownCa),
            (0x2b, CertificateRefusal::WrongUsage),
            (0x2c, CertificateRefusal::Revoked),
            (0x2d, CertificateRefusal::Expired),
            (0x2a, CertificateRefusal::Bad),
        ] {
            let error = closed_by_peer(TransportErrorCode::crypto(alert));
            assert!(matches!(error, ConnectError::Refused(refusal) if refusal == expected), "{alert:#x}: {error:?}");
            assert!(!error.is_retryable() && !SendError::NotSent(error).is_outage());
        }
    }

    #[test]
    fn every_other_end_is_an_outage_that_dialling_again_may_heal() {
        let no_application_protocol = TransportErrorCode::crypto(0x78);
        for error in [
            closed_by_peer(TransportErrorCode::NO_ERROR),
            closed_by_peer(no_application_protocol),
            ConnectionError::Reset.into(),
            ConnectionError::TimedOut.into(),
        ] {
            assert_eq!(error.kind(), ConnectErrorKind::Outage, "{error:?}");
        }
        assert_eq!(ConnectError::from(ConnectionError::LocallyClosed).kind(), ConnectErrorKind::Closed);
    }
}
