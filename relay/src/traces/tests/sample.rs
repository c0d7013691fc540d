//! Requests to rewrite: one that fills every position of OTLP, and random ones.
//!
//! The generated types are written out field by field, without `..Default::default()`: a version of OTLP with a new
//! position does not compile here, and whoever adds it decides what becomes of it.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, EntityRef, InstrumentationScope, KeyValue, KeyValueList,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use proptest::prelude::RngExt;
use proptest::test_runner::TestRng;

pub(super) fn attribute(key: impl Into<String>, value: Value) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), key_strindex: 0 }
}

pub(super) fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

pub(super) fn array(values: Vec<Value>) -> Value {
    Value::ArrayValue(ArrayValue { values: values.into_iter().map(|v| AnyValue { value: Some(v) }).collect() })
}

pub(super) fn map(values: Vec<KeyValue>) -> Value {
    Value::KvlistValue(KeyValueList { values })
}

/// A span with nothing but what it must have.
pub(super) fn span() -> Span {
    Span { trace_id: vec![1; 16], span_id: vec![2; 8], ..Span::default() }
}

pub(super) fn link() -> Link {
    Link { trace_id: vec![3; 16], span_id: vec![4; 8], ..Link::default() }
}

pub(super) fn in_resource(resource: Option<Resource>, spans: Vec<Span>) -> ResourceSpans {
    let scope_spans = vec![ScopeSpans { scope: None, spans, schema_url: String::new() }];
    ResourceSpans { resource, scope_spans, schema_url: String::new() }
}

pub(super) fn request(spans: Vec<Span>) -> ExportTraceServiceRequest {
    ExportTraceServiceRequest { resource_spans: vec![in_resource(None, spans)] }
}

/// Gives out canaries: strings that name the position they are put in.
#[derive(Default)]
pub(super) struct Canaries(Vec<String>);

impl Canaries {
    pub(super) fn put(&mut self, position: &str) -> String {
        let canary = format!("canary-{position}.");
        self.0.push(canary.clone());
        canary
    }

    pub(super) fn all(&self) -> &[String] {
        &self.0
    }

    /// Attributes with a canary in every key and value there can be. `scalars` is for where a listed key with a scalar
    /// value may not stay either.
    fn attributes(&mut self, position: &str, listed: &str, scalars: bool) -> Vec<KeyValue> {
        let mut at = |what: &str| self.put(&format!("{position}-{what}"));
        let nested = map(vec![
            attribute(at("map-key"), Value::StringValue(at("map-value"))),
            attribute("array", array(vec![Value::StringValue(at("map-array")), map(vec![text(&at("deep-key"), "")])])),
            attribute("bytes", Value::BytesValue(at("map-bytes").into_bytes())),
        ]);
        let mut attributes = vec![
            attribute(at("key"), Value::StringValue(at("value"))),
            attribute(at("key-of-bool"), Value::BoolValue(true)),
            attribute(at("key-of-int"), Value::IntValue(-1)),
            attribute(at("key-of-double"), Value::DoubleValue(0.5)),
            attribute(at("key-of-index"), Value::StringValueStrindex(1)),
            attribute(at("key-of-bytes"), Value::BytesValue(at("bytes").into_bytes())),
            attribute(at("key-of-array"), array(vec![Value::StringValue(at("array"))])),
            attribute(at("key-of-map"), nested.clone()),
            KeyValue { key: at("key-of-nothing"), value: None, key_strindex: 1 },
            KeyValue { key: at("key-of-empty"), value: Some(AnyValue { value: None }), key_strindex: 0 },
            text("", &at("value-of-nothing")),
            text("miren.runner.id", &at("runner")),
            text("miren.account", &at("reserved")),
            text("Miren.Account", &at("reserved-in-capitals")),
            attribute(listed, Value::BytesValue(at("listed-bytes").into_bytes())),
            attribute(listed, array(vec![Value::StringValue(at("listed-array"))])),
            attribute(listed, nested),
        ];
        if scalars {
            attributes.push(text(listed, &at("listed-value")));
        }
        attributes
    }
}

