//! The shapes of OTLP's messages, for what is removed: it is walked through, so that a malformed body is refused
//! wherever it is malformed, and nothing else is done with it.

use telemetry_proto::protobuf::Fields;

use super::{RewriteError, TraceLimits};

/// The known fields of a message.
pub(super) struct Shape(&'static [(u32, Kind)]);

/// What a field holds.
#[derive(Clone, Copy)]
enum Kind {
    Varint,
    Fixed64,
    Bytes,
    Text,
    Message(&'static Shape),
    /// A message that may hold its own kind again: a level of nesting.
    Nested(&'static Shape),
}

// opentelemetry/proto/common/v1/common.proto
pub(super) static KEY_VALUE: Shape = Shape(&[(1, Kind::Text), (2, Kind::Message(&ANY_VALUE)), (3, Kind::Varint)]);
static ANY_VALUE: Shape = Shape(&[
    (1, Kind::Text),
    (2, Kind::Varint),
    (3, Kind::Varint),
    (4, Kind::Fixed64),
    (5, Kind::Nested(&ARRAY_VALUE)),
    (6, Kind::Nested(&KEY_VALUE_LIST)),
    (7, Kind::Bytes),
    (8, Kind::Varint),
]);
pub(super) static ARRAY_VALUE: Shape = Shape(&[(1, Kind::Message(&ANY_VALUE))]);
pub(super) static KEY_VALUE_LIST: Shape = Shape(&[(1, Kind::Message(&KEY_VALUE))]);
pub(super) static SCOPE: Shape =
    Shape(&[(1, Kind::Text), (2, Kind::Text), (3, Kind::Message(&KEY_VALUE)), (4, Kind::Varint)]);
pub(super) static ENTITY_REF: Shape = Shape(&[(1, Kind::Text), (2, Kind::Text), (3, Kind::Text), (4, Kind::Text)]);
// opentelemetry/proto/trace/v1/trace.proto
pub(super) static EVENT: Shape =
    Shape(&[(1, Kind::Fixed64), (2, Kind::Text), (3, Kind::Message(&KEY_VALUE)), (4, Kind::Varint)]);

/// Whether `message` has this shape. Fields that the shape does not know may hold anything.
pub(super) fn check(message: &[u8], shape: &'static Shape, limits: &TraceLimits) -> Result<(), RewriteError> {
    check_below(message, shape, limits, limits.nesting())
}

/// The same for a message that is itself a level of nesting.
pub(super) fn check_nested(message: &[u8], shape: &'static Shape, limits: &TraceLimits) -> Result<(), RewriteError> {
    check_below(message, shape, limits, one_less(limits.nesting(), limits)?)
}

/// `levels` bounds the recursion: every cycle of shapes passes a [`Kind::Nested`].
fn check_below(message: &[u8], shape: &'static Shape, limits: &TraceLimits, levels: usize) -> Result<(), RewriteError> {
    for field in Fields::of(message) {
        let field = field?;
        let Some((_, kind)) = shape.0.iter().find(|(number, _)| *number == field.number) else { continue };
        match kind {
            Kind::Varint => _ = field.varint()?,
            Kind::Fixed64 => _ = field.fixed64()?,
            Kind::Bytes => _ = limits.bytes(field)?,
            Kind::Text => _ = limits.text(field)?,
            Kind::Message(shape) => check_below(field.bytes()?, shape, limits, levels)?,
            Kind::Nested(shape) => check_below(field.bytes()?, shape, limits, one_less(levels, limits)?)?,
        }
    }
    Ok(())
}

fn one_less(levels: usize, limits: &TraceLimits) -> Result<usize, RewriteError> {
    levels.checked_sub(1).ok_or(RewriteError::Nesting(limits.nesting()))
}
