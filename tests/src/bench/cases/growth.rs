//! How the cost of a request grows with what a relay holds.

use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;

use telemetry_relay::gate::SignatureAlgorithm;

use super::Bench;
use crate::bench::BenchError;
use crate::bench::body;
use crate::bench::client::Crowd;
use crate::bench::load::{Until, Work, closed};
use crate::bench::report::GrowthRow;
use crate::bench::stats::median;
use crate::bench::targets::{BenchStore, RelaySetup, StoreOfRun, Target};

const BYTES: usize = 1 << 10;
const IN_FLIGHT: usize = 16;
const CONNECTIONS: usize = 16;

pub(super) async fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let plan = bench.plan;
    let counts = [plan.connections().len(), plan.tenants().len(), plan.removed().len(), plan.batch_ids().len()];
    bench.steps(counts.iter().sum::<usize>() + plan.connections().len());
    let store = Arc::new(BenchStore::start(StoreOfRun::Null).await?);

    let targets = [Target::relay(&store, &bench.identities, &RelaySetup::default()).await?];
    for (what, in_flight) in [("connections, 1 in flight", 1), ("connections, 16 in flight", IN_FLIGHT)] {
        for connections in plan.connections() {
            beside(bench, what, &targets, &[*connections as u64], *connections, in_flight).await?;
        }
    }

    let mut targets = Vec::new();
    for tenants in plan.tenants() {
        let setup = RelaySetup { settings: tenants_section(*tenants), ..RelaySetup::default() };
        targets.push(Target::relay(&store, &bench.identities, &setup).await?);
    }
    let counts: Vec<_> = plan.tenants().iter().map(|count| *count as u64).collect();
    beside(bench, "tenants", &targets, &counts, CONNECTIONS, IN_FLIGHT).await?;

    let (mut targets, folder) = (Vec::new(), tempfile::tempdir()?);
    for removed in plan.removed() {
        let file = folder.path().join(format!("removed-{removed}"));
        let mut text = String::new();
        for number in 0..*removed {
            let _ = writeln!(text, "removed-{number:06}");
        }
        fs::write(&file, text)?;
        let settings = format!("[runners]\nremoved = {:?}\n", file.display().to_string());
        targets
            .push(Target::relay(&store, &bench.identities, &RelaySetup { settings, ..RelaySetup::default() }).await?);
    }
    let counts: Vec<_> = plan.removed().iter().map(|count| *count as u64).collect();
    beside(bench, "removed runners", &targets, &counts, CONNECTIONS, IN_FLIGHT).await?;
    batch_ids(bench, &store).await
}

/// Measures relays that differ in one number, in turns.
async fn beside(
    bench: &mut Bench<'_>,
    what: &'static str,
    targets: &[Target],
    counts: &[u64],
    connections: usize,
    in_flight: usize,
) -> Result<(), BenchError> {
    let runners = bench.runners(connections, SignatureAlgorithm::EdDsa)?;
    let work = Work { body: body::of_size(BYTES), in_flight, batch_ids: false };
    let mut crowds = Vec::new();
    for target in targets {
        let crowd = Arc::new(Crowd::connect(target, &bench.identities, &runners, in_flight).await?);
        // Each connection has its token looked at before anything counts.
        closed(&crowd, &Work { in_flight: IN_FLIGHT, ..work.clone() }, Until::Requests(connections as u64), bench.stop)
            .await;
        crowds.push((crowd, Vec::new()));
    }
    for _ in 0..bench.plan.rounds() {
        for (target, (crowd, rounds)) in targets.iter().zip(&mut crowds) {
            rounds.push(round(bench, what, target, crowd, &work).await?);
        }
    }
    for ((target, (crowd, rounds)), count) in targets.iter().zip(crowds).zip(counts) {
        bench.step(format!("{what}: {count}"));
        let memory_bytes = target.gauge.memory()?;
        bench.report.growth.push(GrowthRow { what, count: *count, cpu_us_per_request: median(rounds), memory_bytes });
        if let Some(crowd) = Arc::into_inner(crowd) {
            crowd.close().await;
        }
    }
    Ok(())
}

/// CPU microseconds per request.
#[expect(clippy::cast_precision_loss, reason = "statistics")]
async fn round(
    bench: &mut Bench<'_>,
    what: &str,
    target: &Target,
    crowd: &Arc<Crowd>,
    work: &Work,
) -> Result<f64, BenchError> {
    let before = target.gauge.cpu()?;
    let volume = closed(crowd, work, Until::Elapsed(bench.plan.round()), bench.stop).await;
    bench.note_refusals(format!("relay, {what}"), &volume);
    Ok((target.gauge.cpu()? - before).as_secs_f64() * 1e6 / volume.stored.max(1) as f64)
}

/// Every batch has an ID of its own, and the relay remembers more and more of them.
async fn batch_ids(bench: &mut Bench<'_>, store: &Arc<BenchStore>) -> Result<(), BenchError> {
    const WHAT: &str = "batch IDs before";
    // A relay remembers 16,384 of one runner.
    const RUNNERS: usize = 64;
    let target = Target::relay(store, &bench.identities, &RelaySetup::default()).await?;
    let runners = bench.runners(RUNNERS, SignatureAlgorithm::EdDsa)?;
    let crowd = Arc::new(Crowd::connect(&target, &bench.identities, &runners, IN_FLIGHT).await?);
    let work = Work { body: body::of_size(BYTES), in_flight: IN_FLIGHT, batch_ids: true };
    let small = Work { body: body::of_size(64), ..work.clone() };
    let mut sent = 0;
    for count in bench.plan.batch_ids() {
        bench.step(format!("{WHAT}: {count}"));
        if sent < *count {
            sent += closed(&crowd, &small, Until::Requests(count - sent), bench.stop).await.stored;
        }
        let mut rounds = Vec::new();
        for _ in 0..bench.plan.rounds().min(3) {
            rounds.push(round(bench, WHAT, &target, &crowd, &work).await?);
        }
        if bench.stop.is_set() {
            break;
        }
        let row = GrowthRow {
            what: WHAT,
            count: *count,
            cpu_us_per_request: median(rounds),
            memory_bytes: target.gauge.memory()?,
        };
        bench.report.growth.push(row);
    }
    Ok(())
}

/// So many tenants, of which the last takes everyone: all the others' rules are tried before.
fn tenants_section(count: usize) -> String {
    let mut text = String::new();
    for number in 1..=count {
        let runner = if number == count { "bench-*".to_owned() } else { format!("of-tenant-{number}-*") };
        let _ = writeln!(
            text,
            "[[tenants]]\nname = \"t{number}\"\naccount = \"{number}\"\nmatch = [{{ runner = \"{runner}\" }}]"
        );
    }
    text
}
