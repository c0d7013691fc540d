use std::time::Duration;

use ::opentelemetry::trace::{
    Span as _, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use ::opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};
use ::opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::trace::SdkTracerProvider;

use super::*;
use crate::trace::opentelemetry::{Exporter, PolicySampler};

fn provider(writer: &SpanWriter, entry: Entry) -> SdkTracerProvider {
    SdkTracerProvider::builder()
        .with_sampler(PolicySampler::new(writer.clone(), entry))
        .with_simple_exporter(Exporter::new(writer.clone()))
        .build()
}

#[tokio::test(start_paused = true)]
async fn spans_of_the_sdk_become_spans_of_ours() {
    let coordinator = Coordinator::taking();
    let (client, writer) = coordinator.ready().await;
    let tracer = provider(&writer, Entry::Control).tracer("scope");
    let remote = SpanContext::new(
        TraceId::from(7_u128),
        SpanId::from(8_u64),
        TraceFlags::NOT_SAMPLED,
        true,
        TraceState::default(),
    );
    let caller = Context::new().with_remote_span_context(remote.clone());
    let mut span = tracer
        .span_builder("create volume")
        .with_kind(SpanKind::Server)
        .with_attributes([
            KeyValue::new("volume_id", "v-1"),
            KeyValue::new("attempt", 2),
            KeyValue::new("list", Value::Array(vec![1_i64].into())),
        ])
        .with_links(vec![::opentelemetry::trace::Link::with_context(remote)])
        .start_with_context(&tracer, &caller);
    span.set_status(Status::error("the message stays here"));
    span.end();
    client.flush(Duration::from_secs(1)).await;
    let spans: Vec<Stored> = coordinator.written().into_iter().flatten().collect();
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((span.name.as_str(), span.kind, span.status.as_ref().unwrap().code), ("create volume", 2, 2));
    assert_eq!((&span.trace_id[..], &span.parent_span_id[..]), (&7_u128.to_be_bytes()[..], &8_u64.to_be_bytes()[..]));
    assert_eq!(span.links[0].span_id, 8_u64.to_be_bytes());
    let keys: Vec<&str> = span.attributes.iter().map(|pair| pair.key.as_str()).collect();
    assert_eq!(keys, ["volume_id", "attempt"]);
    assert!(!format!("{span:?}").contains("stays here"));
}

#[tokio::test(start_paused = true)]
async fn the_sdk_samples_as_the_policy_says() {
    let coordinator = Coordinator::new(r#""metrics"]"#, |_| Answer::delivered());
    let client = coordinator.client().build().unwrap();
    let writer = client.spans();
    let control = provider(&writer, Entry::Control).tracer("scope");
    let background = provider(&writer, Entry::Background).tracer("scope");
    assert!(!control.start("off").is_recording());
    coordinator.asked(1).await;
    *coordinator.policy.lock() = ALL.to_owned();
    enabled(&writer).await;
    assert!(control.start("on").is_recording());
    assert!(!background.start("never").is_recording());
    // Below a span of this process that is recorded, all are, whatever they are.
    let parent = Context::new().with_span(control.start("parent"));
    assert!(background.start_with_context("child", &parent).is_recording());
    client.flush(Duration::from_secs(1)).await;
    assert_eq!(tally(&client).delivered, 2);
}
