//! A log record as its author sees it.

use std::borrow::Cow;

use crate::trace::SpanContext;

/// One log record. Its time is the moment of the write.
#[derive(Debug, Clone, PartialEq)]
pub struct LogRecord<'a> {
    pub(super) entity: Cow<'a, str>,
    pub(super) stream: Cow<'a, str>,
    pub(super) message: Cow<'a, str>,
    pub(super) trace_id: Option<Cow<'a, str>>,
    pub(super) span_id: Option<Cow<'a, str>>,
    pub(super) attributes: Vec<(Cow<'a, str>, LogValue<'a>)>,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum LogValue<'a> {
    /// Text.
    Text(Cow<'a, str>),
    /// A whole number.
    Integer(i64),
    /// A float. NaN and the infinities become text.
    Float(f64),
    /// True or false.
    Bool(bool),
}

impl<'a> LogRecord<'a> {
    /// A record about `entity` on `stream` (`stdout`, `stderr`, ...). Both name the log stream in the store: they must
    /// not change from record to record. The store needs a message: an empty one becomes `-`.
    #[must_use]
    pub fn new(
        entity: impl Into<Cow<'a, str>>,
        stream: impl Into<Cow<'a, str>>,
        message: impl Into<Cow<'a, str>>,
    ) -> Self {
        Self {
            entity: entity.into(),
            stream: stream.into(),
            message: message.into(),
            trace_id: None,
            span_id: None,
            attributes: Vec::new(),
        }
    }

    /// Names the trace that the record belongs to, in hex.
    #[must_use]
    pub fn trace_id(mut self, id: impl Into<Cow<'a, str>>) -> Self {
        self.trace_id = Some(id.into());
        self
    }

    /// Names the span that the record belongs to, in hex.
    #[must_use]
    pub fn span_id(mut self, id: impl Into<Cow<'a, str>>) -> Self {
        self.span_id = Some(id.into());
        self
    }

    /// Names the span that the record belongs to, and its trace, sampled or not. Outside of spans there is nothing to
    /// name.
    #[must_use]
    pub fn in_span(self, span: Option<SpanContext>) -> Self {
        match span {
            Some(span) => self.trace_id(span.trace_id.to_string()).span_id(span.span_id.to_string()),
            None => self,
        }
    }

    /// Adds a field. One that has the name of a field of the contract gets `attribute.` before its name.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<LogValue<'a>>) -> Self {
        self.attributes.push((name.into(), value.into()));
        self
    }
}

macro_rules! value_from {
    ($($from:ty => $into:expr;)*) => {$(
        impl<'a> From<$from> for LogValue<'a> {
            fn from(value: $from) -> Self {
                $into(value)
            }
        }
    )*};
}

value_from! {
    &'a str => |text: &'a str| Self::Text(text.into());
    String => |text: String| Self::Text(text.into());
    Cow<'a, str> => Self::Text;
    i64 => Self::Integer;
    i32 => |number: i32| Self::Integer(number.into());
    u32 => |number: u32| Self::Integer(number.into());
    f64 => Self::Float;
    bool => Self::Bool;
}
