//! What a relay answers.

use std::fmt;

use http::{HeaderMap, HeaderName, StatusCode};
use telemetry_proto::{Reason, Verdict, header};

/// A whole response.
#[derive(Debug, Clone)]
pub struct RawResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, as text.
    pub body: String,
}

/// In a few words: status, verdict, reason.
impl fmt::Display for RawResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.status.as_str())?;
        match self.verdict() {
            Some(verdict) => write!(f, " {}", verdict.as_str())?,
            None => f.write_str(" without a verdict")?,
        }
        self.reason().map_or(Ok(()), |reason| write!(f, ", {reason}"))
    }
}

impl RawResponse {
    /// What it means for the batch, by its header.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        Verdict::from_header(self.value(header::VERDICT)?.as_bytes())
    }

    /// Why it is a refusal, by its header.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        Reason::from_header(self.value(header::REASON)?.as_bytes())
    }

    /// The value of a header that is text.
    #[must_use]
    pub fn value(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Whether it is the refusal that the contract asks for: status, verdict and reason, a line for people, and
    /// `Retry-After` exactly with `retry`.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn expect_refusal(&self, reason: Reason) -> Result<(), String> {
        let retry = reason.verdict() == Verdict::Retry;
        let as_it_should_be = self.reason() == Some(reason)
            && self.status == reason.status()
            && self.verdict() == Some(reason.verdict())
            && !self.body.is_empty()
            && self.headers.contains_key(http::header::RETRY_AFTER) == retry;
        if as_it_should_be { Ok(()) } else { Err(format!("expected the refusal {reason}, got {self:?}")) }
    }

    /// Whether the store acknowledged the batch.
    ///
    /// # Errors
    /// What was answered instead.
    pub fn expect_delivered(&self) -> Result<(), String> {
        let delivered =
            self.status.is_success() && self.verdict() == Some(Verdict::Delivered) && self.reason().is_none();
        if delivered { Ok(()) } else { Err(format!("expected a delivered batch, got {self:?}")) }
    }
}
