//! Spans and links: opentelemetry/proto/trace/v1/trace.proto.

use telemetry_proto::protobuf::Fields;

use super::attribute::{Attribute, Scalar};
use super::limits::at_most;
use super::pass::Pass;
use super::rules::is_reserved;
use super::shape::{self, EVENT, KEY_VALUE};
use super::{KeyClass, RewriteError};

// Span
const TRACE_ID: u32 = 1;
const SPAN_ID: u32 = 2;
const TRACE_STATE: u32 = 3;
const PARENT_SPAN_ID: u32 = 4;
const NAME: u32 = 5;
const KIND: u32 = 6;
const START: u32 = 7;
const END: u32 = 8;
const ATTRIBUTES: u32 = 9;
const DROPPED_ATTRIBUTES: u32 = 10;
const EVENTS: u32 = 11;
const DROPPED_EVENTS: u32 = 12;
const LINKS: u32 = 13;
const DROPPED_LINKS: u32 = 14;
const STATUS: u32 = 15;
const FLAGS: u32 = 16;
// Link; its first three are those of a span
const LINK_ATTRIBUTES: u32 = 4;
const LINK_DROPPED_ATTRIBUTES: u32 = 5;
const LINK_FLAGS: u32 = 6;
// Status
const STATUS_MESSAGE: u32 = 2;
const STATUS_CODE: u32 = 3;

/// `SPAN_KIND_CONSUMER`.
const MAX_KIND: u64 = 5;
/// `STATUS_CODE_ERROR`.
const MAX_STATUS_CODE: u64 = 2;
/// The bits of `SpanFlags` with a meaning: W3C trace flags, and whether the parent is remote.
const KNOWN_FLAGS: u32 = 0x3ff;

const TRACE_ID_BYTES: usize = 16;
const SPAN_ID_BYTES: usize = 8;

/// Rewrites one span as a field of the message that is open.
///
/// It is read more than once: first for what it has once, of which the last counts, then for its attributes, then for
/// its links. So its fields come out in ascending order, and nothing is gathered in between.
pub(super) fn rewrite_span(message: &[u8], number: u32, pass: &mut Pass<'_>) -> Result<(), RewriteError> {
    let head = Head::read(message, pass)?;
    let span = pass.out.open(number);
    pass.out.bytes(TRACE_ID, head.trace_id);
    pass.out.bytes(SPAN_ID, head.span_id);
    if let Some(parent) = head.parent_span_id {
        pass.out.bytes(PARENT_SPAN_ID, parent);
    }
    if !head.name.is_empty() {
        pass.out.bytes(NAME, head.name.as_bytes());
    }
    if head.kind != 0 {
        pass.out.varint(KIND, head.kind);
    }
    if head.start != 0 {
        pass.out.fixed64(START, head.start);
    }
    if head.end != 0 {
        pass.out.fixed64(END, head.end);
    }
    if head.attributes > 0 {
        for_each(message, ATTRIBUTES, pass, rewrite_attribute)?;
    }
    if head.links > 0 {
        for_each(message, LINKS, pass, rewrite_link)?;
    }
    if head.status_code != 0 {
        let status = pass.out.open(STATUS);
        pass.out.varint(STATUS_CODE, head.status_code);
        pass.out.close(status);
    }
    if head.flags != 0 {
        pass.out.fixed32(FLAGS, head.flags);
    }
    pass.out.close(span);
    Ok(())
}

/// What a span has once, and how many it has of the rest.
#[derive(Default)]
struct Head<'a> {
    trace_id: &'a [u8],
    span_id: &'a [u8],
    parent_span_id: Option<&'a [u8]>,
    name: &'a str,
    kind: u64,
    start: u64,
    end: u64,
    status_code: u64,
    flags: u32,
    attributes: usize,
    links: usize,
}

impl<'a> Head<'a> {
    fn read(message: &'a [u8], pass: &mut Pass<'_>) -> Result<Self, RewriteError> {
        let mut head = Self::default();
        for field in Fields::of(message) {
            let field = field?;
            match field.number {
                TRACE_ID => head.trace_id = field.bytes()?,
                SPAN_ID => head.span_id = field.bytes()?,
                TRACE_STATE => pass.remove_text(field, KeyClass::TraceState)?,
                PARENT_SPAN_ID => head.parent_span_id = Some(field.bytes()?),
                NAME => head.name = pass.limits.text(field)?,
                KIND => head.kind = field.varint()?,
                START => head.start = field.fixed64()?,
                END => head.end = field.fixed64()?,
                ATTRIBUTES => head.attributes += 1,
                EVENTS => {
                    shape::check(field.bytes()?, &EVENT, pass.limits)?;
                    pass.removed.add(KeyClass::Event);
                }
                LINKS => head.links += 1,
                STATUS => head.read_status(field.bytes()?, pass)?,
                FLAGS => head.flags = field.fixed32()?,
                DROPPED_ATTRIBUTES | DROPPED_EVENTS | DROPPED_LINKS => _ = field.varint()?,
                _ => pass.removed.add(KeyClass::Unknown),
            }
        }
        at_most(pass.limits.max_attributes, head.attributes, RewriteError::Attributes)?;
        at_most(pass.limits.max_links, head.links, RewriteError::Links)?;
        head.settle(pass)
    }

