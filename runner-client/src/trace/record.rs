//! A span that has ended.

use std::borrow::Cow;
use std::time::SystemTime;

use super::context::SpanContext;
use super::id::SpanId;
use crate::writer::LogValue;

/// The most attributes of a span. More are cut and counted.
pub(super) const MAX_ATTRIBUTES: usize = 64;
/// The most links of a span. More are cut and counted.
pub(super) const MAX_LINKS: usize = 32;
/// The longest name of a span, in bytes: what the relay keeps.
pub(super) const MAX_NAME_BYTES: usize = 256;
/// The longest key of an attribute, in bytes. A longer one is cut with its value, since the store keeps none.
pub(super) const MAX_KEY_BYTES: usize = 118;
/// The longest text of an attribute, in bytes: what the relay keeps.
pub(super) const MAX_TEXT_BYTES: usize = 1_024;

/// A span that has ended, as it is to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanRecord {
    /// Its IDs.
    pub context: SpanContext,
    /// The span above it, of the same trace.
    pub parent: Option<SpanId>,
    /// What was done: of low cardinality, without IDs or paths.
    pub name: Cow<'static, str>,
    /// Its side of a call.
    pub kind: SpanKind,
    /// When it began.
    pub start: SystemTime,
    /// When it ended.
    pub end: SystemTime,
    /// What is known about it. The coordinator keeps those that it lists. Of two with one key the last counts.
    pub attributes: Vec<(Cow<'static, str>, LogValue<'static>)>,
    /// Spans of other traces that it has to do with.
    pub links: Vec<SpanContext>,
    /// How it ended.
    pub status: SpanStatus,
}

/// A span's side of a call. The values are those of OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SpanKind {
    /// No call: work within a process.
    #[default]
    Internal = 1,
    /// The called side.
    Server = 2,
    /// The calling side.
    Client = 3,
    /// Hands a message over.
    Producer = 4,
    /// Takes a message.
    Consumer = 5,
}

/// How a span ended. The values are those of OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SpanStatus {
    /// Nobody said.
    #[default]
    Unset = 0,
    /// Well, as someone decided.
    Ok = 1,
    /// With an error.
    Error = 2,
}

impl SpanRecord {
    /// Sets an attribute, in the place of one with the same key.
    pub(super) fn set(&mut self, key: Cow<'static, str>, value: LogValue<'static>) {
        match self.attributes.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = value,
            None => self.attributes.push((key, value)),
        }
    }
}
