//! Attributes: `KeyValue` and `AnyValue` of opentelemetry/proto/common/v1/common.proto.

use super::pass::Pass;
use super::shape::{self, ARRAY_VALUE, KEY_VALUE_LIST};
use super::wire::{Fields, Writer};
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
    pub(super) value: Value<'a>,
}

/// The value of an attribute. Numbers are as on the wire.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Text(&'a str),
    Bool(bool),
    Int(u64),
    Double(u64),
    /// None at all, an array, a map, or bytes.
    NoScalar,
}

impl<'a> Attribute<'a> {
    pub(super) fn read(message: &'a [u8], pass: &mut Pass<'_>) -> Result<Self, RewriteError> {
        let mut attribute = Self { key: "", value: Value::NoScalar };
        for field in Fields::of(message) {
            let field = field?;
            match field.number {
                KEY => attribute.key = pass.limits.text(field)?,
                VALUE => attribute.value.read(field.bytes()?, pass)?,
                KEY_STRINDEX => _ = field.varint()?,
                _ => pass.removed.add(KeyClass::Unknown),
            }
        }
        Ok(attribute)
    }

    /// Writes the attribute as a field of the message that is open. One without a scalar value is left out: a build of
    /// VictoriaTraces that reads a key without a value does not survive it.
    pub(super) fn write(&self, number: u32, out: &mut Writer) {
        let attribute = out.open(number);
        out.bytes(KEY, self.key.as_bytes());
        let value = out.open(VALUE);
        match self.value {
            Value::Text(text) => out.bytes(STRING, text.as_bytes()),
            Value::Bool(value) => out.varint(BOOL, value.into()),
            Value::Int(value) => out.varint(INT, value),
            Value::Double(bits) => out.fixed64(DOUBLE, bits),
            Value::NoScalar => return out.abandon(attribute),
        }
        out.close(value);
        out.close(attribute);
    }
}

impl<'a> Value<'a> {
    /// Merges what a further `AnyValue` says into this one: the last member of the `oneof` counts.
    fn read(&mut self, message: &'a [u8], pass: &mut Pass<'_>) -> Result<(), RewriteError> {
        for field in Fields::of(message) {
            let field = field?;
            *self = match field.number {
                STRING => Self::Text(pass.limits.text(field)?),
                BOOL => Self::Bool(field.varint()? != 0),
                INT => Self::Int(field.varint()?),
                DOUBLE => Self::Double(field.fixed64()?),
                ARRAY => {
                    shape::check_nested(field.bytes()?, &ARRAY_VALUE, pass.limits)?;
                    Self::NoScalar
                }
                KVLIST => {
                    shape::check_nested(field.bytes()?, &KEY_VALUE_LIST, pass.limits)?;
                    Self::NoScalar
                }
                BYTES => {
                    pass.limits.bytes(field)?;
                    Self::NoScalar
                }
                STRING_STRINDEX => {
                    field.varint()?;
                    Self::NoScalar
                }
                _ => {
                    pass.removed.add(KeyClass::Unknown);
                    *self
                }
            };
        }
        Ok(())
    }
}
