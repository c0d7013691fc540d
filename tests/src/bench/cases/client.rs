//! What the runner's client costs the program that it is part of. This process is that program.

use std::sync::Arc;
use std::time::{Duration, Instant};

use telemetry_proto::Signal;
use telemetry_relay::gate::SignatureAlgorithm;
use telemetry_runner_client::{Client, LateTokenSource, LogRecord, NotTaken, Point};

use super::Bench;
use crate::bench::BenchError;
use crate::bench::gauge::Gauge;
use crate::bench::identities::Runner;
use crate::bench::report::ClientReport;
use crate::bench::stats::{median, percentile};
use crate::bench::targets::{BenchStore, StoreOfRun, Target, TargetKind};
use crate::net::free_address;
use crate::wait;

const DELIVERED_WITHIN: Duration = Duration::from_secs(60);
/// A program that writes lets others run now and then.
const YIELD_EVERY: u64 = 64;

pub(super) async fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    bench.steps(2 * bench.plan.rounds() + 1);
    let store = Arc::new(BenchStore::start(StoreOfRun::Null).await?);
    let target = Target::start(TargetKind::Relay, &store, &bench.identities, bench.plan.before.as_deref()).await?;
    let runner = bench.runners(1, SignatureAlgorithm::EdDsa)?[0].clone();
    let tokens = LateTokenSource::new();
    let client = client(bench, &runner, &tokens, target.address.port())?;
    tokens.arm(client.issuer());
    let failed = |problem: String| target.failed(problem);
    let (mut points, mut records) = (Vec::new(), Vec::new());
    for _ in 0..bench.plan.rounds() {
        let lines = bench.plan.lines();
        bench.step(format!("{lines} points"));
        points.push(measure(&client, Signal::Metrics, lines, || write_point(&client)).await.map_err(failed)?);
        bench.step(format!("{lines} records"));
        records.push(measure(&client, Signal::Logs, lines, || write_record(&client)).await.map_err(failed)?);
    }
    client.close(Duration::from_secs(10)).await;

    bench.step("a writer without a network");
    let calls = offline(bench, &runner)?;
    let micros = |percent| percentile(&calls, percent).as_secs_f64() * 1e6;
    bench.report.client = Some(ClientReport {
        cpu_us_per_point: median(points),
        cpu_us_per_record: median(records),
        offline_p50_us: micros(50),
        offline_p99_us: micros(99),
    });
    Ok(())
}

fn client(bench: &Bench<'_>, runner: &Runner, tokens: &LateTokenSource, port: u16) -> Result<Client, BenchError> {
    let client = Client::builder()
        .coordinator(format!("localhost:{port}"))
        .identity(runner.credentials.clone(), bench.identities.cluster().roots().clone())
        .token_source(Arc::new(tokens.clone()))
        .build();
    client.map_err(|error| BenchError::Client { target: TargetKind::Relay, problem: error.to_string() })
}

/// CPU microseconds of this process per line, from the first `write` until the last line is acknowledged.
#[expect(clippy::cast_precision_loss, reason = "statistics")]
async fn measure(
    client: &Client,
    signal: Signal,
    lines: u64,
    write: impl Fn() -> Result<(), NotTaken>,
) -> Result<f64, String> {
    let cpu = || Gauge::own().cpu().map_err(|error| error.to_string());
    let (before, delivered) = (cpu()?, client.tally(signal).delivered);
    let mut written = 0;
    while written < lines {
        match write() {
            Ok(()) => written += 1,
            // Full: the oldest would be dropped.
            Err(error) => return Err(error.to_string()),
        }
        if written.is_multiple_of(YIELD_EVERY) {
            // No more than fits: nothing is dropped here.
            while written.saturating_sub(client.tally(signal).delivered - delivered) > 50_000 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::task::yield_now().await;
        }
    }
    let all = async || match client.tally(signal).delivered - delivered {
        count if count >= lines => Ok(()),
        count => Err(format!("{count} of {lines} are delivered")),
    };
    wait::until("delivery", DELIVERED_WITHIN, all).await.map_err(|error| error.to_string())?;
    Ok((cpu()? - before).as_secs_f64() * 1e6 / lines as f64)
}

/// Each call of a writer for which nothing can be reached, sorted.
fn offline(bench: &Bench<'_>, runner: &Runner) -> Result<Vec<Duration>, BenchError> {
    let client = client(bench, runner, &LateTokenSource::new(), free_address()?.port())?;
    let mut calls = Vec::with_capacity(bench.plan.calls());
    for _ in 0..bench.plan.calls() {
        let began = Instant::now();
        // The oldest make room.
        let _ = write_point(&client);
        calls.push(began.elapsed());
    }
    calls.sort();
    Ok(calls)
}

fn write_point(client: &Client) -> Result<(), NotTaken> {
    let point = Point::new("bench_requests_total", 41.0).label("method", "GET").label("route", "/api/items");
    client.metrics().write(point).map(drop)
}

fn write_record(client: &Client) -> Result<(), NotTaken> {
    let message = "a request was answered with 200 after 3 ms, from the cache, as most of them are";
    client.logs().write(&LogRecord::new("bench", "stdout", message).attribute("status", 200.0)).map(drop)
}
