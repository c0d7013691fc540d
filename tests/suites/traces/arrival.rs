//! What arrives, and how it looks there.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Link, Span as _, SpanContext, SpanId, SpanKind as SdkKind, Status, TraceContextExt as _, TraceFlags, TraceId,
    TraceState, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SdkTracerProvider, ShouldSample as _};
use telemetry_rig::rig::StoreKind;
use telemetry_rig::stores::StoredSpan;
use telemetry_rig::suite::TestResult;
use telemetry_runner_client::LogRecord;
use telemetry_runner_client::trace::layer::{current, layer};
use telemetry_runner_client::trace::opentelemetry::{Exporter, PolicySampler};
use telemetry_runner_client::trace::{self, Entry, Journey, Settlement, TraceParent};
use tracing::info_span;
use tracing_subscriber::layer::SubscriberExt as _;

use super::{DEADLINE, rig, tally, writer};

const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// The tags of a span, but for what the store adds to every span.
pub(crate) fn listed(span: &StoredSpan) -> Vec<(&str, &str)> {
    let tags = span.tags.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    tags.filter(|(key, _)| !["span.kind", "error"].contains(key)).collect()
}

pub(crate) fn is_filed_under(span: &StoredSpan, runner: &str) {
    assert_eq!((span.service.as_str(), span.runner(), span.events), ("agent", runner, 0), "{span:?}");
    let resource: Vec<&str> = span.process_tags.keys().map(String::as_str).collect();
    assert_eq!(resource, ["miren.runner.id", "service.version"]);
}

pub(crate) async fn spans_of_tracing_arrive_under_the_verified_runner_with_what_is_listed() -> TestResult {
    tracing_spans(StoreKind::BuiltIn).await
}

pub(crate) async fn spans_of_tracing_are_in_the_real_store_under_the_verified_runner() -> TestResult {
    tracing_spans(StoreKind::Real).await
}

async fn tracing_spans(store: StoreKind) -> TestResult {
    let rig = rig(store).runners(2).start().await?;
    let runner = rig.runner(1);
    let subscriber = tracing_subscriber::registry().with(layer(writer(runner).await?));
    tracing::subscriber::with_default(subscriber, || {
        let request = info_span!(
            "create volume",
            trace.entry = "control",
            otel.kind = "server",
            traceparent = CALLER,
            volume_id = "v-1",
            attempt = 2,
            url.path = "/secret",
            miren.runner.id = "r9"
        );
        let _request = request.enter();
        let _attach = info_span!("attach", otel.status_code = "error", settlement_code = "late").entered();
    });
    let report = runner.client.flush(DEADLINE).await;
    assert_eq!((report.delivered, report.dropped, report.waiting), (2, 0, 0));
    let spans = rig.trace_store().wait_for_trace(TRACE, 2).await?;
    let [request, attach] = &spans[..] else { return Err(format!("{spans:?}").into()) };
    spans.iter().for_each(|span| is_filed_under(span, "r2"));
    assert_eq!((request.name.as_str(), request.parent_id.as_str()), ("create volume", "00f067aa0ba902b7"));
    assert_eq!((request.tag("span.kind"), request.tag("error")), ("server", "unset"));
    assert_eq!(listed(request), [("attempt", "2"), ("volume_id", "v-1")]);
    assert_eq!((attach.name.as_str(), &attach.parent_id), ("attach", &request.span_id));
    assert_eq!((attach.tag("span.kind"), attach.tag("error")), ("internal", "true"));
    assert_eq!(listed(attach), [("settlement_code", "late")]);
    assert!(request.start_us <= attach.start_us && attach.duration_us <= request.duration_us);
    Ok(())
}

pub(crate) async fn spans_of_the_sdk_arrive_under_the_verified_runner_with_what_is_listed() -> TestResult {
    sdk_spans(StoreKind::BuiltIn).await
}

pub(crate) async fn spans_of_the_sdk_are_in_the_real_store_under_the_verified_runner() -> TestResult {
    sdk_spans(StoreKind::Real).await
}