/// A request with a canary in every position of OTLP that may not reach the store.
pub(super) fn canary_request(canaries: &mut Canaries) -> ExportTraceServiceRequest {
    let resource = Resource {
        attributes: canaries.attributes("resource", "service.name", false),
        dropped_attributes_count: 1,
        entity_refs: vec![EntityRef {
            schema_url: canaries.put("entity-schema"),
            r#type: canaries.put("entity-type"),
            id_keys: vec![canaries.put("entity-id-key")],
            description_keys: vec![canaries.put("entity-description-key")],
        }],
    };
    let scope = InstrumentationScope {
        name: canaries.put("scope-name"),
        version: canaries.put("scope-version"),
        attributes: canaries.attributes("scope", "http.route", true),
        dropped_attributes_count: 1,
    };
    let event = Event {
        time_unix_nano: 1,
        name: canaries.put("event-name"),
        attributes: canaries.attributes("event", "http.route", true),
        dropped_attributes_count: 1,
    };
    let link = Link {
        trace_id: vec![3; 16],
        span_id: vec![4; 8],
        trace_state: canaries.put("link-state"),
        attributes: canaries.attributes("link", "http.route", true),
        dropped_attributes_count: 1,
        flags: 1,
    };
    let lost_link =
        Link { trace_id: Vec::new(), attributes: canaries.attributes("lost-link", "a", true), ..link.clone() };
    let span = Span {
        trace_id: vec![1; 16],
        span_id: vec![2; 8],
        trace_state: canaries.put("trace-state"),
        parent_span_id: vec![5; 8],
        flags: 0x301,
        name: format!("{:256}{}", "GET /volumes", canaries.put("end-of-a-long-name")),
        kind: 2,
        start_time_unix_nano: 1_900_000_000_000_000_000,
        end_time_unix_nano: 1_900_000_000_000_000_001,
        attributes: canaries.attributes("span", "http.route", false),
        dropped_attributes_count: 1,
        events: vec![event],
        dropped_events_count: 1,
        links: vec![link, lost_link],
        dropped_links_count: 1,
        status: Some(Status { message: canaries.put("status"), code: 2 }),
    };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope),
                spans: vec![span],
                schema_url: canaries.put("scope-schema"),
            }],
            schema_url: canaries.put("resource-schema"),
        }],
    }
}

/// A request in which anything may be anything, within the limits; nearly all of it is valid.
pub(super) fn random_request(rng: &mut TestRng) -> ExportTraceServiceRequest {
    ExportTraceServiceRequest { resource_spans: several(rng, 3, random_resource_spans) }
}

fn random_resource_spans(rng: &mut TestRng) -> ResourceSpans {
    ResourceSpans {
        resource: maybe(rng, random_resource),
        scope_spans: several(rng, 3, random_scope_spans),
        schema_url: random_text(rng),
    }
}

fn random_resource(rng: &mut TestRng) -> Resource {
    Resource {
        attributes: several(rng, 5, random_attribute),
        dropped_attributes_count: rng.random_range(0..2),
        entity_refs: several(rng, 2, |rng| EntityRef {
            schema_url: random_text(rng),
            r#type: random_text(rng),
            id_keys: several(rng, 2, random_text),
            description_keys: several(rng, 2, random_text),
        }),
    }
}

fn random_scope_spans(rng: &mut TestRng) -> ScopeSpans {
    let scope = maybe(rng, |rng| InstrumentationScope {
        name: random_text(rng),
        version: random_text(rng),
        attributes: several(rng, 3, random_attribute),
        dropped_attributes_count: rng.random_range(0..2),
    });
    ScopeSpans { scope, spans: several(rng, 4, random_span), schema_url: random_text(rng) }
}

