//! Tokens from the coordinator, over the connection that the batches take.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use telemetry_proto::mint::{MintRequest, MintResponse};
use telemetry_proto::{Reason, Route, Signal, header};

use super::{IssueError, IssuedToken, Token, TokenIssuer};
use crate::backoff::retry_after;
use crate::connection::Transport;

/// Asks the coordinator: `POST /_identity/token`. The runner's certificate is what authenticates the request.
#[derive(Clone)]
pub struct RemoteIssuer {
    transport: Arc<dyn Transport>,
    body: Bytes,
}

impl RemoteIssuer {
    /// Asks over `transport` for tokens that grant `signals`.
    pub fn new(transport: Arc<dyn Transport>, signals: &[Signal]) -> Self {
        // Strings and integers only: there is nothing that can't be written as JSON.
        let body = serde_json::to_vec(&MintRequest::telemetry_writer(signals)).unwrap_or_default();
        Self { transport, body: body.into() }
    }

    fn request(&self) -> Request<Bytes> {
        let mut request = Request::new(self.body.clone());
        *request.method_mut() = Route::MintToken.method();
        *request.uri_mut() = http::Uri::from_static(Route::MintToken.path());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(CONTENT_LENGTH, self.body.len().into());
        request
    }
}

impl TokenIssuer for RemoteIssuer {
    fn issue(&self) -> BoxFuture<'_, Result<IssuedToken, IssueError>> {
        async { read(self.transport.send(self.request()).await.map_err(IssueError::Unreachable)?) }.boxed()
    }
}

fn read(response: Response<Bytes>) -> Result<IssuedToken, IssueError> {
    if response.status() != StatusCode::OK {
        return Err(IssueError::Refused {
            status: response.status(),
            reason: response.headers().get(header::REASON).and_then(|value| Reason::from_header(value.as_bytes())),
            retry_after: retry_after(response.headers()),
        });
    }
    let minted: MintResponse = serde_json::from_slice(response.body()).map_err(|_| IssueError::Unreadable)?;
    Ok(IssuedToken {
        token: Token::new(&minted.token, Some(minted.expires_at.into()))?,
        server_time: Some(minted.server_time.into()),
        check_again: None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Result<IssuedToken, IssueError> {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        read(response.body(Bytes::copy_from_slice(body.as_bytes())).unwrap())
    }

    #[test]
    fn a_minted_token_brings_its_end_and_the_issuers_time() {
        let body =
            r#"{"token":"t.o.k","expires_at":"1970-01-01T01:00:00Z","server_time":"1970-01-01T02:00:00+02:00","x":1}"#;
        let issued = answer(200, &[], body).unwrap();
        assert_eq!(issued.token.header(), "t.o.k");
        assert_eq!(issued.token.expires_at(), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(3_600)));
        assert_eq!(issued.server_time, Some(SystemTime::UNIX_EPOCH));
    }

    #[test]
    fn refusals_keep_what_the_coordinator_said() {
        let headers = [("miren-telemetry-reason", "mint-rate-limited"), ("retry-after", "20")];
        let Err(IssueError::Refused { status, reason, retry_after }) = answer(429, &headers, "") else { panic!() };
        assert_eq!((status.as_u16(), reason), (429, Some(Reason::MintRateLimited)));
        assert_eq!(retry_after, Some(Duration::from_secs(20)));
        assert!(matches!(answer(404, &[], ""), Err(IssueError::Refused { reason: None, .. })));
    }

    #[test]
    fn an_answer_that_is_no_token_is_an_error() {
        for body in ["", "{}", "[]", r#"{"token":"t","expires_at":"soon","server_time":"1970-01-01T00:00:00Z"}"#] {
            assert!(matches!(answer(200, &[], body), Err(IssueError::Unreadable)), "{body}");
        }
        let body = r#"{"token":"a\nb","expires_at":"1970-01-01T01:00:00Z","server_time":"1970-01-01T00:00:00Z"}"#;
        assert!(matches!(answer(200, &[], body), Err(IssueError::Invalid(_))));
    }
}
