//! Asking the coordinator: `POST /_identity/certificate`.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use telemetry_certs::{AuthorityError, CertificateRefusal, LoadError};
use telemetry_proto::renew::{self, RenewResponse};
use telemetry_proto::{Reason, Route, header};
use tokio::time::timeout;

use crate::backoff::retry_after;
use crate::connection::{IdentityError, SendError, Transport};

/// Bounds a transport that does not bound itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum RenewError {
    /// The request did not get there, or the answer not back.
    #[error(transparent)]
    Send(#[from] SendError),
    /// There was no answer in time.
    #[error("no answer in time")]
    Late,
    /// The coordinator refused.
    #[error("refused with status {status}{}", .reason.map(|reason| format!(" ({reason}): {}", reason.text())).unwrap_or_default())]
    Refused { status: StatusCode, reason: Option<Reason>, retry_after: Option<Duration> },
    /// The answer is none.
    #[error("the answer can't be read")]
    Unreadable,
    /// The chain is none, or is for another key.
    #[error("the coordinator's answer is of no use: {0}")]
    Chain(#[from] LoadError),
    /// The certificate is another runner's, or has ended.
    #[error("the coordinator's answer is of no use: another runner's certificate, or one that has ended")]
    Unusable,
    /// The certificate is not accepted by the coordinator that issued it.
    #[error("the coordinator refuses the certificate that it has just issued, so the old one stays: {0}")]
    NotAccepted(CertificateRefusal),
    /// No key can be made.
    #[error("no new key can be made: {0}")]
    Key(#[from] AuthorityError),
    /// The new certificate makes no TLS configuration.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

impl RenewError {
    /// The coordinator does not renew certificates, or is too old to know of it.
    pub(super) fn is_not_offered(&self) -> bool {
        matches!(self, Self::Refused { status: StatusCode::NOT_FOUND, .. })
    }

    /// How long the coordinator wants to be left alone.
    pub(super) fn retry_after(&self) -> Duration {
        match self {
            Self::Refused { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }

    /// The label `outcome` of `telemetry_certificate_renewals_total`.
    pub(super) fn outcome(&self) -> &'static str {
        match self {
            _ if self.is_not_offered() => "not_offered",
            Self::Refused { .. } => "refused",
            Self::Send(_) | Self::Late => "unreachable",
            Self::NotAccepted(_) => "not_accepted",
            _ => "failed",
        }
    }
}

/// Has the key of `request` (PKCS #10, DER) certified.
pub(super) async fn ask(transport: &dyn Transport, request: &[u8]) -> Result<RenewResponse, RenewError> {
    let body = Bytes::copy_from_slice(request);
    let length = body.len();
    let mut request = Request::new(body);
    *request.method_mut() = Route::RenewCertificate.method();
    *request.uri_mut() = Uri::from_static(Route::RenewCertificate.path());
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(renew::CONTENT_TYPE));
    request.headers_mut().insert(CONTENT_LENGTH, length.into());
    read(&timeout(ANSWER_WITHIN, transport.send(request)).await.map_err(|_| RenewError::Late)??)
}

fn read(response: &Response<Bytes>) -> Result<RenewResponse, RenewError> {
    if response.status() != StatusCode::OK {
        return Err(RenewError::Refused {
            status: response.status(),
            reason: response.headers().get(header::REASON).and_then(|value| Reason::from_header(value.as_bytes())),
            retry_after: retry_after(response.headers()),
        });
    }
    serde_json::from_slice(response.body()).map_err(|_| RenewError::Unreadable)
}
