//! Attributes: `KeyValue` and `AnyValue` of opentelemetry/proto/common/v1/common.proto.

use telemetry_proto::protobuf::{Fields, Writer};

use super::pass::Pass;
use super::shape::{self, ARRAY_VALUE, KEY_VALUE_LIST};
use super::{KeyClass, RewriteError};

// KeyValue
const KEY: u32 = 1;
const VALUE: u32 = 2;
const KEY_STRINDEX: u32 = 3;
// AnyValue
const STRING: u32 = 1;
const BOOL: u32 = 2;
const INT: u32 = 3;
const DOUBLE: u32 = 4;
const ARRAY: u32 = 5;
const KVLIST: u32 = 6;
const BYTES: u32 = 7;
const STRING_STRINDEX: u32 = 8;

/// An attribute, borrowed from the body.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Attribute<'a> {
    pub(super) key: &'a str,
    /// `None` for no value at all, an array, a map, or bytes.
    pub(super) value: Option<Scalar<'a>>,
}

/// A value that may stay. Numbers are as on the wire.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scalar<'a> {
    Text(&'a str),
    Bool(bool),
    Int(u64),
    Double(u64),
}

impl<'a> Attribute<'a> {
    pub(super) fn read(message: &'a [u8], pass: &mut Pass<'_>) -> Result<Self, RewriteError> {
        let mut attribute = Self { key: "", value: None };
        for field in Fields::of(message) {
            let field = field?;
            match field.number {
                KEY => attribute.key = pass.limits.text(field)?,
                VALUE => attribute.read_value(field.bytes()?, pass)?,
                KEY_STRINDEX => _ = field.varint()?,
                _ => pass.removed.add(KeyClass::Unknown),
            }
        }
        Ok(attribute)
    }

    /// Merges what a further `AnyValue` says: of all members of the `oneof`, the last counts.
    fn read_value(&mut self, message: &'a [u8], pass: &mut Pass<'_>) -> Result<(), RewriteError> {
        for field in Fields::of(message) {
            let field = field?;
            self.value = match field.number {
                STRING => Some(Scalar::Text(pass.limits.text(field)?)),
                BOOL => Some(Scalar::Bool(field.varint()? != 0)),
                INT => Some(Scalar::Int(field.varint()?)),
                DOUBLE => Some(Scalar::Double(field.fixed64()?)),
                ARRAY => shape::check_nested(field.bytes()?, &ARRAY_VALUE, pass.limits).map(|()| None)?,
                KVLIST => shape::check_nested(field.bytes()?, &KEY_VALUE_LIST, pass.limits).map(|()| None)?,
                BYTES => pass.limits.bytes(field).map(|_| None)?,
                STRING_STRINDEX => field.varint().map(|_| None)?,
                _ => {
                    pass.removed.add(KeyClass::Unknown);
                    self.value
                }
            };
        }
        Ok(())
    }
}

impl Scalar<'_> {
    /// Writes an attribute with this value as a field of the message that is open. There is no attribute without a value:
    /// one build of VictoriaTraces takes it for granted that each has one.
    pub(super) fn write(self, number: u32, key: &str, out: &mut Writer) {
        let attribute = out.open(number);
        out.bytes(KEY, key.as_bytes());
        let value = out.open(VALUE);
        match self {
            Self::Text(text) => out.bytes(STRING, text.as_bytes()),
            Self::Bool(value) => out.varint(BOOL, value.into()),
            Self::Int(value) => out.varint(INT, value),
            Self::Double(bits) => out.fixed64(DOUBLE, bits),
        }
        out.close(value);
        out.close(attribute);
    }
}
