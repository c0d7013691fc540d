//! The rewriting of spans, held against the generated types of OTLP.

use std::sync::LazyLock;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message as _;
use telemetry_proto::fuzzing::Target;
use telemetry_proto::{RunnerId, WriterName};

use crate::gate::Author;
use crate::traces::{KeyClass, TraceLimits, TraceRules, rewrite};

pub(super) const TARGET: Target = Target {
    name: "spans",
    run,
    seeds,
    words: &[
        "\n",
        "\u{12}",
        "\u{1a}",
        "*",
        "J",
        "R",
        "Z",
        "b",
        "\u{7f}",
        "miren.runner.id",
        "service.name",
        "http.route",
    ],
};

/// What is taken is filed under its author, holds what is listed and nothing else, loses no span, is within what was
/// reserved for it, and is rewritten to itself.
fn run(data: &[u8]) {
    static AUTHORS: LazyLock<Vec<Author>> = LazyLock::new(|| {
        let (runner, writer) = (RunnerId::new("r7").ok(), WriterName::new("gw").ok());
        runner.map(Author::from).into_iter().chain(writer.map(Author::from)).collect()
    });
    let (rules, limits) = (TraceRules::default(), TraceLimits::default());
    for author in AUTHORS.iter() {
        let Ok(rewritten) = rewrite(data, &rules, author, &limits) else { continue };
        assert!(rewritten.body.len() <= limits.max_rewritten_bytes(data.len()), "more than was reserved");
        let request = ExportTraceServiceRequest::decode(rewritten.body.clone());
        let Ok(request) = request else { panic!("the output is no OTLP") };
        check(&request, author, &rules);
        assert_eq!(count(&request), rewritten.spans, "spans that are counted are there");
        if let Ok(sent) = ExportTraceServiceRequest::decode(data) {
            assert_eq!(count(&sent), rewritten.spans, "no span is lost, and none is made up");
        }
        let again = rewrite(&rewritten.body, &rules, author, &limits);
        let Ok(again) = again else { panic!("the output is refused: {again:?}") };
        assert!(again.body == rewritten.body && again.spans == rewritten.spans, "rewriting twice changes something");
        assert_eq!(again.removed.get(KeyClass::Reserved), 0, "the author names itself");
    }
}

fn count(request: &ExportTraceServiceRequest) -> u64 {
    let scopes = request.resource_spans.iter().flat_map(|in_resource| &in_resource.scope_spans);
    scopes.map(|in_scope| in_scope.spans.len() as u64).sum()
}

fn check(request: &ExportTraceServiceRequest, author: &Author, rules: &TraceRules) {
    for in_resource in &request.resource_spans {
        let resource = in_resource.resource.as_ref();
        let attributes = resource.map(|resource| &resource.attributes[..]).unwrap_or_default();
        let named: Vec<_> = attributes.iter().filter(|pair| pair.key == "miren.runner.id").collect();
        let [named] = named[..] else { panic!("named {} times", named.len()) };
        assert_eq!(text(named), Some(author.label()));
        let kept = ["miren.runner.id", "service.name", "service.version"];
        assert!(attributes.iter().all(|pair| kept.contains(&pair.key.as_str())), "{attributes:?}");
        assert!(in_resource.schema_url.is_empty() && resource.is_none_or(|resource| resource.entity_refs.is_empty()));
        for in_scope in &in_resource.scope_spans {
            assert!(in_scope.scope.is_none() && in_scope.schema_url.is_empty());
            in_scope.spans.iter().for_each(|span| check_span(span, rules));
        }
    }
}

fn check_span(span: &Span, rules: &TraceRules) {
    assert!(span.attributes.iter().all(|pair| rules.allows(&pair.key)), "{:?}", span.attributes);
    assert!(span.events.is_empty() && span.trace_state.is_empty());
    assert!(span.status.as_ref().is_none_or(|status| status.message.is_empty()));
    assert!(span.links.iter().all(|link| link.attributes.is_empty() && link.trace_state.is_empty()));
}

fn text(pair: &KeyValue) -> Option<&str> {
    match pair.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), key_strindex: 0 }
}

fn seeds() -> Vec<Vec<u8>> {
    let said = |text: &str| Value::StringValue(text.to_owned());
    let array = Value::ArrayValue(ArrayValue { values: vec![AnyValue { value: Some(said("a")) }; 2] });
    let attributes = vec![
        attribute("http.route", said("/a")),
        attribute("attempt", Value::IntValue(-1)),
        attribute("url.full", said("secret")),
        attribute("command_id", array),
    ];
    let link = Link { trace_id: vec![3; 16], span_id: vec![4; 8], attributes: attributes.clone(), ..Link::default() };
    let span = Span {
        trace_id: vec![1; 16],
        span_id: vec![2; 8],
        trace_state: "a=b".to_owned(),
        parent_span_id: vec![5; 8],
        name: "attach".to_owned(),
        kind: 2,
        start_time_unix_nano: 1_900_000_000_000_000_000,
        end_time_unix_nano: 1_900_000_000_000_000_001,
        attributes: attributes.clone(),
        events: vec![Event { time_unix_nano: 1, name: "e".to_owned(), ..Event::default() }],
        links: vec![link],
        status: Some(Status { message: "m".to_owned(), code: 2 }),
        ..Span::default()
    };
    let claims = vec![attribute("service.name", said("agent")), attribute("miren.runner.id", said("r8"))];
    let resource = Some(Resource { attributes: claims, ..Resource::default() });
    let scope_spans = vec![ScopeSpans { spans: vec![span.clone(), span], ..ScopeSpans::default() }];
    let in_resource = ResourceSpans { resource, scope_spans, ..ResourceSpans::default() };
    let bare = Span { trace_id: vec![1; 16], span_id: vec![2; 8], ..Span::default() };
    let small = ScopeSpans { spans: vec![bare], ..ScopeSpans::default() };
    let small = ResourceSpans { scope_spans: vec![small], ..ResourceSpans::default() };
    let requests = [vec![small.clone()], vec![in_resource.clone()], vec![in_resource, small]];
    requests.map(|resource_spans| ExportTraceServiceRequest { resource_spans }.encode_to_vec()).to_vec()
}
