//! What runners hold of a relay's memory: idle ones, active ones, and large bodies.

use std::sync::Arc;
use std::time::Duration;

use telemetry_relay::gate::SignatureAlgorithm;
use tokio::time::sleep;

use super::Bench;
use crate::bench::BenchError;
use crate::bench::body;
use crate::bench::client::Crowd;
use crate::bench::load::{Until, Work, closed};
use crate::bench::report::MemoryRow;
use crate::bench::targets::{BenchStore, StoreOfRun, Target, TargetKind};

/// How long a relay rests before its memory is read.
const REST: Duration = Duration::from_secs(2);
const BYTES: usize = 1 << 10;

pub(super) async fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let store = Arc::new(BenchStore::start(StoreOfRun::Null).await?);
    let kinds = bench.plan.relays();
    bench.steps(3 * kinds.len());
    for kind in kinds {
        if let Err(error) = measure(bench, kind, &store).await {
            bench.leave_out(format!("memory of {kind}"), &error);
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "statistics")]
async fn measure(bench: &mut Bench<'_>, kind: TargetKind, store: &Arc<BenchStore>) -> Result<(), BenchError> {
    // A process of its own: what another case has left behind is not to count.
    let target = Target::start(kind, store, &bench.identities, bench.plan.before.as_deref()).await?;
    let runners = bench.runners(bench.plan.crowd(), SignatureAlgorithm::EdDsa)?;
    let work = Work { body: body::of_size(BYTES), in_flight: runners.len(), batch_ids: false };

    bench.step(format!("{} idle runners, {kind}", runners.len()));
    let before = target.gauge.memory()?;
    let crowd = Arc::new(Crowd::connect(&target, &bench.identities, &runners, 1).await?);
    sleep(REST).await;
    let idle = target.gauge.memory()?;

    bench.step(format!("{} active runners, {kind}", runners.len()));
    target.gauge.forget_peak();
    let volume = closed(&crowd, &work, Until::Elapsed(bench.plan.round()), bench.stop).await;
    bench.note_refusals(format!("{kind} with {} active runners", runners.len()), &volume);
    let active = target.gauge.peak_memory()?;
    if let Some(crowd) = Arc::into_inner(crowd) {
        crowd.close().await;
    }
    let each = |memory: u64| memory.saturating_sub(before) as f64 / runners.len() as f64;

    let (count, bytes) = bench.plan.large_bodies();
    bench.step(format!("{count} bodies of {bytes} B, {kind}"));
    let target = Target::start(kind, store, &bench.identities, bench.plan.before.as_deref()).await?;
    let crowd = Arc::new(Crowd::connect(&target, &bench.identities, &runners[..count], 1).await?);
    let work = Work { body: body::of_size(bytes), in_flight: count, batch_ids: false };
    let volume = closed(&crowd, &work, Until::Requests(2 * count as u64), bench.stop).await;
    bench.note_refusals(format!("{kind} with {count} bodies of {bytes} B"), &volume);
    bench.report.memory.push(MemoryRow {
        target: kind,
        runners: runners.len(),
        before_bytes: before,
        idle_bytes_per_runner: each(idle),
        active_bytes_per_runner: each(active),
        large_bodies: count,
        large_body_bytes: bytes,
        peak_with_large_bodies_bytes: target.gauge.peak_memory()?,
    });
    Ok(())
}
