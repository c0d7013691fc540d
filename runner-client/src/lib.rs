//! The runner's side: writers that deliver telemetry to the coordinator.

mod backoff;
mod connection;
mod delivery;
mod metrics;
mod token;
mod writer;

#[cfg(test)]
mod testing;

pub use backoff::Jitter;
pub use connection::{ConnectError, ConnectErrorKind, SendError, Transport};
pub use delivery::{
    BatchLimits, CloseReport, DeadLetters, DropReason, FlushReport, NotTaken, RecentRejections, Rejected,
    RetrySettings, SignalSettings, Taken, Tally,
};
pub use telemetry_proto::exposition::Point;
pub use telemetry_proto::{Clock, Reason, Signal};
pub use token::{
    FileIssuer, InvalidToken, IssueError, IssuedToken, LateTokenSettings, LateTokenSource, RemoteIssuer, Token,
    TokenError, TokenIssuer, TokenSource,
};
pub use writer::{LogRecord, LogValue, LogWriter, MetricsWriter};
