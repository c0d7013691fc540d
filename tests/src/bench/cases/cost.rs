//! What a request costs, by size, connections and algorithm, beside the others.

use std::sync::Arc;
use std::time::Duration;

use super::Bench;
use crate::bench::BenchError;
use crate::bench::body;
use crate::bench::client::Crowd;
use crate::bench::load::{Until, Work, closed};
use crate::bench::plan::Cell;
use crate::bench::report::CostRow;
use crate::bench::stats::median;
use crate::bench::targets::{BenchStore, StoreOfRun, Target};

/// Caches and pools fill before anything counts.
const WARM_UP: Duration = Duration::from_millis(200);
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// One round of one target.
struct Round {
    stored: u64,
    seconds: f64,
    cpu: f64,
    peak: u64,
}

pub(super) async fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cells = bench.plan.cells();
    bench.steps(cells.len() * bench.plan.rounds() * bench.plan.targets().len());
    for kind in [StoreOfRun::Real, StoreOfRun::Null] {
        let cells: Vec<_> = cells.iter().filter(|cell| cell.store == kind).collect();
        if cells.is_empty() {
            continue;
        }
        let store = Arc::new(BenchStore::start(kind).await?);
        let targets = bench.start(&bench.plan.targets(), &store).await;
        for cell in cells {
            if bench.stop.is_set() {
                return Ok(());
            }
            if let Err(error) = measure(bench, *cell, &targets).await {
                bench.leave_out(format!("cost {cell:?}"), &error);
            }
        }
    }
    Ok(())
}

async fn measure(bench: &mut Bench<'_>, cell: Cell, targets: &[Target]) -> Result<(), BenchError> {
    let runners = bench.runners(cell.connections, cell.algorithm)?;
    let work = Work { body: body::of_size(cell.bytes), in_flight: cell.in_flight(), batch_ids: false };
    let mut crowds = Vec::new();
    for target in targets {
        let crowd = Arc::new(Crowd::connect(target, &bench.identities, &runners, work.in_flight).await?);
        closed(&crowd, &work, Until::Elapsed(WARM_UP), bench.stop).await;
        crowds.push(crowd);
    }
    let mut rounds: Vec<Vec<Round>> = targets.iter().map(|_| Vec::new()).collect();
    for round in 0..bench.plan.rounds() {
        for turn in 0..targets.len() {
            // Whoever comes first in one round comes later in the next.
            let index = (round + turn) % targets.len();
            let (target, crowd) = (&targets[index], &crowds[index]);
            bench.step(format!("{} B, {} connections, {}", cell.bytes, cell.connections, target.kind));
            target.gauge.forget_peak();
            let before = target.gauge.cpu()?;
            let volume = closed(crowd, &work, Until::Elapsed(bench.plan.round()), bench.stop).await;
            let cpu = target.gauge.cpu()? - before;
            bench.note_refusals(format!("{} at {cell:?}", target.kind), &volume);
            let (seconds, cpu) = (volume.elapsed.as_secs_f64(), cpu.as_secs_f64());
            rounds[index].push(Round { stored: volume.stored, seconds, cpu, peak: target.gauge.peak_memory()? });
            if bench.stop.is_set() {
                return Ok(());
            }
        }
    }
    bench.report.cost.extend(targets.iter().zip(rounds).map(|(target, rounds)| row(cell, target, &rounds)));
    for crowd in crowds.into_iter().filter_map(Arc::into_inner) {
        crowd.close().await;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "statistics")]
fn row(cell: Cell, target: &Target, rounds: &[Round]) -> CostRow {
    let of = |value: fn(&Round, f64) -> f64| {
        median(rounds.iter().filter(|round| round.stored > 0).map(|round| value(round, round.stored as f64)))
    };
    let requests_per_second = of(|round, stored| stored / round.seconds);
    let cpu_per_request = of(|round, stored| round.cpu / stored);
    CostRow {
        store: cell.store,
        body_bytes: cell.bytes,
        connections: cell.connections,
        in_flight: cell.in_flight(),
        algorithm: cell.algorithm,
        target: target.kind,
        requests: rounds.iter().map(|round| round.stored).sum(),
        requests_per_second,
        bytes_per_second: requests_per_second * cell.bytes as f64,
        cpu_seconds_per_1000: cpu_per_request * 1e3,
        cpu_seconds_per_gib: cpu_per_request * GIB / cell.bytes as f64,
        peak_memory_bytes: rounds.iter().map(|round| round.peak).max().unwrap_or_default(),
    }
}
