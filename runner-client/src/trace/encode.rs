//! Spans as OTLP: `ExportTraceServiceRequest` of opentelemetry/proto/collector/trace/v1/trace_service.proto, and what it
//! is made of. The numbers of the fields stand beside their messages.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use telemetry_proto::protobuf::{Writer, header_len};

use super::record::{MAX_ATTRIBUTES, MAX_KEY_BYTES, MAX_LINKS, MAX_NAME_BYTES, MAX_TEXT_BYTES, SpanRecord, SpanStatus};
use crate::delivery::Frame;
use crate::writer::LogValue;

/// ExportTraceServiceRequest, ResourceSpans, ScopeSpans
const RESOURCE_SPANS: u32 = 1;
const RESOURCE: u32 = 1;
const SCOPE_SPANS: u32 = 2;
const SPANS: u32 = 2;

/// The W3C flag that says that the span is recorded.
const SAMPLED: u32 = 1;

/// A span that most spans fit in.
const USUAL_SPAN_BYTES: usize = 384;

/// An encoded span, and how much of it was cut.
pub(super) struct Encoded {
    pub(super) bytes: Vec<u8>,
    pub(super) attributes: u64,
    pub(super) texts: u64,
    pub(super) links: u64,
}

/// A span as a field of `ScopeSpans`.
pub(super) fn span(span: &SpanRecord) -> Encoded {
    let mut out = Writer::with_capacity(USUAL_SPAN_BYTES);
    let mut texts = 0;
    let open = out.open(SPANS);
    out.bytes(1, &span.context.trace_id.to_bytes());
    out.bytes(2, &span.context.span_id.to_bytes());
    if let Some(parent) = span.parent {
        out.bytes(4, &parent.to_bytes());
    }
    out.bytes(5, cut(&span.name, MAX_NAME_BYTES, &mut texts).as_bytes());
    out.varint(6, span.kind as u64);
    out.fixed64(7, nanos(span.start));
    out.fixed64(8, nanos(span.end).max(nanos(span.start)));
    let kept = span.attributes.iter().filter(|(key, _)| fits(key)).take(MAX_ATTRIBUTES);
    let mut attributes = span.attributes.len() as u64;
    for (key, value) in kept {
        attribute(&mut out, 9, key, value, &mut texts);
        attributes -= 1;
    }
    if attributes > 0 {
        out.varint(10, attributes);
    }
    for link in span.links.iter().take(MAX_LINKS) {
        let open = out.open(13);
        out.bytes(1, &link.trace_id.to_bytes());
        out.bytes(2, &link.span_id.to_bytes());
        out.close(open);
    }
    let links = span.links.len().saturating_sub(MAX_LINKS) as u64;
    if links > 0 {
        out.varint(14, links);
    }
    if span.status != SpanStatus::Unset {
        let open = out.open(15);
        out.varint(3, span.status as u64);
        out.close(open);
    }
    if span.context.sampled {
        out.fixed32(16, SAMPLED);
    }
    out.close(open);
    Encoded { bytes: out.into_bytes(), attributes, texts, links }
}

/// Makes a request of encoded spans, with what they have in common before them.
pub(crate) fn frame(service: &str, version: Option<&str>) -> Frame {
    let mut common = Writer::default();
    let open = common.open(RESOURCE);
    for (key, value) in [("service.name", Some(service)), ("service.version", version)] {
        if let Some(value) = value {
            attribute(&mut common, 1, key, &LogValue::Text(value.into()), &mut 0);
        }
    }
    common.close(open);
    let common = common.into_bytes();
    Arc::new(move |spans| {
        let in_scope = header_len(spans.len()) + spans.len();
        let mut out = Writer::with_capacity(header_len(common.len() + in_scope) + common.len() + in_scope);
        out.header(RESOURCE_SPANS, common.len() + in_scope);
        out.raw(&common);
        out.bytes(SCOPE_SPANS, spans);
        out.into_bytes()
    })
}

/// `KeyValue` with an `AnyValue`.
fn attribute(out: &mut Writer, number: u32, key: &str, value: &LogValue<'_>, texts: &mut u64) {
    let open = out.open(number);
    out.bytes(1, key.as_bytes());
    let any = out.open(2);
    match value {
        LogValue::Text(text) => out.bytes(1, cut(text, MAX_TEXT_BYTES, texts).as_bytes()),
        LogValue::Bool(truth) => out.varint(2, (*truth).into()),
        LogValue::Integer(number) => out.varint(3, number.cast_unsigned()),
        LogValue::Float(number) => out.fixed64(4, number.to_bits()),
    }
    out.close(any);
    out.close(open);
}

fn fits(key: &str) -> bool {
    (1..=MAX_KEY_BYTES).contains(&key.len())
}

