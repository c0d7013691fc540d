//! Waiting for something outside this process, bounded.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How often it is asked again.
const INTERVAL: Duration = Duration::from_millis(20);

/// It did not happen in time.
#[derive(Debug, thiserror::Error)]
#[error("{what} did not happen within {within:?}; last seen: {last}")]
pub struct TimedOut {
    what: String,
    within: Duration,
    last: String,
}

/// Asks `probe` until it has an answer. Until then its `Err` says what it sees, for the message when time is up.
///
/// # Errors
/// [`TimedOut`] after `within`.
pub async fn until<T>(
    what: impl Into<String>,
    within: Duration,
    mut probe: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, TimedOut> {
    let deadline = Instant::now() + within;
    let mut last = "nothing".to_owned();
    loop {
        match tokio::time::timeout_at(deadline, probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(seen)) => last = seen,
            Err(_) => return Err(TimedOut { what: what.into(), within, last }),
        }
        if Instant::now() + INTERVAL >= deadline {
            return Err(TimedOut { what: what.into(), within, last });
        }
        sleep(INTERVAL).await;
    }
}
