use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::ResourceSpans;

use super::sample::{array, attribute, in_resource, map, span, text};
use super::*;
use crate::traces::{KeyClass, RUNNER_ATTRIBUTE};

fn resource(attributes: Vec<KeyValue>) -> Option<Resource> {
    Some(Resource { attributes, ..Resource::default() })
}

/// What the store is told about the origin of each group of spans.
fn origins(body: &[u8]) -> Vec<Vec<KeyValue>> {
    let rewritten = rewrite_bytes(body).unwrap();
    let request = ExportTraceServiceRequest::decode(rewritten.body).unwrap();
    request.resource_spans.into_iter().map(|spans| spans.resource.unwrap().attributes).collect()
}

#[test]
fn whatever_a_runner_claims_its_spans_are_filed_under_the_verified_runner() {
    let claims: Vec<Option<Resource>> = vec![
        None,
        resource(vec![]),
        resource(vec![text(RUNNER_ATTRIBUTE, "r8")]),
        resource(vec![text(RUNNER_ATTRIBUTE, RUNNER), text(RUNNER_ATTRIBUTE, "r8"), text(RUNNER_ATTRIBUTE, "")]),
        resource(vec![text("Miren.Runner.ID", "r8"), text("MIREN.runner.id", "r8")]),
        resource(vec![text("miren.account", "1:2"), text("miren.", "r8"), text("miren.runner", "r8")]),
        resource(vec![attribute(RUNNER_ATTRIBUTE, Value::BytesValue(b"r8".to_vec()))]),
        resource(vec![attribute(RUNNER_ATTRIBUTE, array(vec![Value::StringValue("r8".into())]))]),
        resource(vec![attribute("miren", map(vec![text("runner.id", "r8")]))]),
        resource(vec![KeyValue { key: RUNNER_ATTRIBUTE.into(), value: None, key_strindex: 7 }]),
    ];
    let one_by_one = claims.iter().map(|claim| vec![claim.clone()]);
    for claims in one_by_one.chain([claims.clone()]) {
        let resource_spans = claims.iter().map(|claim| in_resource(claim.clone(), vec![span()])).collect();
        let origins = origins(&ExportTraceServiceRequest { resource_spans }.encode_to_vec());
        assert_eq!(origins, vec![vec![text(RUNNER_ATTRIBUTE, RUNNER)]; claims.len()], "{claims:?}");
    }
}

#[test]
fn of_the_resource_the_service_stays() {
    let sent = resource(vec![
        text("host.name", "h"),
        text("service.version", "1"),
        text("service.name", "a"),
        text("service.namespace", "n"),
        text("service.name", "b"),
        attribute("service.name", Value::IntValue(7)),
        text(RUNNER_ATTRIBUTE, "r8"),
    ]);
    let request = ExportTraceServiceRequest { resource_spans: vec![in_resource(sent, vec![span()])] };
    assert_eq!(
        origins(&request.encode_to_vec()),
        [[text("service.name", "b"), text("service.version", "1"), text(RUNNER_ATTRIBUTE, RUNNER)]]
    );
}

/// Protobuf merges a message that is there twice; a store may read the first or the last only.
#[test]
fn a_second_resource_overrules_nothing() {
    let spans = in_resource(None, vec![span()]).encode_to_vec();
    let claim = |attribute| {
        let spans = ResourceSpans { resource: resource(vec![attribute]), ..ResourceSpans::default() };
        spans.encode_to_vec()
    };
    let (r8, r9) = (claim(text(RUNNER_ATTRIBUTE, "r8")), claim(text(RUNNER_ATTRIBUTE, "r9")));
    let service = claim(text("service.name", "a"));
    for order in [[&r8, &service, &spans, &r9], [&spans, &r8, &r9, &service], [&service, &r8, &r9, &spans]] {
        let resource_spans = order.map(Vec::as_slice).concat();
        let mut body = Vec::new();
        prost::encoding::bytes::encode(1, &resource_spans, &mut body);
        assert_eq!(origins(&body), [[text("service.name", "a"), text(RUNNER_ATTRIBUTE, RUNNER)]]);
    }
}

#[test]
fn a_runner_that_names_itself_is_not_counted_as_overruled() {
    let reserved = |claims: Vec<KeyValue>| {
        let request = ExportTraceServiceRequest { resource_spans: vec![in_resource(resource(claims), vec![span()])] };
        rewrite_request(&request).1.removed.get(KeyClass::Reserved)
    };
    assert_eq!(reserved(vec![text(RUNNER_ATTRIBUTE, RUNNER)]), 0);
    assert_eq!(reserved(vec![text(RUNNER_ATTRIBUTE, "r8"), text("miren.x", RUNNER)]), 2);
}

#[test]
fn the_longest_label_is_written_whole() {
    let longest = longest_author();
    let body = sample::request(vec![span()]).encode_to_vec();
    let rewritten = rewrite(&body, &TraceRules::default(), &longest, &TraceLimits::default()).unwrap();
    let request = ExportTraceServiceRequest::decode(rewritten.body).unwrap();
    assert_eq!(
        request.resource_spans[0].resource.as_ref().unwrap().attributes,
        [text(RUNNER_ATTRIBUTE, longest.label())]
    );
}
