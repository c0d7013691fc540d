//! The relay beside what people would use instead: one load generator, the same bodies and the same store, in turns, in one
//! run. `telemetry-bench` is the program; `docs/performance.md` has its results.
//!
//! Everything shares the machine's cores, the generator too. So the main figure is what a server's process costs in CPU time,
//! not how fast it goes.

mod body;
mod cases;
mod client;
mod gauge;
mod identities;
mod load;
mod null_store;
mod plan;
mod report;
mod stats;
mod stop;
mod targets;

use crate::peers::PeerError;
use crate::process::ProcessError;
use crate::program::NotFound;
use crate::rig::RigError;
use crate::stores::StoreError;

pub use null_store::serve as serve_null_store;
pub use plan::{Case, Cell, NoCell, Plan, Scale};
pub use report::{Report, plot};
pub use stop::Stop;
pub use targets::TargetKind;

/// Something can't be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Identities, tokens or the relay can't be set up.
    #[error(transparent)]
    Rig(#[from] RigError),
    /// A store does not start.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A process does not do as it should.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The Go relay does not do as it should.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A program is nowhere.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// A connection or a request fails.
    #[error("{target}: {problem}")]
    Client {
        /// Whom it was made to.
        target: TargetKind,
        /// What happened.
        problem: String,
    },
    /// A file, a socket or a process can't be read.
    #[error("a file, a socket or a process can't be read: {0}")]
    Io(#[from] std::io::Error),
    /// The charts can't be drawn.
    #[error("the charts can't be drawn: {0}")]
    Plot(String),
}

/// Measures what the plan says. What fails is left out and named in the report; a run that is stopped reports what it has.
pub async fn run(plan: &Plan, stop: &Stop) -> Report {
    cases::run(plan, stop).await
}
