//! Full handshakes with certificates on both sides, each up to the first answer: only then has the server accepted.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use telemetry_relay::gate::SignatureAlgorithm;

use super::Bench;
use crate::bench::BenchError;
use crate::bench::client::Crowd;
use crate::bench::identities::Runner;
use crate::bench::report::HandshakeRow;
use crate::bench::stats::median;
use crate::bench::targets::{BenchStore, StoreOfRun, Target};

const AT_ONCE: usize = 16;
const LINE: &[u8] = b"bench_handshakes 1\n";

#[expect(clippy::cast_precision_loss, reason = "statistics")]
pub(super) async fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let store = Arc::new(BenchStore::start(StoreOfRun::Null).await?);
    let targets = bench.start(&bench.plan.relays(), &store).await;
    let count = bench.plan.handshakes();
    bench.steps(bench.plan.rounds() * targets.len());
    let runners = bench.runners(count, SignatureAlgorithm::EdDsa)?;
    let mut rounds: Vec<Vec<(f64, f64)>> = targets.iter().map(|_| Vec::new()).collect();
    for round in 0..bench.plan.rounds() {
        for turn in 0..targets.len() {
            let index = (round + turn) % targets.len();
            let target = &targets[index];
            bench.step(format!("{count} handshakes, {}", target.kind));
            let (began, cpu) = (Instant::now(), target.gauge.cpu()?);
            stream::iter(runners.iter().map(|runner| one(bench, target, runner)))
                .buffer_unordered(AT_ONCE)
                .try_collect::<Vec<()>>()
                .await?;
            let (elapsed, cpu) = (began.elapsed(), target.gauge.cpu()? - cpu);
            rounds[index].push((count as f64 / elapsed.as_secs_f64(), cpu.as_secs_f64() * 1e3 / count as f64));
            if bench.stop.is_set() {
                return Ok(());
            }
        }
    }
    let rows = targets.iter().zip(rounds).map(|(target, rounds)| HandshakeRow {
        target: target.kind,
        per_second: median(rounds.iter().map(|round| round.0)),
        cpu_ms_each: median(rounds.iter().map(|round| round.1)),
    });
    bench.report.handshakes.extend(rows);
    Ok(())
}

async fn one(bench: &Bench<'_>, target: &Target, runner: &Runner) -> Result<(), BenchError> {
    let crowd = Crowd::connect(target, &bench.identities, std::slice::from_ref(runner), 1).await?;
    match crowd.post(0, Bytes::from_static(LINE), None).await {
        Ok(status) if status.is_success() => Ok(()),
        Ok(status) => Err(target.failed(status)),
        Err(problem) => Err(target.failed(problem)),
    }
}
