//! Who mints tokens.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::StatusCode;
use telemetry_proto::Reason;

use super::{InvalidToken, Token};
use crate::connection::SendError;

/// Mints tokens. A closure that returns a future is one, which is how an embedded coordinator mints in process.
pub trait TokenIssuer: Send + Sync + 'static {
    /// Mints one token. Whoever calls bounds the wait.
    fn issue(&self) -> BoxFuture<'_, Result<IssuedToken, IssueError>>;

    /// Where the issuer can tell: resolves when there may be another token than at the last [`issue`](Self::issue). It is then asked
    /// at once, whatever pause there is after failures or refusals.
    fn news(&self) -> Option<BoxFuture<'_, ()>> {
        None
    }
}

impl<F, Minting> TokenIssuer for F
where
    F: Fn() -> Minting + Send + Sync + 'static,
    Minting: Future<Output = Result<IssuedToken, IssueError>> + Send + 'static,
{
    fn issue(&self) -> BoxFuture<'_, Result<IssuedToken, IssueError>> {
        self().boxed()
    }
}

/// A token and what is known about it.
#[derive(Debug, Clone)]
pub struct IssuedToken {
    /// The token. The same one again (a clone) says that there is nothing newer.
    pub token: Token,
    /// The issuer's time of day, from which the runner learns how far its own clock is off.
    pub server_time: Option<SystemTime>,
    /// Ask again after this long, whatever the end of the token.
    pub check_again: Option<Duration>,
}

impl From<Token> for IssuedToken {
    fn from(token: Token) -> Self {
        Self { token, server_time: None, check_again: None }
    }
}

/// Why no token was minted.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// The coordinator can't be reached.
    #[error("the coordinator can't be asked for a token")]
    Unreachable(#[source] SendError),
    /// The coordinator refused.
    #[error("the coordinator refused to mint a token: status {status}{}", .reason.map(|r| format!(", {r}")).unwrap_or_default())]
    Refused {
        /// The status of its answer.
        status: StatusCode,
        /// The reason, where it gives one that we know.
        reason: Option<Reason>,
        /// How long it wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// The answer is not the documented JSON.
    #[error("the answer of the coordinator can't be read")]
    Unreadable,
    /// What was issued is no token.
    #[error("what was issued is no token: {0}")]
    Invalid(#[from] InvalidToken),
    /// The token's file can't be read.
    #[error("the token file can't be read")]
    File(#[source] Arc<std::io::Error>),
    /// The issuer did not answer in time.
    #[error("the issuer did not answer in time")]
    Timeout,
    /// The issuer panicked.
    #[error("the issuer panicked")]
    Panicked,
    /// The relay refused the tokens that were minted last.
    #[error("the relay refuses the tokens of this issuer")]
    TokensRefused,
    /// An error of an issuer from elsewhere.
    #[error("the issuer failed")]
    Other(#[source] Arc<dyn Error + Send + Sync>),
}

impl IssueError {
    /// How long the issuer wants to be left alone.
    pub(super) const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether nothing was asked because there was no connection. The connection keeps its own pace of redialling, so
    /// that to wait here as well would only delay the first token after an outage.
    pub(super) const fn is_outage(&self) -> bool {
        matches!(self, Self::Unreachable(error) if error.is_outage())
    }
}
