use prost::encoding::{WireType, encode_key};
use telemetry_proto::Reason;

use super::sample::{Canaries, canary_request, link, request, span};
use super::*;
use crate::traces::WireError;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::Link;

/// The way from a request down to each kind of message, as the numbers of the fields that embed it.
const MESSAGES: &[(&str, &[u32])] = &[
    ("ExportTraceServiceRequest", &[]),
    ("ResourceSpans", &[1]),
    ("Resource", &[1, 1]),
    ("EntityRef", &[1, 1, 3]),
    ("ScopeSpans", &[1, 2]),
    ("InstrumentationScope", &[1, 2, 1]),
    ("Span", &[1, 2, 2]),
    ("Span.Event", &[1, 2, 2, 11]),
    ("Span.Link", &[1, 2, 2, 13]),
    ("Status", &[1, 2, 2, 15]),
    ("KeyValue of a resource", &[1, 1, 1]),
    ("KeyValue of a scope", &[1, 2, 1, 3]),
    ("KeyValue of a span", &[1, 2, 2, 9]),
    ("KeyValue of an event", &[1, 2, 2, 11, 3]),
    ("KeyValue of a link", &[1, 2, 2, 13, 4]),
    ("AnyValue of a span", &[1, 2, 2, 9, 2]),
    ("AnyValue of an event", &[1, 2, 2, 11, 3, 2]),
    ("ArrayValue of a span", &[1, 2, 2, 9, 2, 5]),
    ("KeyValueList of a span", &[1, 2, 2, 9, 2, 6]),
    ("AnyValue in an array of a link", &[1, 2, 2, 13, 4, 2, 5, 1]),
    ("KeyValue in a map of a resource", &[1, 1, 1, 2, 6, 1]),
];

/// `bytes` as the whole of a message, or behind what a span must have.
fn embed(path: &[u32], bytes: &[u8]) -> Vec<u8> {
    let (mut message, mut path) = (bytes.to_vec(), path);
    loop {
        if path == [1, 2, 2] {
            message = [span().encode_to_vec(), message].concat();
        }
        let Some((number, parents)) = path.split_last() else { return message };
        let mut outer = Vec::new();
        prost::encoding::bytes::encode(*number, &message, &mut outer);
        (message, path) = (outer, parents);
    }
}

/// Whether we take a body if and only if the generated types do. They know nothing of IDs.
fn assert_agreement(body: &[u8], context: &str) {
    let theirs = ExportTraceServiceRequest::decode(body);
    match rewrite_bytes(body) {
        Err(RewriteError::BadId) => {}
        Err(RewriteError::Malformed(WireError::Group)) => {}
        ours => assert_eq!(ours.is_ok(), theirs.is_ok(), "{context}: {ours:?}, {theirs:?}"),
    }
}

#[test]
fn each_field_of_each_message_takes_its_own_wire_type_only() {
    let payloads: &[(WireType, &[u8])] = &[
        (WireType::Varint, &[1]),
        (WireType::SixtyFourBit, &[0; 8]),
        (WireType::ThirtyTwoBit, &[0; 4]),
        (WireType::LengthDelimited, &[0]),
        (WireType::LengthDelimited, &[2, 0xff, 0xff]),
    ];
    let mut refused = 0;
    for (name, path) in MESSAGES {
        for number in 1..20 {
            for (wire_type, payload) in payloads {
                let mut field = Vec::new();
                encode_key(number, *wire_type, &mut field);
                field.extend_from_slice(payload);
                let body = embed(path, &field);
                assert_agreement(&body, &format!("{name}, field {number}, {wire_type:?} {payload:x?}"));
                if let Err(error) = rewrite_bytes(&body) {
                    assert_eq!(error.reason(), Reason::BodyMalformed);
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 200, "{refused}");
}

#[test]
fn garbage_in_any_message_is_400() {
    let cases: &[(&[u8], WireError)] = &[
        (&[0x0a, 5, 0], WireError::Truncated),
        (&[0xff], WireError::Truncated),
        (&[0xff; 11], WireError::VarintTooLong),
        (&[0x00, 0], WireError::FieldNumber),
        (&[0xfe, 0x7f, 0], WireError::WireType),
        (&[0xfb, 0x7f, 0xfc, 0x7f], WireError::Group),
    ];
    for (name, path) in MESSAGES {
        for (garbage, fault) in cases {
            let result = rewrite_bytes(&embed(path, garbage));
            assert_eq!(result, Err(RewriteError::Malformed(*fault)), "{name}: {garbage:x?}");
        }
    }
    assert_eq!(RewriteError::Malformed(WireError::Truncated).reason(), Reason::BodyMalformed);
}

#[test]
fn a_body_that_breaks_off_anywhere_is_400() {
    let body = canary_request(&mut Canaries::default()).encode_to_vec();
    for cut in 1..body.len() {
        let error = rewrite_bytes(&body[..cut]).unwrap_err();
        assert_eq!(error, RewriteError::Malformed(WireError::Truncated), "cut at {cut}");
    }
    assert!(rewrite_bytes(&body).is_ok());
}

#[test]
fn ids_have_their_length_and_are_not_zero() {
    let (id16, id8): (&[u8], &[u8]) = (&[1; 16], &[1; 8]);
    let bad_spans = [
        Span { trace_id: vec![], ..span() },
        Span { trace_id: vec![0; 16], ..span() },
        Span { trace_id: vec![1; 15], ..span() },
        Span { trace_id: vec![1; 17], ..span() },
        Span { trace_id: id8.to_vec(), ..span() },
        Span { span_id: vec![], ..span() },
        Span { span_id: vec![0; 8], ..span() },
        Span { span_id: vec![1; 7], ..span() },
        Span { span_id: id16.to_vec(), ..span() },
        Span { parent_span_id: vec![1; 7], ..span() },
        Span { parent_span_id: id16.to_vec(), ..span() },
        Span { links: vec![Link { trace_id: vec![1; 15], ..link() }], ..span() },
        Span { links: vec![Link { span_id: vec![0; 9], ..link() }], ..span() },
        Span::default(),
    ];
    for bad in bad_spans {
        let body = request(vec![span(), bad.clone()]).encode_to_vec();
        assert_eq!(rewrite_bytes(&body), Err(RewriteError::BadId), "{bad:?}");
    }
    assert_eq!(RewriteError::BadId.reason(), Reason::BodyMalformed);
}

#[test]
fn an_error_tells_nothing_of_the_body() {
    let body = embed(&[1, 2, 2], b"\x2a\x07canary\xff");
    let error = rewrite_bytes(&body).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("canary"));
}
