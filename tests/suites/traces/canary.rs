//! What may not arrive.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, EntityRef, InstrumentationScope, KeyValue, KeyValueList,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message as _;
use telemetry_proto::{Reason, Signal};
use telemetry_rig::rig::{Rig, StoreKind};
use telemetry_rig::stores::BuiltInStore;
use telemetry_rig::suite::TestResult;
use telemetry_runner_client::trace::Entry;
use telemetry_runner_client::trace::layer::layer;
use tracing_subscriber::layer::SubscriberExt as _;

use super::{DEADLINE, rig, writer};

const CANARY: &str = "canary";

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), key_strindex: 0 }
}

pub(crate) fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

/// A canary as key, and as every kind of value, under a key that is listed too where no value may stay there.
fn canaries(listed: Option<&str>) -> Vec<KeyValue> {
    let array =
        Value::ArrayValue(ArrayValue { values: vec![AnyValue { value: Some(Value::StringValue(CANARY.into())) }] });
    let map = Value::KvlistValue(KeyValueList { values: vec![text("canary-key", CANARY)] });
    let bytes = Value::BytesValue(CANARY.into());
    let mut attributes = vec![
        text("canary-key", CANARY),
        attribute("canary-array", array.clone()),
        attribute("canary-map", map.clone()),
        attribute("canary-bytes", bytes.clone()),
        text("miren.canary", CANARY),
        text("Miren.Canary", CANARY),
        text("", CANARY),
        KeyValue { key: "canary-without-value".to_owned(), value: None, key_strindex: 0 },
        // Listed, and no scalar.
        attribute("http.route", array),
        attribute("command_id", map),
        attribute("volume_id", bytes),
    ];
    attributes.extend(listed.map(|key| text(key, CANARY)));
    attributes
}

/// Every position of OTLP, written out field by field: a new one does not compile until someone decides about it.
fn request() -> ExportTraceServiceRequest {
    let link = Link {
        trace_id: vec![3; 16],
        span_id: vec![4; 8],
        trace_state: CANARY.to_owned(),
        attributes: canaries(Some("http.route")),
        dropped_attributes_count: 1,
        flags: 1,
    };
    let span = Span {
        trace_id: vec![1; 16],
        span_id: vec![2; 8],
        trace_state: CANARY.to_owned(),
        parent_span_id: vec![5; 8],
        flags: 0x301,
        name: "attach".to_owned(),
        kind: 2,
        start_time_unix_nano: 1_900_000_000_000_000_000,
        end_time_unix_nano: 1_900_000_000_000_000_001,
        attributes: [canaries(None), vec![text("workload_id", "w-1")]].concat(),
        dropped_attributes_count: 1,
        events: vec![Event {
            time_unix_nano: 1,
            name: CANARY.to_owned(),
            attributes: canaries(Some("http.route")),
            dropped_attributes_count: 1,
        }],
        dropped_events_count: 1,
        links: vec![link.clone(), Link { trace_id: Vec::new(), ..link }],
        dropped_links_count: 1,
        status: Some(Status { message: CANARY.to_owned(), code: 2 }),
    };
    let scope = InstrumentationScope {
        name: CANARY.to_owned(),
        version: CANARY.to_owned(),
        attributes: canaries(Some("http.route")),
        dropped_attributes_count: 1,
    };
    let resource = Resource {
        attributes: [canaries(Some("http.route")), vec![text("service.name", "agent")]].concat(),
        dropped_attributes_count: 1,
        entity_refs: vec![EntityRef {
            schema_url: CANARY.to_owned(),
            r#type: CANARY.to_owned(),
            id_keys: vec![CANARY.to_owned()],
            description_keys: vec![CANARY.to_owned()],
        }],
    };
    let scope_spans = ScopeSpans { scope: Some(scope), spans: vec![span], schema_url: CANARY.to_owned() };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![scope_spans],
            schema_url: CANARY.to_owned(),
        }],
    }
}

/// A field that OTLP does not have, at the end of a message.
fn with_unknown_field(mut message: Vec<u8>) -> Vec<u8> {
    prost::encoding::string::encode(999, &CANARY.to_owned(), &mut message);
    message
}

fn traces_token(rig: &Rig) -> String {
    rig.token_for(&rig.runner(0).id).claim("signals", vec!["traces"]).sign(rig.signing_key())
}

