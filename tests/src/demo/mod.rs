//! The demonstration: a cluster in a temporary folder, three runners that write before they may, an attacker, and the stores
//! read back.

mod attacks;
mod input;
mod journey;
mod part;
mod program_log;
mod report;
mod runner;
mod show;

use std::path::Path;
use std::time::Duration;

use telemetry_proto::exposition;
use tokio::time::{Instant, interval};

pub use attacks::Attempt;
pub use journey::{JourneyReport, JourneySpan};
pub use part::JourneyPart;
pub use program_log::ProgramLog;
pub use report::{Count, RefusalSummary, Report};
pub use show::Show;

use crate::program::Program;
use crate::rig::{Rig, RigError, StoreKind};
use crate::stores::StoreError;
use input::HostFigures;
use runner::DemoRunner;

/// How many runners there are.
const RUNNERS: usize = 3;
/// How much each writes before its token exists.
const BEFORE_ARMING: u64 = 1_000;
/// How often each writes.
const TICK: Duration = Duration::from_millis(250);
/// How long the last batches may take.
const CLOSING: Duration = Duration::from_secs(20);
/// The most of a store's own page that is shipped in one tick.
const PAGE_POINTS: usize = 200;

/// The demonstration can't go on.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The cluster does not come up.
    #[error(transparent)]
    Rig(#[from] RigError),
    /// A store can't be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A process or a file can't be had.
    #[error("a process can't be started, or a file can't be written: {0}")]
    Io(#[from] std::io::Error),
    /// A runner's client can't be built.
    #[error("a runner's client can't be built: {0}")]
    Client(String),
}

/// The real stores if they are to be had, else the built-in one.
#[must_use]
pub fn available_stores() -> StoreKind {
    let found = [Program::VictoriaMetrics, Program::VictoriaLogs].iter().all(|program| program.find().is_ok());
    if found { StoreKind::Real } else { StoreKind::BuiltIn }
}

/// Runs all of it. `shipping` is how long the runners write after they are armed; `program` is `telemetry-demo`, which plays
/// the parts of a journey in processes of their own.
///
/// # Errors
/// [`DemoError`]; what merely does not hold is in the report instead.
pub async fn run(
    stores: StoreKind,
    shipping: Duration,
    program: &Path,
    log: &ProgramLog,
    show: &Show,
) -> Result<Report, DemoError> {
    show.step("starting stores and relay");
    let rig = Rig::builder().stores(stores).traces(StoreKind::BuiltIn).runners(RUNNERS).start().await?;
    let mut runners = (0..RUNNERS).map(|n| DemoRunner::start(&rig, n)).collect::<Result<Vec<_>, _>>()?;

    show.step("writing before any token exists");
    let mut figures = HostFigures::default();
    for runner in &mut runners {
        for _ in 0..BEFORE_ARMING {
            runner.write_point(figures.any());
            runner.write_record("demo/boot", "written before the token exists");
        }
    }
    let unarmed = report::all_unarmed(&runners).await;
    let nothing_early =
        rig.metrics_store().samples().await?.is_empty() && rig.log_store().log_lines().await?.is_empty();

    show.step("arming");
    runners.iter().for_each(DemoRunner::arm);
    let journey = journey::write(&rig, program).await?;
    ship(&rig, &mut runners, &mut figures, log, shipping, show).await?;
    show.step("flushing");
    for runner in &mut runners {
        runner.close(CLOSING).await;
    }

    show.step("attacking");
    let refusals = attacks::try_all(&rig, |attempt| show.attempt(attempt)).await?;
    show.step("reading the stores back");
    report::make(&rig, stores, &runners, unarmed && nothing_early, journey, refusals).await
}

async fn ship(
    rig: &Rig,
    runners: &mut [DemoRunner],
    figures: &mut HostFigures,
    log: &ProgramLog,
    shipping: Duration,
    show: &Show,
) -> Result<(), DemoError> {
    let until = Instant::now() + shipping;
    let mut ticks = interval(TICK);
    while Instant::now() < until {
        ticks.tick().await;
        let pages = [rig.metrics_store().own_metrics().await?, rig.log_store().own_metrics().await?];
        let lines = log.take();
        for (n, runner) in runners.iter_mut().enumerate() {
            figures.all().for_each(|point| runner.write_point(point));
            let page = exposition::parse(&pages[n % pages.len()]);
            page.filter_map(Result::ok).take(PAGE_POINTS).for_each(|point| runner.write_point(point));
            lines.iter().for_each(|line| runner.write_record("demo/programs", line));
        }
        show.progress(runners.iter().map(DemoRunner::tally));
    }
    Ok(())
}
