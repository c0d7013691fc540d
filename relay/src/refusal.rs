//! A refusal: a reason, and what its response carries beside it.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use telemetry_proto::{Reason, Verdict, header};

/// The body of the relay's own responses.
pub type ResponseBody = Full<Bytes>;

/// How long a sender waits after a `retry` for which nothing better is known.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Why a request is refused, and what the response says beside the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    reason: Reason,
    detail: Option<Cow<'static, str>>,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
}

impl Refusal {
    /// The refusal for `reason`.
    #[must_use]
    pub const fn new(reason: Reason) -> Self {
        Self { reason, detail: None, retry_after: None, allow: None }
    }

    /// Replaces the sentence for people. It must not hold anything of the payload or the token.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Says when to try again; only a `retry` carries it.
    #[must_use]
    pub const fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Names the method that the path takes (RFC 9110 section 15.5.6 requires it with a 405).
    #[must_use]
    pub const fn with_allow(mut self, method: &'static str) -> Self {
        self.allow = Some(method);
        self
    }

    /// The reason.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The response: the reason's status, a line for people, and the headers for programs.
    #[must_use]
    pub fn into_response(self) -> Response<ResponseBody> {
        let verdict = self.reason.verdict();
        let text = self.detail.unwrap_or(Cow::Borrowed(self.reason.text()));
        let mut response = respond(self.reason.status(), verdict, format!("{text}\n"));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(header::REASON, HeaderValue::from_static(self.reason.as_str()));
        if verdict == Verdict::Retry {
            let after = self.retry_after.unwrap_or(DEFAULT_RETRY_AFTER);
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if let Some(method) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(method));
        }
        response
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self::new(reason)
    }
}

/// A response with a verdict and no further headers.
pub(crate) fn respond(status: StatusCode, verdict: Verdict, body: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::VERDICT, HeaderValue::from_static(verdict.as_str()));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_carries_verdict_and_reason_and_only_a_retry_says_when() {
        for &reason in Reason::ALL {
            let response = Refusal::new(reason).into_response();
            assert_eq!(response.status(), reason.status());
            assert_eq!(response.headers()[header::VERDICT], reason.verdict().as_str());
            assert_eq!(response.headers()[header::REASON], reason.as_str());
            assert_eq!(response.headers().contains_key(RETRY_AFTER), reason.verdict() == Verdict::Retry, "{reason}");
        }
    }

    #[test]
    fn retry_after_is_whole_seconds_rounded_up() {
        let refusal = Refusal::new(Reason::RateLimited).with_retry_after(Duration::from_millis(1_200));
        assert_eq!(refusal.into_response().headers()[RETRY_AFTER], "2");
        let refusal = Refusal::new(Reason::RateLimited).with_retry_after(Duration::ZERO);
        assert_eq!(refusal.into_response().headers()[RETRY_AFTER], "1");
    }
}
