//! The runner's side: writers that deliver telemetry to the coordinator.

mod backoff;
mod connection;
mod token;

#[cfg(test)]
mod testing;

pub use backoff::Jitter;
pub use connection::{ConnectError, ConnectErrorKind, SendError, Transport};
pub use token::{
    FileIssuer, InvalidToken, IssueError, IssuedToken, LateTokenSettings, LateTokenSource, RemoteIssuer, Token,
    TokenError, TokenIssuer, TokenSource,
};
