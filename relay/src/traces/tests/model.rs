//! The same rules on the generated types: decode, take away, encode. It is what the rewriting is compared with, in
//! tests for what it does, in the benchmark for how long it takes.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};

/// Takes away what `allows` does not list, and files the rest under `runner`.
pub(crate) fn apply(
    mut request: ExportTraceServiceRequest,
    runner: &str,
    allows: &dyn Fn(&str) -> bool,
) -> ExportTraceServiceRequest {
    request.resource_spans.iter_mut().for_each(|spans| apply_to_resource(spans, runner, allows));
    request.resource_spans.retain(|spans| !spans.scope_spans.is_empty());
    request
}

fn apply_to_resource(spans: &mut ResourceSpans, runner: &str, allows: &dyn Fn(&str) -> bool) {
    let claimed = spans.resource.take().unwrap_or_default().attributes;
    let service = |key: &str| {
        let values = claimed.iter().rev().filter(|attribute| attribute.key == key);
        values.filter_map(text_of).next().map(|text| string(key, cut(text, 1_024)))
    };
    let name_and_version = ["service.name", "service.version"].into_iter().filter_map(service);
    spans.resource = Some(Resource {
        attributes: name_and_version.chain([string("miren.runner.id", runner)]).collect(),
        ..Resource::default()
    });
    spans.schema_url.clear();
    for scope_spans in &mut spans.scope_spans {
        scope_spans.scope = None;
        scope_spans.schema_url.clear();
        scope_spans.spans.iter_mut().for_each(|span| apply_to_span(span, allows));
    }
    spans.scope_spans.retain(|scope_spans| !scope_spans.spans.is_empty());
}

fn apply_to_span(span: &mut Span, allows: &dyn Fn(&str) -> bool) {
    span.trace_state.clear();
    if is_zero(&span.parent_span_id) {
        span.parent_span_id.clear();
    }
    span.name.truncate(cut(&span.name, 256).len());
    span.kind = if (0..=5).contains(&span.kind) { span.kind } else { 0 };
    span.flags &= 0x3ff;
    span.attributes.retain(|attribute| allows(&attribute.key) && is_scalar(attribute));
    for attribute in &mut span.attributes {
        attribute.key_strindex = 0;
        if let Some(AnyValue { value: Some(Value::StringValue(text)) }) = &mut attribute.value {
            text.truncate(cut(text, 1_024).len());
        }
    }
    span.events.clear();
    span.links.retain(|link| !is_zero(&link.trace_id) && !is_zero(&link.span_id));
    for link in &mut span.links {
        link.trace_state.clear();
        link.attributes.clear();
        link.flags = 0;
        link.dropped_attributes_count = 0;
    }
    (span.dropped_attributes_count, span.dropped_events_count, span.dropped_links_count) = (0, 0, 0);
    if let Some(status) = &mut span.status {
        status.message.clear();
        status.code = if (0..=2).contains(&status.code) { status.code } else { 0 };
    }
    span.status.take_if(|status| status.code == 0);
}

fn string(key: &str, text: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(Value::StringValue(text.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

fn text_of(attribute: &KeyValue) -> Option<&str> {
    match attribute.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn is_scalar(attribute: &KeyValue) -> bool {
    let value = attribute.value.as_ref().and_then(|value| value.value.as_ref());
    matches!(value, Some(Value::StringValue(_) | Value::BoolValue(_) | Value::IntValue(_) | Value::DoubleValue(_)))
}

fn is_zero(id: &[u8]) -> bool {
    id.iter().all(|byte| *byte == 0)
}

fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}
