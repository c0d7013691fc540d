//! What spans cost on a runner: `cargo run --release --example span_bench -p telemetry-runner-client`.
//!
//! One thread, over a transport that plays the coordinator. The rows with a subscriber are the macros of the `tracing`
//! crate; the first two of them say what they cost without us.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response};
use telemetry_runner_client::trace::layer::layer;
use telemetry_runner_client::trace::{Entry, SpanWriter};
use telemetry_runner_client::{Client, IssuedToken, LateTokenSource, SendError, Signal, Token, Transport};
use tracing::info_span;
use tracing::subscriber::{NoSubscriber, with_default};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry;

const ROUNDS: u32 = 2_000_000;
const RECORDED: u32 = 200_000;

/// Takes everything; of the policy it takes what it is told.
struct Coordinator {
    traces: AtomicBool,
}

impl Transport for Coordinator {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, SendError>> {
        let body = if request.method() == Method::GET {
            let traces = match self.traces.load(Ordering::SeqCst) {
                true => r#""traces"], "traces": {"sample_ratio": 0.0}"#,
                false => "]",
            };
            format!(
                r#"{{"signals": [{traces}, "encodings": ["identity"], "server_time": "2030-01-01T00:00:00Z",
                "limits": {{"max_body_bytes": 1, "max_decoded_bytes": 1}}}}"#
            )
        } else {
            String::new()
        };
        std::future::ready(Ok(Response::new(body.into()))).boxed()
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let coordinator = Arc::new(Coordinator { traces: AtomicBool::new(false) });
    let tokens = LateTokenSource::new();
    tokens.arm(Arc::new(|| async { Ok(IssuedToken::from(Token::new("token", None)?)) }));
    let client = Client::builder()
        .transport(Arc::clone(&coordinator) as Arc<dyn Transport>)
        .trace_token_source(Arc::new(tokens))
        .policy_interval(Duration::from_millis(50))
        .build()?;
    let writer = client.spans();
    client.policy().watch().wait_for(Option::is_some).await?;

    println!("{:<58} {:>12}", "span, one thread", "ns");
    let macros = || drop(black_box(info_span!("request", trace.entry = "background", volume_id = "v-1")));
    with_default(NoSubscriber::new(), || row("macro, no subscriber", ROUNDS, macros));
    with_default(registry(), || row("macro, registry without layers", ROUNDS, macros));
    let entry = |kind| {
        let writer = writer.clone();
        move || drop(black_box(writer.entry(kind, "request", None).with("volume_id", "v-1")))
    };
    row("traces off: SpanWriter::entry", ROUNDS, entry(Entry::Control));
    with_default(registry().with(layer(writer.clone())), || row("traces off: macro, our layer", ROUNDS, macros));

    coordinator.traces.store(true, Ordering::SeqCst);
    enabled(&writer).await;
    row("not sampled: SpanWriter::entry", ROUNDS, entry(Entry::DataPath));
    with_default(registry().with(layer(writer.clone())), || row("not sampled: macro, our layer", ROUNDS, macros));

    let recorded = || {
        let request = writer.entry(Entry::Control, "create volume", None).with("volume_id", "v-1").with("attempt", 1);
        drop(black_box(request.child("attach").with("settlement_code", "attached")));
    };
    println!();
    println!("{:<58} {:>12}", "request and child, recorded, encoded and queued", "ns");
    row("as fast as one thread can: most are dropped as queue_full", RECORDED, recorded);
    let mut spent = Duration::ZERO;
    let before = client.tally(Signal::Traces).delivered;
    for _ in 0..RECORDED / 500 {
        let began = Instant::now();
        (0..500).for_each(|_| recorded());
        spent += began.elapsed();
        client.flush(Duration::from_secs(10)).await;
    }
    let delivered = client.tally(Signal::Traces).delivered - before;
    print("in portions that fit: all are delivered", spent, RECORDED);
    println!("{delivered} spans delivered, {:.0} spans a second", f64::from(RECORDED) * 2.0 / spent.as_secs_f64());
    Ok(())
}

async fn enabled(writer: &SpanWriter) {
    while !writer.is_enabled() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn row(what: &str, rounds: u32, work: impl Fn()) {
    (0..rounds / 10).for_each(|_| work());
    let began = Instant::now();
    (0..rounds).for_each(|_| work());
    print(what, began.elapsed(), rounds);
}

fn print(what: &str, spent: Duration, rounds: u32) {
    println!("{what:<58} {:>12.1}", spent.as_secs_f64() * 1e9 / f64::from(rounds));
}