fn random_span(rng: &mut TestRng) -> Span {
    Span {
        trace_id: random_id(rng, 16, 500),
        span_id: random_id(rng, 8, 500),
        trace_state: random_text(rng),
        parent_span_id: random_id(rng, 8, 3),
        flags: rng.random(),
        name: random_text(rng),
        kind: rng.random_range(-1..8),
        start_time_unix_nano: rng.random_range(0..3),
        end_time_unix_nano: rng.random(),
        attributes: several(rng, 8, random_attribute),
        dropped_attributes_count: rng.random(),
        events: several(rng, 2, |rng| Event {
            time_unix_nano: rng.random(),
            name: random_text(rng),
            attributes: several(rng, 3, random_attribute),
            dropped_attributes_count: rng.random_range(0..2),
        }),
        dropped_events_count: rng.random_range(0..2),
        links: several(rng, 3, |rng| Link {
            trace_id: random_id(rng, 16, 4),
            span_id: random_id(rng, 8, 4),
            trace_state: random_text(rng),
            attributes: several(rng, 3, random_attribute),
            dropped_attributes_count: rng.random_range(0..2),
            flags: rng.random(),
        }),
        dropped_links_count: rng.random_range(0..2),
        status: maybe(rng, |rng| Status { message: random_text(rng), code: rng.random_range(-1..4) }),
    }
}

fn random_attribute(rng: &mut TestRng) -> KeyValue {
    const KEYS: [&str; 9] = [
        "http.route",
        "command_id",
        "attempt",
        "service.name",
        "service.version",
        "miren.runner.id",
        "miren.x",
        "url.path",
        "",
    ];
    let key = KEYS[rng.random_range(0..KEYS.len())].to_owned();
    KeyValue { key, value: maybe(rng, |rng| random_value(rng, 3)), key_strindex: rng.random_range(0..2) }
}

fn random_value(rng: &mut TestRng, levels: u32) -> AnyValue {
    let value = maybe(rng, |rng| match rng.random_range(0..if levels > 0 { 9 } else { 7 }) {
        0 => Value::BoolValue(rng.random()),
        1 => Value::IntValue(rng.random()),
        2 => Value::DoubleValue(rng.random()),
        3 => Value::BytesValue(random_text(rng).into_bytes()),
        4 => Value::StringValueStrindex(rng.random()),
        5 | 6 => Value::StringValue(random_text(rng)),
        7 => Value::ArrayValue(ArrayValue { values: several(rng, 3, |rng| random_value(rng, levels - 1)) }),
        _ => Value::KvlistValue(KeyValueList {
            values: several(rng, 3, |rng| KeyValue {
                key: random_text(rng),
                value: maybe(rng, |rng| random_value(rng, levels - 1)),
                key_strindex: 0,
            }),
        }),
    });
    AnyValue { value }
}

/// Nearly always an ID: one in `odds` is empty or all zero instead.
fn random_id(rng: &mut TestRng, len: usize, odds: u32) -> Vec<u8> {
    match rng.random_range(0..2 * odds) {
        0 => Vec::new(),
        1 => vec![0; len],
        _ => vec![rng.random_range(1..=255); len],
    }
}

fn random_text(rng: &mut TestRng) -> String {
    let piece = ["", "a", "GET /volumes", "ä", "😀", "\0"][rng.random_range(0..6)];
    let times = if rng.random_ratio(1, 20) { 400 } else { 1 };
    piece.repeat(times)
}

fn maybe<T>(rng: &mut TestRng, make: impl FnOnce(&mut TestRng) -> T) -> Option<T> {
    rng.random_ratio(4, 5).then(|| make(rng))
}

fn several<T>(rng: &mut TestRng, max: usize, mut make: impl FnMut(&mut TestRng) -> T) -> Vec<T> {
    (0..rng.random_range(0..=max)).map(|_| make(rng)).collect()
}