/// Looks at everything of every request: path, query, headers and body.
pub(crate) fn saw_no_canary(store: &BuiltInStore) {
    for request in store.requests() {
        let is_there = |text: &[u8]| text.to_ascii_lowercase().windows(CANARY.len()).any(|at| at == CANARY.as_bytes());
        let head = format!("{} {} {:?}", request.path, request.query, request.headers);
        assert!(!is_there(head.as_bytes()), "{head}");
        assert!(!is_there(&request.body), "{:?}", String::from_utf8_lossy(&request.body));
    }
}

pub(crate) async fn a_canary_in_every_position_of_otlp_reaches_no_store() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let client = rig.raw_client(0).await?;
    let body = with_unknown_field(request().encode_to_vec());
    assert!(body.windows(CANARY.len()).filter(|at| *at == CANARY.as_bytes()).count() > 60);
    for name in ["tracestate", "baggage", "authorization", "user-agent", "accountid", "projectid", "x-anything"] {
        let write = client.write(Signal::Traces).token(&traces_token(&rig)).header(name, CANARY);
        write.body(body.clone()).send().await?.expect_delivered()?;
    }
    saw_no_canary(rig.built_in_store());
    let spans = rig.built_in_store().spans();
    assert_eq!(spans.len(), 7);
    for span in spans {
        assert_eq!((span.name.as_str(), span.tag("workload_id"), span.runner()), ("attach", "w-1", "r1"));
        assert_eq!((span.events, span.links.len(), span.tags.len()), (0, 1, 3), "{span:?}");
    }
    Ok(())
}

pub(crate) async fn a_canary_said_to_the_writers_of_a_runner_reaches_no_store() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let runner = rig.runner(0);
    let writer = writer(runner).await?;
    let mut span =
        writer.entry(Entry::Control, "direct", None).with("url.full", CANARY).with("miren.runner.id", CANARY);
    span.set("canary-key", 1);
    drop(span);
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer(writer)), || {
        let span = tracing::info_span!(
            "layer",
            trace.entry = "control",
            peer.address = CANARY,
            canary = 1,
            baggage = CANARY,
            tracestate = CANARY
        );
        span.in_scope(|| tracing::error!(http.route = CANARY, "canary"));
    });
    assert_eq!(runner.client.flush(DEADLINE).await.delivered, 2);
    assert_eq!(rig.built_in_store().spans().len(), 2);
    saw_no_canary(rig.built_in_store());
    Ok(())
}

pub(crate) async fn a_runner_that_claims_to_be_another_is_overruled() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).runners(2).start().await?;
    let client = rig.raw_client(0).await?;
    let claims = |_: &str| {
        vec![
            text("miren.runner.id", "r2"),
            text("miren.runner.id", "r2"),
            text("MIREN.RUNNER.ID", "r2"),
            text("miren.account", "7"),
            text("miren.service.account", "r2"),
        ]
    };
    let mut claiming = request();
    for in_resource in &mut claiming.resource_spans {
        in_resource.resource.as_mut().ok_or("no resource")?.attributes.extend(claims("resource"));
        for in_scope in &mut in_resource.scope_spans {
            in_scope.scope.as_mut().ok_or("no scope")?.attributes.extend(claims("scope"));
            in_scope.spans.iter_mut().for_each(|span| span.attributes.extend(claims("span")));
        }
    }
    // A second resource in the same message, which some stores merge and others take instead of the first.
    let second = Resource { attributes: claims("second"), ..Resource::default() };
    let mut body = claiming.resource_spans[0].encode_to_vec();
    prost::encoding::message::encode(1, &second, &mut body);
    let mut whole = Vec::new();
    prost::encoding::bytes::encode(1, &body, &mut whole);
    let write = client.write(Signal::Traces).token(&traces_token(&rig));
    let write = write.header("accountid", "7").header("projectid", "8").header("vl-extra-fields", "miren.runner.id=r2");
    write.body(whole).send().await?.expect_delivered()?;
    let requests = rig.built_in_store().requests();
    assert!(!requests[0].body.windows(2).any(|at| at == b"r2"), "nothing of the claim is left");
    for name in ["accountid", "projectid"] {
        assert!(requests[0].headers.get(name).is_none_or(|value| value == "0"), "{:?}", requests[0].headers);
    }
    assert!(!requests[0].headers.contains_key("vl-extra-fields"));
    let spans = rig.built_in_store().spans();
    let tags: Vec<(&str, &str)> = spans[0].process_tags.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!((tags, spans[0].service.as_str()), (vec![("miren.runner.id", "r1")], "agent"));
    Ok(())
}

