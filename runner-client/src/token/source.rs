//! What the writers' requests get their token from.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::{IssueError, Token};

/// Gives tokens to the requests of the writers.
pub trait TokenSource: Send + Sync + 'static {
    /// A token now, or why not.
    fn token(&self) -> BoxFuture<'_, Result<Token, TokenError>>;

    /// The relay answered `refresh-token` to a request with this token.
    fn refused(&self, token: &Token) {
        let _ = token;
    }

    /// A receiver that changes when it is worth asking again at once, because the source was armed. Without one, whoever
    /// waits asks again now and then.
    fn arming(&self) -> Option<watch::Receiver<u64>> {
        None
    }
}

/// Why there is no token now. None of these is a loss: batches wait.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TokenError {
    /// There is no issuer yet.
    #[error("the token source is not armed")]
    Unarmed,
    /// The last attempt failed, and the next one is not due.
    #[error("no token; the next attempt is due in {retry_in:?}")]
    Unavailable {
        /// Why the last attempt failed.
        #[source]
        cause: IssueError,
        /// When the source tries again.
        retry_in: Duration,
    },
}

impl TokenError {
    /// How long to wait before it is worth asking again. `None`: until the source is armed.
    #[must_use]
    pub const fn retry_in(&self) -> Option<Duration> {
        match self {
            Self::Unarmed => None,
            Self::Unavailable { retry_in, .. } => Some(*retry_in),
        }
    }
}
