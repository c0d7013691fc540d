//! Reading a response.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use telemetry_proto::{Reason, Verdict, header};

use crate::backoff::retry_after;

/// What a response means for the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is in the store. Forget it.
    Delivered {
        /// It was there before.
        duplicate: bool,
    },
    /// Keep it and try again.
    Retry {
        /// Not before this long.
        after: Option<Duration>,
        /// Whether the batch itself may be what is wrong, and not the way.
        suspect: bool,
    },
    /// It will never be accepted.
    Reject(Option<Reason>),
    /// Send it with a new token.
    RefreshToken(Option<Reason>),
    /// Someone must change something.
    Forbidden(Option<Reason>),
}

impl Outcome {
    /// Reads status and headers. A verdict counts where the relay gives one that fits the status. Without one the
    /// response may come from something in between, or from an older coordinator: then a batch is done with only by 200
    /// or 204, and never given up.
    pub(super) fn read(status: StatusCode, headers: &HeaderMap) -> Self {
        let reason = only(headers, &header::REASON).and_then(Reason::from_header);
        let retry = |suspect| Self::Retry { after: retry_after(headers), suspect };
        let is_about_load = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        if !headers.contains_key(header::VERDICT) {
            return match status {
                StatusCode::OK | StatusCode::NO_CONTENT => Self::Delivered { duplicate: false },
                StatusCode::UNAUTHORIZED => Self::RefreshToken(reason),
                StatusCode::FORBIDDEN => Self::Forbidden(reason),
                _ => retry(!is_about_load),
            };
        }
        match only(headers, &header::VERDICT).and_then(Verdict::from_header) {
            Some(Verdict::Delivered) if status.is_success() => Self::Delivered { duplicate: false },
            Some(Verdict::Duplicate) if status.is_success() => Self::Delivered { duplicate: true },
            Some(Verdict::Reject) if status.is_client_error() => Self::Reject(reason),
            Some(Verdict::RefreshToken) if status.is_client_error() => Self::RefreshToken(reason),
            Some(Verdict::Forbidden) if status.is_client_error() => Self::Forbidden(reason),
            Some(Verdict::Retry) => retry(reason.map_or(!is_about_load, may_be_the_batchs_fault)),
            // A verdict of the future, two of them, or one that contradicts the status: nothing is lost by keeping.
            _ => retry(true),
        }
    }

    /// The label `outcome` of `telemetry_requests_total`.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered { duplicate: false } => "delivered",
            Self::Delivered { duplicate: true } => "duplicate",
            Self::Retry { .. } => "retry",
            Self::Reject(_) => "reject",
            Self::RefreshToken(_) => "refresh-token",
            Self::Forbidden(_) => "forbidden",
        }
    }
}

/// Whether the reason of a `retry` may lie in the batch: the others speak of load, of limits, or of a store that is away.
const fn may_be_the_batchs_fault(reason: Reason) -> bool {
    matches!(reason, Reason::InternalError | Reason::BackendError | Reason::BackendTimeout | Reason::BodyTooSlow)
}

/// The one value of a header; `None` if it is absent or repeated.
fn only<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Some(value.as_bytes()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, headers: &[(&str, &str)]) -> Outcome {
        let mut response = http::Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let response = response.body(()).unwrap();
        Outcome::read(response.status(), response.headers())
    }

    fn with_verdict(status: u16, verdict: &str) -> Outcome {
        read(status, &[("miren-telemetry-verdict", verdict)])
    }

    const KEEP: Outcome = Outcome::Retry { after: None, suspect: true };

    #[test]
    fn every_reason_of_the_relay_is_read_as_it_is_meant() {
        for &reason in Reason::ALL {
            let headers = [
                ("miren-telemetry-verdict", reason.verdict().as_str()),
                ("miren-telemetry-reason", reason.as_str()),
                ("retry-after", "2"),
            ];
            let expected = match reason.verdict() {
                Verdict::Retry => {
                    let suspect = may_be_the_batchs_fault(reason);
                    Outcome::Retry { after: Some(Duration::from_secs(2)), suspect }
                }
                Verdict::Reject => Outcome::Reject(Some(reason)),
                Verdict::RefreshToken => Outcome::RefreshToken(Some(reason)),
                Verdict::Forbidden => Outcome::Forbidden(Some(reason)),
                Verdict::Delivered | Verdict::Duplicate => panic!("{reason} is no refusal"),
            };
            assert_eq!(read(reason.status().as_u16(), &headers), expected, "{reason}");
        }
        assert_eq!(with_verdict(204, "delivered"), Outcome::Delivered { duplicate: false });
        assert_eq!(with_verdict(204, "duplicate"), Outcome::Delivered { duplicate: true });
    }

    // VictoriaLogs 1499: a load balancer's 404 lost logs. VictoriaMetrics 11272: a 400 for something transient did.
    #[test]
    fn an_unmarked_refusal_never_gives_a_batch_up() {
        for status in [201, 202, 206, 301, 302, 400, 404, 405, 408, 411, 413, 415, 429, 500, 502, 503, 504] {
            assert!(matches!(read(status, &[]), Outcome::Retry { .. }), "{status}");
        }
        assert_eq!(read(401, &[]), Outcome::RefreshToken(None));
        assert_eq!(read(403, &[]), Outcome::Forbidden(None));
    }

    #[test]
    fn an_older_coordinator_acknowledges_with_the_status_alone() {
        for status in [200, 204] {
            assert_eq!(read(status, &[]), Outcome::Delivered { duplicate: false });
        }
    }

    #[test]
    fn a_verdict_that_contradicts_the_status_is_not_believed() {
        for (status, verdict) in [
            (502, "delivered"),
            (404, "duplicate"),
            (200, "reject"),
            (502, "reject"),
            (200, "refresh-token"),
            (204, "a-verdict-of-the-future"),
            (204, ""),
        ] {
            assert_eq!(with_verdict(status, verdict), KEEP, "{status} {verdict}");
        }
        let twice = [("miren-telemetry-verdict", "delivered"), ("miren-telemetry-verdict", "reject")];
        assert_eq!(read(200, &twice), KEEP);
    }
}