async fn sdk_spans(store: StoreKind) -> TestResult {
    let rig = rig(store).start().await?;
    let runner = rig.runner(0);
    let writer = writer(runner).await?;
    let provider = SdkTracerProvider::builder()
        .with_sampler(PolicySampler::new(writer.clone(), Entry::DataPath))
        .with_simple_exporter(Exporter::new(writer))
        .build();
    let tracer = provider.tracer("scope-canary");
    let remote = SpanContext::new(
        TraceId::from_hex(TRACE)?,
        SpanId::from_hex("00f067aa0ba902b7")?,
        TraceFlags::NOT_SAMPLED,
        true,
        TraceState::from_key_value([("vendor", "state-canary")])?,
    );
    let caller = Context::new().with_remote_span_context(remote.clone());
    let mut span = tracer
        .span_builder("GET volumes")
        .with_kind(SdkKind::Client)
        .with_attributes([
            KeyValue::new("http.route", "/volumes/{id}"),
            KeyValue::new("url.path", "/canary"),
            KeyValue::new("command_id", Value::Array(vec![1_i64].into())),
        ])
        .with_links(vec![Link::new(remote, vec![KeyValue::new("http.route", "link-canary")], 0)])
        .start_with_context(&tracer, &caller);
    span.add_event("event-canary", vec![KeyValue::new("http.route", "canary")]);
    span.set_status(Status::error("status-canary"));
    span.end();
    assert_eq!(runner.client.flush(DEADLINE).await.delivered, 1);
    let spans = rig.trace_store().wait_for_trace(TRACE, 1).await?;
    let [span] = &spans[..] else { return Err(format!("{spans:?}").into()) };
    is_filed_under(span, "r1");
    assert_eq!((span.name.as_str(), span.tag("span.kind"), span.tag("error")), ("GET volumes", "client", "true"));
    assert_eq!(listed(span), [("http.route", "/volumes/{id}")]);
    assert_eq!(span.parent_id, "00f067aa0ba902b7");
    assert!(!format!("{spans:?}").contains("canary"), "{spans:?}");
    Ok(())
}

pub(crate) async fn a_journey_across_three_runners_is_one_trace_with_root_attempts_and_link() -> TestResult {
    journey(StoreKind::BuiltIn).await
}

pub(crate) async fn a_journey_across_three_runners_is_one_trace_in_the_real_store() -> TestResult {
    journey(StoreKind::Real).await
}

async fn journey(store: StoreKind) -> TestResult {
    let rig = rig(store).runners(3).start().await?;
    let [accepts, attempts, settles] = [0, 1, 2].map(|index| rig.runner(index));
    let command = "command-7";
    let root = Journey::of(command).root();
    let accepted = SystemTime::now();

    let mut request = writer(accepts).await?.entry(Entry::Control, "create volume", None);
    request.link(root);
    let request_trace = request.context().ok_or("no request")?.trace_id.to_string();
    drop(request);
    let attempting = writer(attempts).await?;
    Journey::of(command).attempt(&attempting, "attach", 1).end();
    Journey::of(command).attempt(&attempting, "attach", 2).end();
    let settlement = Settlement { code: "attached", failed: false };
    Journey::of(command).settle(&writer(settles).await?, "volume", accepted, settlement)?;
    for runner in [accepts, attempts, settles] {
        assert_eq!(runner.client.flush(DEADLINE).await.dropped, 0);
    }

    let spans = rig.trace_store().wait_for_trace(&root.trace_id.to_string(), 3).await?;
    let (roots, children): (Vec<_>, Vec<_>) = spans.iter().partition(|span| span.parent_id.is_empty());
    let [settled] = roots[..] else { return Err(format!("{spans:?}").into()) };
    is_filed_under(settled, "r3");
    assert_eq!(settled.span_id, root.span_id.to_string());
    assert_eq!(listed(settled), [("command_id", command), ("settlement_code", "attached")]);
    let numbers: Vec<&str> = children.iter().map(|attempt| attempt.tag("attempt")).collect();
    assert_eq!(numbers, ["1", "2"]);
    for attempt in children {
        is_filed_under(attempt, "r2");
        assert_eq!((&attempt.parent_id, attempt.tag("command_id")), (&settled.span_id, command));
        assert!(attempt.start_us >= settled.start_us, "an attempt is within the journey");
    }
    let request = rig.trace_store().wait_for_trace(&request_trace, 1).await?;
    is_filed_under(&request[0], "r1");
    assert_eq!(request[0].links, [(root.trace_id.to_string(), root.span_id.to_string())]);
    Ok(())
}

