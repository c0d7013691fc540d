//! What a target adds to the store's latency while there is little to do.

use std::sync::Arc;
use std::time::Duration;

use telemetry_relay::gate::SignatureAlgorithm;

use super::Bench;
use crate::bench::BenchError;
use crate::bench::body;
use crate::bench::client::Crowd;
use crate::bench::load::paced;
use crate::bench::report::LatencyRow;
use crate::bench::stats::percentile;
use crate::bench::targets::{BenchStore, TargetKind};

const PER_SECOND: u32 = 200;
const CONNECTIONS: usize = 10;
const BYTES: usize = 1 << 10;
const WARM_UP: Duration = Duration::from_millis(200);

pub(super) async fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let store = Arc::new(BenchStore::start(bench.plan.store()).await?);
    let targets = bench.start(&bench.plan.targets(), &store).await;
    bench.steps(bench.plan.rounds() * targets.len());
    let runners = bench.runners(CONNECTIONS, SignatureAlgorithm::Rs256)?;
    let body = body::of_size(BYTES);
    let mut crowds = Vec::new();
    for target in &targets {
        let crowd = Arc::new(Crowd::connect(target, &bench.identities, &runners, CONNECTIONS).await?);
        paced(&crowd, &body, PER_SECOND, WARM_UP, bench.stop).await;
        crowds.push((target.kind, crowd, Vec::new()));
    }
    for round in 0..bench.plan.rounds() {
        for turn in 0..targets.len() {
            let (kind, crowd, times) = &mut crowds[(round + turn) % targets.len()];
            bench.step(format!("{PER_SECOND}/s, {kind}"));
            let (volume, more) = paced(crowd, &body, PER_SECOND, bench.plan.paced_round(), bench.stop).await;
            bench.note_refusals(format!("{kind} at {PER_SECOND}/s"), &volume);
            times.extend(more);
        }
    }
    for (_, _, times) in &mut crowds {
        times.sort();
    }
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let of = |times: &[Duration], percent| micros(percentile(times, percent));
    let direct = crowds.iter().find(|(kind, ..)| *kind == TargetKind::Direct).map(|(.., times)| times.as_slice());
    let rows = crowds.iter().filter(|(.., times)| !times.is_empty()).map(|(kind, _, times)| {
        let added = |percent| {
            let direct = direct.filter(|_| *kind != TargetKind::Direct)?;
            Some(of(times, percent) - of(direct, percent))
        };
        LatencyRow {
            target: *kind,
            requests: times.len(),
            p50_us: of(times, 50),
            p99_us: of(times, 99),
            added_p50_us: added(50),
            added_p99_us: added(99),
        }
    });
    bench.report.latency = rows.collect();
    Ok(())
}