    /// A message that is there twice is merged (<https://protobuf.dev/programming-guides/encoding/#last-one-wins>).
    fn read_status(&mut self, message: &[u8], pass: &mut Pass<'_>) -> Result<(), RewriteError> {
        for field in Fields::of(message) {
            let field = field?;
            match field.number {
                STATUS_MESSAGE => pass.remove_text(field, KeyClass::Status)?,
                STATUS_CODE => self.status_code = field.varint()?,
                _ => pass.removed.add(KeyClass::Unknown),
            }
        }
        Ok(())
    }

    /// Judges what counts at the end. The parent of a root span is empty; some write zeros.
    fn settle(mut self, pass: &mut Pass<'_>) -> Result<Self, RewriteError> {
        self.trace_id = known_id(self.trace_id, TRACE_ID_BYTES)?.ok_or(RewriteError::BadId)?;
        self.span_id = known_id(self.span_id, SPAN_ID_BYTES)?.ok_or(RewriteError::BadId)?;
        self.parent_span_id = known_id(self.parent_span_id.unwrap_or_default(), SPAN_ID_BYTES)?;
        self.name = pass.cut(self.name, pass.limits.max_name_bytes);
        self.kind = pass.known(self.kind, MAX_KIND);
        self.status_code = pass.known(self.status_code, MAX_STATUS_CODE);
        if self.flags & !KNOWN_FLAGS != 0 {
            pass.removed.add(KeyClass::Unknown);
            self.flags &= KNOWN_FLAGS;
        }
        Ok(self)
    }
}

fn rewrite_attribute(message: &[u8], pass: &mut Pass<'_>) -> Result<(), RewriteError> {
    let Attribute { key, value } = Attribute::read(message, pass)?;
    if !pass.rules.allows(key) {
        pass.removed.add(if is_reserved(key) { KeyClass::Reserved } else { KeyClass::Attribute });
        return Ok(());
    }
    match value {
        Some(Scalar::Text(text)) => {
            Scalar::Text(pass.cut(text, pass.limits.max_value_bytes)).write(ATTRIBUTES, key, &mut pass.out);
        }
        Some(number) => number.write(ATTRIBUTES, key, &mut pass.out),
        None => pass.removed.add(KeyClass::ValueType),
    }
    Ok(())
}

/// A link is what makes a journey of traces. One without IDs is allowed if it has attributes, and is nothing without.
fn rewrite_link(message: &[u8], pass: &mut Pass<'_>) -> Result<(), RewriteError> {
    let (mut trace_id, mut span_id): (&[u8], &[u8]) = (&[], &[]);
    for field in Fields::of(message) {
        let field = field?;
        match field.number {
            TRACE_ID => trace_id = field.bytes()?,
            SPAN_ID => span_id = field.bytes()?,
            TRACE_STATE => pass.remove_text(field, KeyClass::TraceState)?,
            LINK_ATTRIBUTES => {
                shape::check(field.bytes()?, &KEY_VALUE, pass.limits)?;
                pass.removed.add(KeyClass::LinkAttribute);
            }
            LINK_DROPPED_ATTRIBUTES => _ = field.varint()?,
            LINK_FLAGS => _ = field.fixed32()?,
            _ => pass.removed.add(KeyClass::Unknown),
        }
    }
    match (known_id(trace_id, TRACE_ID_BYTES)?, known_id(span_id, SPAN_ID_BYTES)?) {
        (Some(trace_id), Some(span_id)) => {
            let link = pass.out.open(LINKS);
            pass.out.bytes(TRACE_ID, trace_id);
            pass.out.bytes(SPAN_ID, span_id);
            pass.out.close(link);
        }
        _ => pass.removed.add(KeyClass::Link),
    }
    Ok(())
}

/// The ID, or `None` if it is empty or all zero.
fn known_id(id: &[u8], len: usize) -> Result<Option<&[u8]>, RewriteError> {
    if !id.is_empty() && id.len() != len {
        return Err(RewriteError::BadId);
    }
    Ok(id.iter().any(|byte| *byte != 0).then_some(id))
}

fn for_each(
    message: &[u8],
    number: u32,
    pass: &mut Pass<'_>,
    rewrite: fn(&[u8], &mut Pass<'_>) -> Result<(), RewriteError>,
) -> Result<(), RewriteError> {
    for field in Fields::of(message) {
        let field = field?;
        if field.number == number {
            rewrite(field.bytes()?, pass)?;
        }
    }
    Ok(())
}
