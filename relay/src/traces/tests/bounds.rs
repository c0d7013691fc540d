use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use telemetry_proto::Reason;

use super::sample::{attribute, in_resource, link, request, span, text};
use super::*;

/// Makes a request with so many of something.
type Make<'m> = &'m dyn Fn(usize) -> ExportTraceServiceRequest;

fn small() -> TraceLimits {
    TraceLimits { max_spans: 3, max_attributes: 2, max_links: 2, max_string_bytes: 100, ..TraceLimits::default() }
}

fn rewrite_within(limits: TraceLimits, request: &ExportTraceServiceRequest) -> Result<Rewritten, RewriteError> {
    rewrite(&request.encode_to_vec(), &TraceRules::default(), &author(RUNNER), &limits)
}

#[test]
fn what_is_over_a_limit_is_413_and_what_is_at_it_passes() {
    let attributes = |n| vec![text("k", ""); n];
    let spans = |n| {
        let (a, b) = (in_resource(None, vec![span(); n - 1]), in_resource(None, vec![span()]));
        ExportTraceServiceRequest { resource_spans: vec![a, b] }
    };
    let one = |span| request(vec![span]);
    let resource = |n| {
        let resource = Resource { attributes: attributes(n), ..Resource::default() };
        ExportTraceServiceRequest { resource_spans: vec![in_resource(Some(resource), vec![span()])] }
    };
    let of_span = |n| one(Span { attributes: attributes(n), ..span() });
    let links = |n| one(Span { links: vec![link(); n], ..span() });
    let name = |n| one(Span { name: "n".repeat(n), ..span() });
    let event = |n| one(Span { events: vec![Event { name: "n".repeat(n), ..Event::default() }], ..span() });
    let value = |n| one(Span { attributes: vec![text("k", &"v".repeat(n))], ..span() });
    let bytes = |n| one(Span { attributes: vec![attribute("k", Value::BytesValue(vec![0; n]))], ..span() });
    let cases: &[(Make<'_>, usize, RewriteError)] = &[
        (&spans, 3, RewriteError::Spans(3)),
        (&of_span, 2, RewriteError::Attributes(2)),
        (&resource, 2, RewriteError::Attributes(2)),
        (&links, 2, RewriteError::Links(2)),
        (&name, 100, RewriteError::StringBytes(100)),
        (&event, 100, RewriteError::StringBytes(100)),
        (&value, 100, RewriteError::StringBytes(100)),
        (&bytes, 100, RewriteError::StringBytes(100)),
    ];
    for (at, (make, max, error)) in cases.iter().enumerate() {
        assert!(rewrite_within(small(), &make(*max)).is_ok(), "case {at}");
        assert_eq!(rewrite_within(small(), &make(max + 1)), Err(*error), "case {at}");
        assert_eq!(error.reason(), Reason::DecodedTooLarge);
    }
}

#[test]
fn a_body_over_its_limit_is_413_before_it_is_read() {
    let request = request(vec![span()]);
    let len = request.encoded_len();
    let limits = |max_body_bytes| TraceLimits { max_body_bytes, ..TraceLimits::default() };
    assert!(rewrite_within(limits(len), &request).is_ok());
    assert_eq!(rewrite_within(limits(len - 1), &request), Err(RewriteError::BodyBytes(len - 1)));
}

/// An `AnyValue` of so many levels, made from the inside out.
fn nested(levels: usize, maps: bool) -> Vec<u8> {
    let wrap = |number, inner: &[u8]| {
        let mut outer = Vec::with_capacity(inner.len() + 6);
        prost::encoding::bytes::encode(number, &inner.to_vec(), &mut outer);
        outer
    };
    let mut value = vec![0x10, 1];
    for _ in 0..levels {
        // KeyValue.value and KeyValueList.values, or ArrayValue.values; then AnyValue's member.
        let list = if maps { wrap(1, &wrap(2, &value)) } else { wrap(1, &value) };
        value = wrap(if maps { 6 } else { 5 }, &list);
    }
    value
}

/// A body with this `AnyValue` in each place that has attributes.
fn everywhere(value: &[u8]) -> Vec<Vec<u8>> {
    const MARK: &str = "this-is-replaced";
    let mark = |key: &str| vec![text(key, MARK)];
    let one = |span| request(vec![span]);
    let resource = Resource { attributes: mark("k"), ..Resource::default() };
    let scope = InstrumentationScope { attributes: mark("k"), ..InstrumentationScope::default() };
    let mut scoped = in_resource(None, vec![span()]);
    scoped.scope_spans[0].scope = Some(scope);
    let requests = [
        one(Span { attributes: mark("k"), ..span() }),
        one(Span { attributes: mark("http.route"), ..span() }),
        one(Span { events: vec![Event { attributes: mark("k"), ..Event::default() }], ..span() }),
        one(Span { links: vec![Link { attributes: mark("k"), ..link() }], ..span() }),
        ExportTraceServiceRequest { resource_spans: vec![in_resource(Some(resource), vec![span()])] },
        ExportTraceServiceRequest { resource_spans: vec![scoped] },
    ];
    let marked = sample::text("k", MARK).value.unwrap().encode_to_vec();
    requests.iter().map(|request| replace_message(&request.encode_to_vec(), &marked, value).unwrap()).collect()
}

/// Replaces an embedded message wherever it is, with the lengths of all around it.
fn replace_message(message: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    if message == from {
        return Some(to.to_vec());
    }
    let mut replaced = false;
    let edited = scramble::edit_contents(message, &mut |content| {
        let edited = replace_message(content, from, to);
        replaced |= edited.is_some();
        edited
    })?;
    replaced.then_some(edited)
}

#[test]
fn values_nest_to_the_limit_and_no_deeper() {
    for maps in [true, false] {
        for (at, body) in everywhere(&nested(16, maps)).iter().enumerate() {
            assert!(rewrite_bytes(body).is_ok(), "{at}");
        }
        for (at, body) in everywhere(&nested(17, maps)).iter().enumerate() {
            assert_eq!(rewrite_bytes(body), Err(RewriteError::Nesting(16)), "{at}");
        }
    }
    let flat = TraceLimits { max_nesting: 0, ..TraceLimits::default() };
    for body in everywhere(&nested(1, false)) {
        let result = rewrite(&body, &TraceRules::default(), &author(RUNNER), &flat);
        assert_eq!(result, Err(RewriteError::Nesting(0)));
    }
}

#[test]
fn ten_thousand_levels_do_not_overflow_the_stack() {
    let deepest = TraceLimits { max_nesting: usize::MAX, ..TraceLimits::default() };
    for maps in [true, false] {
        for body in everywhere(&nested(10_000, maps)) {
            assert_eq!(rewrite_bytes(&body), Err(RewriteError::Nesting(16)));
            let result = rewrite(&body, &TraceRules::default(), &author(RUNNER), &deepest);
            assert_eq!(result, Err(RewriteError::Nesting(30)));
        }
    }
}

/// What one level of the generated types takes at most, so must we: the ceiling stays below prost's.
#[test]
fn the_deepest_value_that_passes_can_be_decoded() {
    let deepest = TraceLimits { max_nesting: usize::MAX, ..TraceLimits::default() };
    for body in everywhere(&nested(30, true)) {
        assert!(rewrite(&body, &TraceRules::default(), &author(RUNNER), &deepest).is_ok());
        assert!(ExportTraceServiceRequest::decode(&body[..]).is_ok());
    }
}

/// Two bytes each on the wire, a hundred with a runner: they are neither written nor taken in any number.
#[test]
fn many_empty_resources_come_to_nothing() {
    let resources = |n| ExportTraceServiceRequest { resource_spans: vec![ResourceSpans::default(); n] };
    assert!(rewrite_request(&resources(65_536)).1.body.is_empty());
    assert_eq!(rewrite_bytes(&resources(65_537).encode_to_vec()), Err(RewriteError::Resources(65_536)));
}

#[test]
fn the_output_is_within_what_was_to_be_reserved() {
    let author = longest_author();
    let limits = TraceLimits::default();
    for spans in [1, 2, 1_000] {
        let resource_spans = vec![in_resource(None, vec![span()]); spans];
        let body = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        let rewritten = rewrite(&body, &TraceRules::default(), &author, &limits).unwrap();
        let reserved = limits.max_rewritten_bytes(body.len());
        assert!(rewritten.body.len() <= reserved, "{} of {reserved}", rewritten.body.len());
    }
}
