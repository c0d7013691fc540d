//! What a store's answer means for the batch.

use std::time::Duration;

use http::StatusCode;
use telemetry_proto::Reason;

use crate::refusal::Refusal;

/// The longest `Retry-After` of a store that is passed on.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// A store's complete answer: its head, after its body has been read to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// What `Retry-After` says, if it is a number of seconds.
    pub retry_after: Option<Duration>,
}

impl Answer {
    /// The status of the response for a batch that the store acknowledged.
    ///
    /// # Errors
    /// The refusal that the store's answer amounts to. No answer but a 2xx is ever passed on as one.
    pub fn into_status(self) -> Result<StatusCode, Refusal> {
        match self.status {
            StatusCode::OK | StatusCode::NO_CONTENT => Ok(self.status),
            // Runners take 200 and 204 for success and nothing else.
            status if status.is_success() => Ok(StatusCode::NO_CONTENT),
            StatusCode::BAD_REQUEST => Err(Reason::BackendRejected.into()),
            StatusCode::TOO_MANY_REQUESTS => Err(self.retry(Refusal::new(Reason::BackendThrottled))),
            StatusCode::SERVICE_UNAVAILABLE => Err(self.retry(Refusal::new(Reason::BackendUnavailable))),
            status => {
                let detail = format!("backend returned {}", status.as_u16());
                Err(self.retry(Refusal::new(Reason::BackendError).with_detail(detail)))
            }
        }
    }

    fn retry(self, refusal: Refusal) -> Refusal {
        match self.retry_after {
            Some(after) => refusal.with_retry_after(after.min(MAX_RETRY_AFTER)),
            None => refusal,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::RETRY_AFTER;

    use super::*;

    fn outcome(status: u16) -> Result<u16, Reason> {
        let answer = Answer { status: StatusCode::from_u16(status).unwrap(), retry_after: None };
        answer.into_status().map(|s| s.as_u16()).map_err(|r| r.reason())
    }

    #[test]
    fn the_table_of_the_contract() {
        assert_eq!(outcome(200), Ok(200));
        assert_eq!(outcome(204), Ok(204));
        assert_eq!(outcome(202), Ok(204));
        assert_eq!(outcome(400), Err(Reason::BackendRejected));
        assert_eq!(outcome(429), Err(Reason::BackendThrottled));
        assert_eq!(outcome(503), Err(Reason::BackendUnavailable));
        for other in [301, 302, 307, 401, 403, 404, 413, 500, 502, 504] {
            assert_eq!(outcome(other), Err(Reason::BackendError), "{other}");
        }
    }

    #[test]
    fn the_stores_retry_after_is_passed_on_within_reason() {
        let after = |seconds| {
            let answer =
                Answer { status: StatusCode::SERVICE_UNAVAILABLE, retry_after: Some(Duration::from_secs(seconds)) };
            answer.into_status().unwrap_err().into_response().headers()[RETRY_AFTER].clone()
        };
        assert_eq!(after(17), "17");
        assert_eq!(after(86_400), "300");
    }
}
