//! The runner's side: writers that deliver telemetry to the coordinator.
//!
//! Writers may be built before the runner has any token; what they take waits until the token source is armed.
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use telemetry_certs::{Credentials, Roots};
//! use telemetry_runner_client::{Client, LateTokenSource, LogRecord, Point};
//!
//! # async fn embed() -> Result<(), Box<dyn std::error::Error>> {
//! let tokens = LateTokenSource::new();
//! let client = Client::builder()
//!     .coordinator("coordinator.example:8443")
//!     .identity(Credentials::from_files("runner.crt", "runner.key")?, Roots::from_file("ca.crt")?)
//!     .token_source(Arc::new(tokens.clone()))
//!     .build()?;
//!
//! client.metrics().write(Point::new("jobs_total", 1.0).label("queue", "build"))?;
//! client.logs().write(&LogRecord::new("app/web", "stdout", "ready").attribute("port", 8080))?;
//!
//! tokens.arm(client.issuer());
//! let report = client.close(Duration::from_secs(5)).await;
//! println!("{} delivered, {} lost", report.delivered, report.lost);
//! # Ok(())
//! # }
//! ```
//!
//! The rooms, each of which knows only those before it:
//! - `connection`: one HTTP/3 connection to the best of a list of coordinators, behind [`Transport`];
//! - `token`: [`TokenSource`] and [`TokenIssuer`];
//! - [`spool`]: batches that wait on disk, if [`ClientBuilder::spool`] is set;
//! - `delivery`: from lines to settled batches, through the spool or memory, and the account of every item;
//! - `writer`: [`MetricsWriter`], [`LogWriter`], and [`RawBatch`] for what is a batch already;
//! - [`trace`]: [`SpanWriter`](trace::SpanWriter), and `policy`, which says whether it makes any spans;
//! - [`Client`], which puts them together.

mod backoff;
mod client;
mod connection;
mod delivery;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod metrics;
mod policy;
mod renewal;
pub mod spool;
mod token;
pub mod trace;
mod writer;

#[cfg(test)]
mod testing;

pub use backoff::Jitter;
pub use client::{BuildError, Client, ClientBuilder};
pub use connection::{
    Carrier, ConnectError, ConnectErrorKind, CoordinatorError, CoordinatorPeer, IdentityError, SendError, TcpFallback,
    Transport,
};
pub use delivery::{
    BatchLimits, CloseReport, DeadLetterConfig, DeadLetterError, DeadLetterFolder, DeadLetterStats, DeadLetters,
    DropReason, FlushReport, Keeping, NotTaken, RecentRejections, Rejected, RetrySettings, SignalSettings, Taken,
    Tally,
};
pub use policy::PolicyHandle;
pub use renewal::{CertificateState, IdentityStore};
pub use telemetry_proto::exposition::Point;
pub use telemetry_proto::policy::{Policy, PolicyLimits, TracesPolicy};
pub use telemetry_proto::{Clock, Reason, Signal};
pub use token::{
    FileIssuer, InvalidToken, IssueError, IssuedToken, LateTokenSettings, LateTokenSource, RemoteIssuer, Token,
    TokenError, TokenIssuer, TokenSource,
};
pub use writer::{LogRecord, LogValue, LogWriter, MetricsWriter, RawBatch};