pub(crate) async fn what_is_no_otlp_is_refused_and_never_repaired() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let client = rig.raw_client(0).await?;
    let good = request().encode_to_vec();
    let write = |body: Vec<u8>| client.write(Signal::Traces).token(&traces_token(&rig)).body(body).send();
    for body in [good[..good.len() - 1].to_vec(), b"{\"resourceSpans\":[]}".to_vec(), vec![0xff; 100]] {
        write(body).await?.expect_refusal(Reason::BodyMalformed)?;
    }
    for content_type in ["application/json", "application/x-protobuf; charset=utf-8", "text/plain"] {
        let request =
            client.request(http::Method::POST, Signal::Traces.write_path()).header("content-type", content_type);
        let request = request.token(&traces_token(&rig)).body(good.clone());
        request.send().await?.expect_refusal(Reason::ContentTypeUnsupported)?;
    }
    assert!(rig.built_in_store().requests().is_empty());
    write(good).await?.expect_delivered()?;
    Ok(())
}

/// What it is, whether it is gzip, the body, and why it is refused.
type BadBody = (&'static str, bool, Vec<u8>, Reason);

/// Each with the reason that it is refused for.
fn bad_bodies() -> Result<Vec<BadBody>, std::io::Error> {
    let field = |number: u32, message: &[u8]| {
        let mut whole = Vec::with_capacity(message.len() + 10);
        prost::encoding::bytes::encode(number, &message.to_vec(), &mut whole);
        whole
    };
    let in_request = |span: &[u8]| field(1, &field(2, &field(2, span)));
    let ids = [field(1, &[1; 16]), field(2, &[2; 8])].concat();
    let mut value = vec![0x10, 1];
    for _ in 0..1_000 {
        value = field(5, &field(1, &value));
    }
    let deep = field(9, &[field(1, b"http.route"), field(2, &value)].concat());
    let spans = field(2, &ids).repeat(70_000);
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..40 {
        std::io::Write::write_all(&mut bomb, &vec![0; 1 << 20])?;
    }
    let attributes = field(9, &field(1, b"k")).repeat(300);
    Ok(vec![
        ("nested 1,000 levels", false, in_request(&[&ids[..], &deep].concat()), Reason::DecodedTooLarge),
        ("70,000 spans", false, field(1, &field(2, &spans)), Reason::DecodedTooLarge),
        ("300 attributes", false, in_request(&[&ids[..], &attributes].concat()), Reason::DecodedTooLarge),
        (
            "a string of 2 MiB",
            false,
            in_request(&[&ids[..], &field(5, &vec![b'a'; 2 << 20])].concat()),
            Reason::DecodedTooLarge,
        ),
        ("a gzip bomb", true, bomb.finish()?, Reason::DecodedTooLarge),
        ("a wrong wire type", false, vec![0x08, 1], Reason::BodyMalformed),
        ("a group", false, vec![0x0b, 0x0c], Reason::BodyMalformed),
        ("a name that is no UTF-8", false, in_request(&[&ids[..], &field(5, b"\xff")].concat()), Reason::BodyMalformed),
        ("a span without IDs", false, in_request(&field(5, b"s")), Reason::BodyMalformed),
        ("a length beyond the end", false, vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f], Reason::BodyMalformed),
        ("no gzip", true, b"spans".to_vec(), Reason::BodyMalformed),
    ])
}

pub(crate) async fn bad_spans_are_400_or_413_and_cost_the_relay_no_memory() -> TestResult {
    // The least that can be set, so that a debug build has not to decode much.
    let limits = "[limits]\nmax_decoded_bytes = 33554432";
    let rig = Rig::builder().traces(StoreKind::BuiltIn).relay_program(limits).start().await?;
    let client = rig.raw_client(0).await?;
    let bodies = bad_bodies()?;
    let round = async || -> Result<u64, Box<dyn std::error::Error>> {
        for (what, gzip, body, reason) in &bodies {
            let write = client.write(Signal::Traces).token(&traces_token(&rig)).body(body.clone());
            let write = if *gzip { write.header("content-encoding", "gzip") } else { write };
            write.send().await?.expect_refusal(*reason).map_err(|error| format!("{what}: {error}"))?;
        }
        Ok(rig.relay_program().usage()?.memory_bytes)
    };
    // What the first round makes the process grow to, it keeps.
    let before = round().await?;
    round().await?;
    let (after, peak) = (round().await?, rig.relay_program().usage()?.peak_memory_bytes);
    assert!(after < before + (16 << 20), "{before} before, {after} after");
    assert!(peak < 256 << 20, "a peak of {peak}");
    assert!(rig.built_in_store().requests().is_empty());
    let write = client.write(Signal::Traces).token(&traces_token(&rig)).body(request().encode_to_vec());
    write.send().await?.expect_delivered()?;
    Ok(())
}
