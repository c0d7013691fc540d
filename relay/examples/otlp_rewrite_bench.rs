//! How many spans one core rewrites in a second, and how many with the generated types.
//!
//!     cargo run --release -p telemetry-relay --example otlp_rewrite_bench [SECONDS]
//!
//! Each way works on the same bodies for so many seconds (default 2) per line, on one thread; the median body counts, so
//! that whatever else the machine does is left out. "decode + encode" is what the generated types take before anything is
//! decided; "generated types" applies the same rules to them.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message;
use telemetry_proto::RunnerId;
use telemetry_relay::gate::Author;
use telemetry_relay::traces::{TraceLimits, TraceRules, rewrite};

#[path = "../src/traces/tests/model.rs"]
mod model;

/// What a runner sends at a time.
const SPANS: usize = 512;

/// Somebody's rewriting of a body, to a length that keeps the compiler from leaving it out.
type Way<'w> = &'w dyn Fn(&[u8]) -> Result<usize, Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(2.0), |argument| argument.parse())?;
    let time = Duration::from_secs_f64(seconds);
    let runner = RunnerId::new("0b2e9a6c-3b1f-4a55-9a0f-0d7f7a4f8c11")?;
    let author = Author::from(runner.clone());
    let (rules, limits) = (TraceRules::default(), TraceLimits::default());

    let ours: Way<'_> = &|body| Ok(rewrite(body, &rules, &author, &limits)?.body.len());
    let generated: Way<'_> = &|body| {
        let request = ExportTraceServiceRequest::decode(body)?;
        Ok(model::apply(request, runner.as_str(), &|key| rules.allows(key)).encode_to_vec().len())
    };
    let codec: Way<'_> = &|body| Ok(ExportTraceServiceRequest::decode(body)?.encode_to_vec().len());

    println!("{SPANS} spans a body, one thread, {seconds} s a measurement\n");
    println!("| spans | bytes in | bytes out | way | spans/s | MB/s | ns/span |");
    println!("| --- | ---: | ---: | --- | ---: | ---: | ---: |");
    for (name, span) in [("small", small_span()), ("usual", usual_span()), ("rich", rich_span())] {
        let body = request(&span).encode_to_vec();
        if ours(&body)? != generated(&body)? {
            return Err("the two ways disagree".into());
        }
        for (way, run) in [("rewrite", ours), ("generated types", generated), ("decode + encode", codec)] {
            let out = run(&body)? / SPANS;
            let per_body = measure(&body, run, time)?;
            let per_span = per_body / SPANS as f64;
            println!(
                "| {name} | {} | {out} | {way} | {:.0} | {:.0} | {:.0} |",
                body.len() / SPANS,
                1.0 / per_span,
                body.len() as f64 / per_body / 1e6,
                per_span * 1e9,
            );
        }
    }
    Ok(())
}

/// Seconds for the median body.
fn measure(body: &[u8], run: Way<'_>, time: Duration) -> Result<f64, Box<dyn Error>> {
    let (started, mut durations) = (Instant::now(), Vec::new());
    while started.elapsed() < time {
        let before = Instant::now();
        black_box(run(black_box(body))?);
        durations.push(before.elapsed());
    }
    durations.sort_unstable();
    Ok(durations[durations.len() / 2].as_secs_f64())
}

/// What a relay or runner of ours records for a request: every attribute is listed.
fn small_span() -> Span {
    Span {
        trace_id: (1..17).collect(),
        span_id: (1..9).collect(),
        parent_span_id: (11..19).collect(),
        name: "POST /_telemetry/metrics".to_owned(),
        kind: 3,
        start_time_unix_nano: 1_900_000_000_000_000_000,
        end_time_unix_nano: 1_900_000_000_000_500_000,
        attributes: vec![
            text("http.request.method", "POST"),
            text("http.route", "/_telemetry/metrics"),
            int("http.response.status_code", 204),
        ],
        flags: 0x101,
        ..Span::default()
    }
}

/// What an OpenTelemetry SDK records for an HTTP request: 4 of 12 attributes are listed.
fn usual_span() -> Span {
    let mut span = small_span();
    span.trace_state = "vendor=0123456789abcdef".to_owned();
    span.attributes.extend([
        text("url.scheme", "https"),
        text("url.path", "/v1/volumes/0b2e9a6c/snapshots"),
        text("url.query", "limit=100&after=0d7f7a4f8c11"),
        text("server.address", "coordinator.example"),
        int("server.port", 8443),
        text("network.peer.address", "192.0.2.17"),
        text("user_agent.original", "example-client/1.2.3 (linux; x86_64)"),
        text("network.protocol.version", "3"),
        text("error.type", "timeout"),
    ]);
    span.status = Some(Status { code: 2, message: "the store did not answer in time".to_owned() });
    span
}

/// One with an exception and a link on top.
fn rich_span() -> Span {
    let mut span = usual_span();
    span.events.push(Event {
        time_unix_nano: 1_900_000_000_000_400_000,
        name: "exception".to_owned(),
        attributes: vec![
            text("exception.type", "TimeoutError"),
            text("exception.message", "the store did not answer in time"),
            text("exception.stacktrace", &"    at client.request (client.example:17)\n".repeat(30)),
        ],
        ..Event::default()
    });
    span.links.push(Link {
        trace_id: (21..37).collect(),
        span_id: (21..29).collect(),
        attributes: vec![text("journey", "root")],
        ..Link::default()
    });
    span
}

fn request(span: &Span) -> ExportTraceServiceRequest {
    let resource = Resource {
        attributes: vec![
            text("service.name", "runner-agent"),
            text("service.version", "1.2.3"),
            text("host.name", "host.example"),
            text("telemetry.sdk.language", "rust"),
        ],
        ..Resource::default()
    };
    let scope = InstrumentationScope { name: "example".to_owned(), ..InstrumentationScope::default() };
    let scope_spans = ScopeSpans { scope: Some(scope), spans: vec![span.clone(); SPANS], ..ScopeSpans::default() };
    let spans = ResourceSpans { resource: Some(resource), scope_spans: vec![scope_spans], ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![spans] }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn int(key: &str, value: i64) -> KeyValue {
    attribute(key, Value::IntValue(value))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