pub(crate) async fn log_records_inside_a_span_name_it_and_others_name_none() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let runner = rig.runner(0);
    runner.arm();
    let logs = runner.client.logs();
    let record = |message| LogRecord::new("e", "stdout", message);
    let writer = writer(runner).await?;
    let mut expected = Vec::new();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer(writer)), || {
        // Background work is not sampled, and its records name their span all the same.
        for entry in ["control", "background"] {
            info_span!("work", trace.entry = entry).in_scope(|| {
                assert_eq!(current().map(|context| context.sampled), Some(entry == "control"));
                expected.extend(current().map(|c| (entry, c.trace_id.to_string(), c.span_id.to_string())));
                logs.write(&record(entry).in_span(current())).map(drop)
            })?;
        }
        logs.write(&record("outside").in_span(current())).map(drop)
    })?;
    assert_eq!(runner.client.flush(DEADLINE).await.dropped, 0);
    for line in rig.log_store().wait_for_log_lines(3).await? {
        let ids = (line.fields.get("trace_id"), line.fields.get("span_id"));
        match expected.iter().find(|(entry, ..)| *entry == line.field("_msg")) {
            Some((_, trace, span)) => assert_eq!(ids, (Some(trace), Some(span))),
            None => assert_eq!((line.field("_msg"), ids), ("outside", (None, None))),
        }
    }
    Ok(())
}

pub(crate) async fn two_implementations_with_one_ratio_agree_on_100_000_trace_ids() -> TestResult {
    for ratio in [0.0, 0.01, 0.33, 0.999, 1.0] {
        let sdk = Sampler::TraceIdRatioBased(ratio);
        let mut sampled = 0_u32;
        for _ in 0..100_000 {
            let ours = trace::TraceId::random();
            let theirs = TraceId::from_bytes(ours.to_bytes());
            let result = sdk.should_sample(None, theirs, "", &SdkKind::Internal, &[], &[]);
            let is_sampled = trace::is_sampled(ours, ratio);
            assert_eq!(is_sampled, result.decision == SamplingDecision::RecordAndSample, "{ours} {ratio}");
            sampled += u32::from(is_sampled);
        }
        let share = f64::from(sampled) / 100_000.0;
        assert!((share - ratio).abs() < 0.01, "{share} of {ratio}");
    }
    Ok(())
}

pub(crate) async fn the_callers_sampled_flag_changes_nothing() -> TestResult {
    let rig = super::Rig::builder()
        .traces(StoreKind::BuiltIn)
        .relay(|relay| relay.traces(super::TracesSettings { sample_ratio: 0.5, ..Default::default() }))
        .start()
        .await?;
    let runner = rig.runner(0);
    let writer = writer(runner).await?;
    let mut sampled = 0;
    for _ in 0..500 {
        let id = trace::TraceId::random();
        let decide = |flags| -> Result<bool, trace::TraceParentError> {
            let caller: TraceParent = format!("00-{id}-00f067aa0ba902b7-{flags}").parse()?;
            Ok(writer.entry(Entry::DataPath, "s", Some(caller)).context().is_some_and(|context| context.sampled))
        };
        let (off, on) = (decide("00")?, decide("01")?);
        assert_eq!((off, on), (trace::is_sampled(id, 0.5), trace::is_sampled(id, 0.5)));
        sampled += 2 * u64::from(on);
    }
    assert!((300..700).contains(&sampled), "{sampled}");
    runner.client.flush(Duration::from_secs(10)).await;
    assert_eq!((tally(&runner.client).delivered, rig.built_in_store().spans().len() as u64), (sampled, sampled));
    Ok(())
}
