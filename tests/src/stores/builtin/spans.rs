//! What VictoriaTraces makes of a write: OTLP, read with the generated types.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

use super::StoredSpan;

/// The spans of a body; `None` if it is no OTLP, as VictoriaTraces then answers 400.
pub(super) fn read(body: &[u8]) -> Option<Vec<StoredSpan>> {
    let request = ExportTraceServiceRequest::decode(body).ok()?;
    let spans = request.resource_spans.into_iter().flat_map(|in_resource| {
        let Resource { attributes, .. } = in_resource.resource.unwrap_or_default();
        let mut resource = tags(attributes);
        let service = resource.remove("service.name").unwrap_or_default();
        let spans = in_resource.scope_spans.into_iter().flat_map(|in_scope| {
            // A tag, so that a test sees it if it gets through.
            let scope = in_scope.scope.map(|scope| scope.name).unwrap_or_default();
            in_scope.spans.into_iter().map(move |span| (span, scope.clone()))
        });
        spans.map(move |(span, scope)| stored(span, scope, service.clone(), resource.clone())).collect::<Vec<_>>()
    });
    Some(spans.collect())
}

fn stored(span: Span, scope: String, service: String, process_tags: BTreeMap<String, String>) -> StoredSpan {
    let mut tags = tags(span.attributes);
    let status = span.status.unwrap_or_default();
    for (tag, value) in [
        ("span.kind", kind(span.kind)),
        ("error", error(status.code)),
        ("otel.status_description", &status.message),
        ("w3c.tracestate", &span.trace_state),
        ("otel.scope.name", &scope),
    ] {
        if !value.is_empty() {
            tags.insert(tag.to_owned(), value.to_owned());
        }
    }
    StoredSpan {
        trace_id: hex(&span.trace_id),
        span_id: hex(&span.span_id),
        parent_id: hex(&span.parent_span_id),
        name: span.name,
        start_us: span.start_time_unix_nano / 1_000,
        duration_us: span.end_time_unix_nano.saturating_sub(span.start_time_unix_nano) / 1_000,
        links: span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect(),
        tags,
        events: span.events.len(),
        service,
        process_tags,
    }
}

fn tags(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    attributes.into_iter().map(|pair| (pair.key, text(pair.value))).collect()
}

fn text(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::BoolValue(truth)) => truth.to_string(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}

const fn kind(kind: i32) -> &'static str {
    match kind {
        1 => "internal",
        2 => "server",
        3 => "client",
        4 => "producer",
        5 => "consumer",
        _ => "",
    }
}

const fn error(code: i32) -> &'static str {
    match code {
        1 => "false",
        2 => "true",
        _ => "unset",
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // A String takes every write.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
