//! The relay's memory while it remembers more and more batch IDs: it rises to their bound, and no further.

use std::sync::Arc;

use telemetry_relay::gate::SignatureAlgorithm;

use super::Bench;
use crate::bench::BenchError;
use crate::bench::body;
use crate::bench::client::Crowd;
use crate::bench::load::{Until, Work, closed};
use crate::bench::report::GrowthRow;
use crate::bench::targets::{BenchStore, RelaySetup, StoreOfRun, Target};

/// A relay remembers 16,384 of one runner: a few end at that, many at the bound of all, 500,000.
const RUNNERS: [(&str, usize); 2] = [("batch IDs of 8 runners", 8), ("batch IDs of 64 runners", 64)];
const IN_FLIGHT: usize = 32;
const BYTES: usize = 64;

pub(super) async fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let (_, times) = bench.plan.batch_id_steps();
    bench.steps(RUNNERS.len() * times);
    let store = Arc::new(BenchStore::start(StoreOfRun::Null).await?);
    for (what, count) in RUNNERS {
        fill(bench, &store, what, count).await?;
    }
    Ok(())
}

/// Sends more and more batches, each with an ID of its own, to a relay that knows none yet.
async fn fill(
    bench: &mut Bench<'_>,
    store: &Arc<BenchStore>,
    what: &'static str,
    runners: usize,
) -> Result<(), BenchError> {
    let (step, times) = bench.plan.batch_id_steps();
    let target = Target::relay(store, &bench.identities, &RelaySetup::default()).await?;
    let runners = bench.runners(runners, SignatureAlgorithm::EdDsa)?;
    let crowd = Arc::new(Crowd::connect(&target, &bench.identities, &runners, IN_FLIGHT).await?);
    let work = Work { body: body::of_size(BYTES), in_flight: IN_FLIGHT, batch_ids: true };
    let mut sent = 0;
    for _ in 0..times {
        bench.step(format!("{what}: {sent}"));
        let before = target.gauge.cpu()?;
        let volume = closed(&crowd, &work, Until::Requests(step), bench.stop).await;
        bench.note_refusals(format!("relay, {what}"), &volume);
        sent += volume.stored;
        let cpu = target.gauge.cpu()? - before;
        bench.report.batch_ids.push(GrowthRow {
            what,
            count: sent,
            #[expect(clippy::cast_precision_loss, reason = "statistics")]
            cpu_us_per_request: cpu.as_secs_f64() * 1e6 / volume.stored.max(1) as f64,
            memory_bytes: target.gauge.memory()?,
        });
        if bench.stop.is_set() {
            break;
        }
    }
    Ok(())
}
