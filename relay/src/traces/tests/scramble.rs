//! Bytes that an encoder would not write, but a decoder takes: fields in another order, twice, with another value, or
//! with unknown ones between.

use proptest::prelude::RngExt;
use proptest::test_runner::TestRng;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, encode_key, encode_varint, skip_field};

/// Which fields of a message are messages.
pub(super) struct Tree(&'static [(u32, &'static Tree)]);

static LEAF: Tree = Tree(&[]);
static STATUS: Tree = Tree(&[]);
static LIST: Tree = Tree(&[(1, &LEAF)]);
static ANY_VALUE: Tree = Tree(&[(5, &LIST), (6, &LIST)]);
static KEY_VALUE: Tree = Tree(&[(2, &ANY_VALUE)]);
static RESOURCE: Tree = Tree(&[(1, &KEY_VALUE), (3, &LEAF)]);
static SCOPE: Tree = Tree(&[(3, &KEY_VALUE)]);
static EVENT: Tree = Tree(&[(3, &KEY_VALUE)]);
static LINK: Tree = Tree(&[(4, &KEY_VALUE)]);
static SPAN: Tree = Tree(&[(9, &KEY_VALUE), (11, &EVENT), (13, &LINK), (15, &STATUS)]);
static SCOPE_SPANS: Tree = Tree(&[(1, &SCOPE), (2, &SPAN)]);
static RESOURCE_SPANS: Tree = Tree(&[(1, &RESOURCE), (2, &SCOPE_SPANS)]);
pub(super) static REQUEST: Tree = Tree(&[(1, &RESOURCE_SPANS)]);

/// What is done to every message of a tree: it gets the kind of message and its fields.
type Edit<'e> = dyn FnMut(&'static Tree, Vec<RawField>) -> Vec<RawField> + 'e;

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
pub(super) fn edit(message: &[u8], tree: &'static Tree, edit_fields: &mut Edit<'_>) -> Vec<u8> {
    let mut fields = fields_of(message);
    for field in &mut fields {
        let embedded = tree.0.iter().find(|(number, _)| *number == field.number);
        if let (Some((_, tree)), Some(content)) = (embedded, field.content()) {
            *field = RawField::len_delimited(field.number, &edit(content, tree, edit_fields));
        }
    }
    encode(&edit_fields(tree, fields))
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

/// Shuffles and doubles fields, adds some of another message of the same kind, and puts unknown ones between.
pub(super) fn scramble(message: &[u8], rng: &mut TestRng) -> Vec<u8> {
    let mut others: Vec<(&'static Tree, RawField)> = Vec::new();
    edit(message, &REQUEST, &mut |kind, fields| {
        let mut scrambled: Vec<RawField> = Vec::new();
        for field in fields {
            if rng.random_ratio(1, 10) {
                scrambled.push(field.clone());
            }
            if rng.random_ratio(1, 20) {
                scrambled.push(RawField { number: 1_000, wire_type: WireType::Varint, rest: vec![7] });
            }
            others.push((kind, field.clone()));
            scrambled.push(field);
        }
        let alike: Vec<_> = others.iter().filter(|(other, _)| std::ptr::eq(*other, kind)).collect();
        if rng.random_ratio(1, 5) && !alike.is_empty() {
            scrambled.push(alike[rng.random_range(0..alike.len())].1.clone());
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
