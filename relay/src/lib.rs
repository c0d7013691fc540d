//! The coordinator's side: authenticated telemetry writes over HTTP/3 into loopback stores.

mod accepted;
pub mod admin;
pub mod admission;
mod builder;
pub mod config;
pub mod forward;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod gate;
mod hand_over;
pub mod intake;
pub mod issuer;
pub mod listener;
mod metrics;
pub mod once;
pub mod operational;
mod prepare;
mod refusal;
mod refusal_log;
mod removal;
pub mod renewal;
mod rules;
pub mod running;
mod service;
pub mod tenancy;
mod to_the_end;
pub mod traces;
mod workers;

pub use builder::RelayBuilder;
pub use metrics::{RelayMetrics, RelayTotals};
pub use refusal::{Refusal, ResponseBody};
pub use refusal_log::RecentRefusal;
pub use removal::end_removed;
pub use rules::WriteRules;
pub use service::RelayService;
pub use workers::Workers;
