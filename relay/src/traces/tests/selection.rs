use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::Link;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};

use super::sample::{array, attribute, in_resource, link, map, request, span, text};
use super::*;
use crate::traces::DEFAULT_ATTRIBUTES;

fn rewrite_span(span: Span) -> Span {
    let (mut request, _) = rewrite_request(&request(vec![span]));
    request.resource_spans.remove(0).scope_spans.remove(0).spans.remove(0)
}

fn attributes_under(rules: &TraceRules, attributes: Vec<KeyValue>) -> Vec<KeyValue> {
    let body = request(vec![Span { attributes, ..span() }]).encode_to_vec();
    let rewritten = rewrite(&body, rules, &author(RUNNER), &TraceLimits::default()).unwrap();
    let request = ExportTraceServiceRequest::decode(rewritten.body).unwrap();
    request.resource_spans[0].scope_spans[0].spans[0].attributes.clone()
}

#[test]
fn a_span_keeps_what_makes_it_one() {
    let sent = Span {
        parent_span_id: vec![5; 8],
        name: "GET /volumes".into(),
        kind: 3,
        start_time_unix_nano: 1,
        end_time_unix_nano: u64::MAX,
        attributes: DEFAULT_ATTRIBUTES.iter().map(|key| text(key, "v")).collect(),
        links: vec![link(), link()],
        status: Some(Status { code: 2, message: String::new() }),
        flags: 0x301,
        ..span()
    };
    assert_eq!(rewrite_span(sent.clone()), sent);
}

#[test]
fn listed_attributes_stay_in_their_order_with_scalar_values_only() {
    let kept = [
        text("http.route", ""),
        attribute("attempt", Value::IntValue(i64::MIN)),
        attribute("http.response.status_code", Value::IntValue(200)),
        attribute("settlement_code", Value::DoubleValue(-0.0)),
        attribute("error.type", Value::BoolValue(false)),
        text("http.route", "/again"),
    ];
    let mut sent = kept.to_vec();
    sent.insert(1, text("url.path", "/secret"));
    sent.insert(2, attribute("attempt", array(vec![Value::IntValue(1)])));
    sent.insert(3, attribute("command_id", map(vec![text("a", "b")])));
    sent.insert(4, attribute("volume_id", Value::BytesValue(vec![1])));
    sent.insert(5, KeyValue { key: "workload_id".into(), value: None, key_strindex: 0 });
    sent.push(text("miren.runner.id", "r8"));
    assert_eq!(attributes_under(&TraceRules::default(), sent.clone()), kept);
    let all = attributes_under(&TraceRules::allow_all(), sent);
    assert_eq!(all.len(), kept.len() + 1);
    assert_eq!(all[1], text("url.path", "/secret"));
    assert_eq!(attributes_under(&TraceRules::allow([]).unwrap(), kept.to_vec()), []);
}

#[test]
fn names_and_values_are_cut() {
    let name = "ä".repeat(200);
    let sent = Span { name: name.clone(), attributes: vec![text("http.route", &"x".repeat(1_025))], ..span() };
    let got = rewrite_span(sent);
    assert_eq!(got.name, name[..256]);
    assert_eq!(got.attributes, [text("http.route", &"x".repeat(1_024))]);
}

#[test]
fn the_parent_of_a_root_span_is_nothing() {
    assert_eq!(rewrite_span(Span { parent_span_id: vec![0; 8], ..span() }), span());
}

#[test]
fn links_that_point_nowhere_are_removed() {
    let links = vec![
        Link { trace_id: vec![], ..link() },
        Link { span_id: vec![0; 8], ..link() },
        link(),
        Link { trace_id: vec![0; 16], span_id: vec![], ..link() },
    ];
    assert_eq!(rewrite_span(Span { links, ..span() }).links, [link()]);
}

#[test]
fn what_otlp_does_not_know_is_nothing() {
    for kind in [-1, 6, i32::MIN, i32::MAX] {
        let status = Some(Status { code: kind, message: String::new() });
        assert_eq!(rewrite_span(Span { kind, status, flags: 0xffff_fc00, ..span() }), span(), "{kind}");
    }
}

#[test]
fn resources_and_scopes_without_spans_are_left_out() {
    let empty_scope = ResourceSpans { scope_spans: vec![ScopeSpans::default()], ..ResourceSpans::default() };
    let mut half = in_resource(None, vec![span()]);
    half.scope_spans.insert(0, ScopeSpans::default());
    let nothing = vec![ResourceSpans::default(), empty_scope];
    for resource_spans in [vec![], nothing.clone()] {
        let (got, rewritten) = rewrite_request(&ExportTraceServiceRequest { resource_spans });
        assert!(rewritten.body.is_empty() && got.resource_spans.is_empty());
        assert_eq!(rewritten.spans, 0);
    }
    let resource_spans = [nothing, vec![half, in_resource(None, vec![span(), span()])]].concat();
    let (got, rewritten) = rewrite_request(&ExportTraceServiceRequest { resource_spans });
    assert_eq!(rewritten.spans, 3);
    let per_resource: Vec<_> = got.resource_spans.iter().map(|spans| spans.scope_spans.len()).collect();
    assert_eq!(per_resource, [1, 1]);
}
