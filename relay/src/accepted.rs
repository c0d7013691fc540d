//! The opposite of a refusal.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use telemetry_proto::{Reason, Verdict};

use crate::refusal::{Refusal, ResponseBody, respond};

/// A request that was served, and what its response says.
#[derive(Debug)]
pub(crate) struct Accepted {
    status: StatusCode,
    verdict: Verdict,
    json: Bytes,
}

impl Accepted {
    /// The store acknowledged the whole batch with this status.
    pub(crate) const fn delivered(status: StatusCode) -> Self {
        Self { status, verdict: Verdict::Delivered, json: Bytes::new() }
    }

    /// The batch was acknowledged before.
    pub(crate) const fn duplicate() -> Self {
        Self { status: StatusCode::NO_CONTENT, verdict: Verdict::Duplicate, json: Bytes::new() }
    }

    /// An answer in JSON.
    pub(crate) fn json<T: serde::Serialize>(value: &T) -> Result<Self, Refusal> {
        let json = serde_json::to_vec(value).map_err(|_| Reason::InternalError)?.into();
        Ok(Self { status: StatusCode::OK, verdict: Verdict::Delivered, json })
    }

    pub(crate) const fn verdict(&self) -> Verdict {
        self.verdict
    }

    pub(crate) fn into_response(self) -> Response<ResponseBody> {
        let is_json = !self.json.is_empty();
        let mut response = respond(self.status, self.verdict, self.json);
        if is_json {
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        response
    }
}
