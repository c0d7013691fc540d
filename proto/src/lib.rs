//! The contract between runners and the telemetry relay.
//!
//! What both sides must agree on, and nothing else: signals and their routes, header names, token claims and the rules
//! they are checked by, verdicts and reasons, limits, the policy document, the Prometheus exposition text, and the wire
//! format of protocol buffers. There is no I/O and no async here, so every rule can be tested without a network.

pub mod claims;
pub mod clock;
pub mod exposition;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod header;
pub mod limits;
pub mod mint;
pub mod policy;
pub mod protobuf;
mod reason;
pub mod renew;
mod route;
mod runner_id;
mod signal;
mod verdict;
mod writer_name;

pub use clock::{Clock, SystemClock};
pub use reason::Reason;
pub use route::{MatchError, Route, logs_url, metrics_url, traces_url};
pub use runner_id::{RunnerId, RunnerIdError};
pub use signal::{Signal, UnknownSignal};
pub use verdict::Verdict;
pub use writer_name::{WriterName, WriterNameError};
