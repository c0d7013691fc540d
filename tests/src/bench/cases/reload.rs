//! A reload while many are connected: every certificate is looked at again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use telemetry_relay::gate::SignatureAlgorithm;

use super::Bench;
use crate::bench::BenchError;
use crate::bench::body;
use crate::bench::client::Crowd;
use crate::bench::load::paced;
use crate::bench::report::ReloadRow;
use crate::bench::stats::median;
use crate::bench::targets::{BenchStore, StoreOfRun, Target, TargetKind};
use crate::rig::RelayProgram;
use crate::wait;

const DONE: &str = "configuration reloaded";
const DONE_WITHIN: Duration = Duration::from_secs(20);
const PER_SECOND: u32 = 200;
const BYTES: usize = 1 << 10;

pub(super) async fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    bench.steps(bench.plan.rounds());
    let store = Arc::new(BenchStore::start(StoreOfRun::Null).await?);
    let target = Target::start(TargetKind::Relay, &store, &bench.identities, bench.plan.before.as_deref()).await?;
    let Some(program) = &target.program else { return Ok(()) };
    let runners = bench.runners(bench.plan.crowd(), SignatureAlgorithm::EdDsa)?;
    let crowd = Arc::new(Crowd::connect(&target, &bench.identities, &runners, 1).await?);
    let body = body::of_size(BYTES);
    let mut rounds = Vec::new();
    for round in 1..=bench.plan.rounds() {
        bench.step(format!("reload {round} with {} runners", runners.len()));
        let around = paced(&crowd, &body, PER_SECOND, Duration::from_secs(1), bench.stop);
        let (measured, (volume, times)) = tokio::join!(reload(program, &target, round), around);
        bench.note_refusals("relay while it reloads", &volume);
        let (seconds, cpu) = measured?;
        rounds.push((seconds, cpu, times.into_iter().max().unwrap_or_default().as_secs_f64() * 1e3));
    }
    bench.report.reload = Some(ReloadRow {
        runners: runners.len(),
        seconds: median(rounds.iter().map(|round| round.0)),
        cpu_seconds: median(rounds.iter().map(|round| round.1)),
        worst_request_ms: median(rounds.iter().map(|round| round.2)),
    });
    Ok(())
}

/// Seconds and CPU seconds until the log says that it is done. The CPU is that of the requests around it, too.
async fn reload(program: &RelayProgram, target: &Target, round: usize) -> Result<(f64, f64), BenchError> {
    let (began, cpu) = (Instant::now(), target.gauge.cpu()?);
    program.reload().await?;
    let done = async || {
        let count = program.log().map_err(|error| error.to_string())?.matches(DONE).count();
        if count >= round { Ok(()) } else { Err(format!("{count} reloads")) }
    };
    wait::until("a reload", DONE_WITHIN, done).await.map_err(|error| target.failed(error))?;
    Ok((began.elapsed().as_secs_f64(), (target.gauge.cpu()? - cpu).as_secs_f64()))
}
