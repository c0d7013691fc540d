use memchr::memmem::find;
use prost::Message;

use super::sample::{Canaries, canary_request};
use super::scramble::{REQUEST, RawField, edit};
use super::*;
use crate::traces::KeyClass;

/// A canary of every position, and one in an unknown field of every message.
fn canary_body(canaries: &mut Canaries) -> Vec<u8> {
    let body = canary_request(canaries).encode_to_vec();
    let mut messages = 0;
    edit(&body, &REQUEST, &mut |_, mut fields| {
        messages += 1;
        let canary = canaries.put(&format!("unknown-field-of-message-{messages}"));
        fields.push(RawField::len_delimited(999, canary.as_bytes()));
        fields
    })
}

#[test]
fn a_canary_of_no_position_reaches_the_store() {
    let mut canaries = Canaries::default();
    let body = canary_body(&mut canaries);
    assert!(canaries.all().len() > 150, "{}", canaries.all().len());
    for canary in canaries.all() {
        assert!(find(&body, canary.as_bytes()).is_some(), "{canary} was not sent");
    }
    for rules in [TraceRules::default(), TraceRules::allow([]).unwrap()] {
        let runner = author(RUNNER);
        let rewritten = rewrite(&body, &rules, &runner, &TraceLimits::default()).unwrap();
        for canary in canaries.all() {
            assert!(find(&rewritten.body, canary.as_bytes()).is_none(), "{canary} arrived");
        }
        assert!(find(&rewritten.body, b"canary").is_none());
        assert!(find(&rewritten.body, b"GET /volumes").is_some());
    }
}

#[test]
fn what_was_removed_is_counted_by_class() {
    let body = canary_request(&mut Canaries::default()).encode_to_vec();
    let removed = rewrite_bytes(&body).unwrap().removed;
    let counts: Vec<_> = removed.iter().collect();
    assert_eq!(
        counts,
        [
            // Of 17 attributes of the span: 11 with other keys, 3 reserved ones, 3 without a scalar value.
            (KeyClass::Attribute, 11),
            // 3 of the resource as well.
            (KeyClass::Reserved, 6),
            (KeyClass::ValueType, 6),
            (KeyClass::Event, 1),
            (KeyClass::Link, 1),
            (KeyClass::LinkAttribute, 36),
            (KeyClass::Status, 1),
            // 11 attributes, an entity, a schema URL.
            (KeyClass::Resource, 13),
            (KeyClass::Scope, 2),
            (KeyClass::TraceState, 3),
            (KeyClass::Truncated, 1),
        ]
    );
    let unknown = rewrite_bytes(&canary_body(&mut Canaries::default())).unwrap().removed.get(KeyClass::Unknown);
    assert!(unknown > 10, "{unknown}");
}