/// Nanoseconds since 1970; a time that has none becomes the nearest that has.
fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn cut<'a>(text: &'a str, max: usize, cuts: &mut u64) -> &'a str {
    if text.len() <= max {
        return text;
    }
    *cuts += 1;
    let mut end = max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::time::Duration;

    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
    use opentelemetry_proto::tonic::resource::v1::Resource;
    use opentelemetry_proto::tonic::trace::v1::span::Link;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::trace::{SpanContext, SpanId, SpanKind, TraceId};

    fn context() -> SpanContext {
        SpanContext { trace_id: TraceId::random(), span_id: SpanId::random(), sampled: true }
    }

    fn record() -> SpanRecord {
        SpanRecord {
            context: context(),
            parent: None,
            name: "name".into(),
            kind: SpanKind::Internal,
            start: UNIX_EPOCH + Duration::new(1_900_000_000, 1),
            end: UNIX_EPOCH + Duration::new(1_900_000_000, 2),
            attributes: Vec::new(),
            links: Vec::new(),
            status: SpanStatus::Unset,
        }
    }

    fn decode(spans: &[SpanRecord]) -> ExportTraceServiceRequest {
        let fields: Vec<u8> = spans.iter().flat_map(|record| span(record).bytes).collect();
        ExportTraceServiceRequest::decode(&*frame("agent", Some("1.2"))(&fields)).unwrap()
    }

    fn decode_one(record: &SpanRecord) -> Span {
        decode(std::slice::from_ref(record)).resource_spans[0].scope_spans[0].spans[0].clone()
    }

    fn key_value(key: &str, value: Value) -> KeyValue {
        KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), key_strindex: 0 }
    }

    #[test]
    fn the_generated_types_read_what_was_written() {
        let parent = SpanId::random();
        let linked = context();
        let record = SpanRecord {
            parent: Some(parent),
            kind: SpanKind::Server,
            attributes: vec![
                ("command_id".into(), "c-1".into()),
                ("attempt".into(), (-2_i64).into()),
                ("ratio".into(), 0.5.into()),
                ("ok".into(), true.into()),
            ],
            links: vec![linked],
            status: SpanStatus::Error,
            ..record()
        };
        let expected = Span {
            trace_id: record.context.trace_id.to_bytes().into(),
            span_id: record.context.span_id.to_bytes().into(),
            trace_state: String::new(),
            parent_span_id: parent.to_bytes().into(),
            flags: 1,
            name: "name".to_owned(),
            kind: 2,
            start_time_unix_nano: 1_900_000_000_000_000_001,
            end_time_unix_nano: 1_900_000_000_000_000_002,
            attributes: vec![
                key_value("command_id", Value::StringValue("c-1".to_owned())),
                key_value("attempt", Value::IntValue(-2)),
                key_value("ratio", Value::DoubleValue(0.5)),
                key_value("ok", Value::BoolValue(true)),
            ],
            dropped_attributes_count: 0,
            events: Vec::new(),
            dropped_events_count: 0,
            links: vec![Link {
                trace_id: linked.trace_id.to_bytes().into(),
                span_id: linked.span_id.to_bytes().into(),
                ..Link::default()
            }],
            dropped_links_count: 0,
            status: Some(Status { message: String::new(), code: 2 }),
        };
        let resource = Resource {
            attributes: vec![
                key_value("service.name", Value::StringValue("agent".to_owned())),
                key_value("service.version", Value::StringValue("1.2".to_owned())),
            ],
            ..Resource::default()
        };
        let scope = ScopeSpans { scope: None, spans: vec![expected.clone(), expected], schema_url: String::new() };
        let expected = ResourceSpans { resource: Some(resource), scope_spans: vec![scope], schema_url: String::new() };
        assert_eq!(decode(&[record.clone(), record]), ExportTraceServiceRequest { resource_spans: vec![expected] });
    }

    #[test]
    fn what_is_too_much_is_cut_and_counted() {
        let mut large = SpanRecord { name: "ä".repeat(200).into(), links: vec![context(); 40], ..record() };
        large.attributes.push(("k".repeat(119).into(), 1.into()));
        large.attributes.push(("text".into(), LogValue::from("ä".repeat(2_000))));
        for number in 0..100 {
            large.attributes.push((format!("a{number}").into(), 1.into()));
        }
        let encoded = span(&large);
        assert_eq!((encoded.attributes, encoded.texts, encoded.links), (38, 2, 8));
        let read = decode_one(&large);
        assert_eq!((read.attributes.len(), read.links.len()), (MAX_ATTRIBUTES, MAX_LINKS));
        assert_eq!((read.dropped_attributes_count, read.dropped_links_count), (38, 8));
        assert_eq!((read.name, read.attributes[0].key.as_str()), ("ä".repeat(128), "text"));
    }

    #[test]
    fn a_span_never_ends_before_it_began() {
        let early = UNIX_EPOCH - Duration::from_secs(1);
        let read = decode_one(&SpanRecord { end: early, ..record() });
        assert_eq!(read.end_time_unix_nano, read.start_time_unix_nano);
        assert_eq!(decode_one(&SpanRecord { start: early, end: early, ..record() }).start_time_unix_nano, 0);
    }

    proptest! {
        #[test]
        fn any_span_is_read_by_the_generated_types(
            names in prop::collection::vec(".*", 0..6),
            attributes in prop::collection::vec((".{0,200}", ".*"), 0..80),
        ) {
            let attributes: Vec<(Cow<'static, str>, LogValue<'static>)> =
                attributes.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
            let spans: Vec<SpanRecord> = names
                .into_iter()
                .map(|name| SpanRecord { name: name.into(), attributes: attributes.clone(), ..record() })
                .collect();
            let read = decode(&spans);
            prop_assert_eq!(read.resource_spans[0].scope_spans[0].spans.len(), spans.len());
            for (read, span) in read.resource_spans[0].scope_spans[0].spans.iter().zip(&spans) {
                prop_assert!(span.name.starts_with(&read.name));
                let all = read.attributes.len() + read.dropped_attributes_count as usize;
                prop_assert_eq!(all, span.attributes.len());
            }
        }
    }
}
