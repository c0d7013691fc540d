//! The same request in other bytes: fields in another order, twice, split in two, or with unknown ones between.

use proptest::prelude::RngExt;
use proptest::test_runner::TestRng;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, encode_key, encode_varint, skip_field};

/// Which fields of a message are messages.
pub(super) struct Tree(&'static [(u32, &'static Tree)]);

const LEAF: Tree = Tree(&[]);
static ANY_VALUE: Tree = Tree(&[(5, &Tree(&[(1, &LEAF)])), (6, &Tree(&[(1, &LEAF)]))]);
static KEY_VALUE: Tree = Tree(&[(2, &ANY_VALUE)]);
static RESOURCE: Tree = Tree(&[(1, &KEY_VALUE), (3, &LEAF)]);
static SCOPE: Tree = Tree(&[(3, &KEY_VALUE)]);
static EVENT: Tree = Tree(&[(3, &KEY_VALUE)]);
static LINK: Tree = Tree(&[(4, &KEY_VALUE)]);
static SPAN: Tree = Tree(&[(9, &KEY_VALUE), (11, &EVENT), (13, &LINK), (15, &LEAF)]);
static SCOPE_SPANS: Tree = Tree(&[(1, &SCOPE), (2, &SPAN)]);
static RESOURCE_SPANS: Tree = Tree(&[(1, &RESOURCE), (2, &SCOPE_SPANS)]);
pub(super) static REQUEST: Tree = Tree(&[(1, &RESOURCE_SPANS)]);

/// What is done to every message of a tree: it gets its fields, key and content.
type Edit<'e> = dyn FnMut(Vec<RawField>) -> Vec<RawField> + 'e;

#[derive(Clone)]
pub(super) struct RawField {
    number: u32,
    wire_type: WireType,
    /// Without the key; with the length, if there is one.
    rest: Vec<u8>,
}

impl RawField {
    pub(super) fn len_delimited(number: u32, content: &[u8]) -> Self {
        let mut rest = Vec::new();
        encode_varint(content.len() as u64, &mut rest);
        rest.extend_from_slice(content);
        Self { number, wire_type: WireType::LengthDelimited, rest }
    }

    fn content(&self) -> Option<&[u8]> {
        let mut rest = &self.rest[..];
        (self.wire_type == WireType::LengthDelimited).then(|| {
            prost::encoding::decode_varint(&mut rest).unwrap();
            rest
        })
    }
}

/// Edits every message of a valid body, innermost first.
pub(super) fn edit(message: &[u8], tree: &Tree, edit_fields: &mut Edit<'_>) -> Vec<u8> {
    let mut fields = fields_of(message);
    for field in &mut fields {
        let embedded = tree.0.iter().find(|(number, _)| *number == field.number);
        if let (Some((_, tree)), Some(content)) = (embedded, field.content()) {
            *field = RawField::len_delimited(field.number, &edit(content, tree, edit_fields));
        }
    }
    encode(&edit_fields(fields))
}

/// Edits the contents of the length-delimited fields of a message. `None` if it is no message.
pub(super) fn edit_contents(message: &[u8], edit: &mut dyn FnMut(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut fields = try_fields_of(message)?;
    for field in &mut fields {
        if let Some(edited) = field.content().and_then(&mut *edit) {
            *field = RawField::len_delimited(field.number, &edited);
        }
    }
    Some(encode(&fields))
}

/// Shuffles and doubles fields, splits messages, and puts unknown fields between.
pub(super) fn scramble(message: &[u8], rng: &mut TestRng) -> Vec<u8> {
    edit(message, &REQUEST, &mut |fields| {
        let mut scrambled: Vec<RawField> = Vec::new();
        for field in fields {
            if rng.random_ratio(1, 10) {
                scrambled.push(field.clone());
            }
            if rng.random_ratio(1, 20) {
                scrambled.push(RawField { number: 1_000, wire_type: WireType::Varint, rest: vec![7] });
            }
            scrambled.push(field);
        }
        if rng.random_ratio(1, 3) {
            for at in (1..scrambled.len()).rev() {
                scrambled.swap(at, rng.random_range(0..=at));
            }
        }
        scrambled
    })
}

fn encode(fields: &[RawField]) -> Vec<u8> {
    let mut out = Vec::new();
    for field in fields {
        encode_key(field.number, field.wire_type, &mut out);
        out.extend_from_slice(&field.rest);
    }
    out
}

fn fields_of(message: &[u8]) -> Vec<RawField> {
    try_fields_of(message).unwrap()
}

fn try_fields_of(message: &[u8]) -> Option<Vec<RawField>> {
    let mut rest = message;
    let mut fields = Vec::new();
    while rest.has_remaining() {
        let (number, wire_type) = decode_key(&mut rest).ok()?;
        let before = rest;
        skip_field(wire_type, number, &mut rest, DecodeContext::default()).ok()?;
        fields.push(RawField { number, wire_type, rest: before[..before.len() - rest.len()].to_vec() });
    }
    Some(fields)
}
