//! A span that is under way.

use std::borrow::Cow;

use tokio::time::Instant;

use super::context::SpanContext;
use super::id::SpanId;
use super::record::{MAX_ATTRIBUTES, MAX_LINKS, SpanKind, SpanRecord, SpanStatus};
use super::writer::SpanWriter;
use crate::writer::LogValue;

/// A span that is under way. It ends when it is dropped, and is written then.
///
/// While the coordinator takes no traces it is nothing at all. Where its trace is not sampled it has its IDs, so that log
/// records can name them, and nothing else.
#[derive(Debug, Default)]
#[must_use = "a span ends when it is dropped"]
pub struct Span {
    context: Option<SpanContext>,
    recording: Option<Box<Recording>>,
}

#[derive(Debug)]
struct Recording {
    writer: SpanWriter,
    record: SpanRecord,
    began: Instant,
    /// Attributes and links over the limit.
    is_full: bool,
}

impl Span {
    /// A span that is nothing.
    pub const fn none() -> Self {
        Self { context: None, recording: None }
    }

    pub(super) const fn unsampled(context: SpanContext) -> Self {
        Self { context: Some(context), recording: None }
    }

    pub(super) fn recorded(writer: SpanWriter, record: SpanRecord) -> Self {
        let context = Some(record.context);
        Self { context, recording: Some(Box::new(Recording { writer, record, began: Instant::now(), is_full: false })) }
    }

    /// Its IDs: for log records, `traceresponse`, links, and calls to others. `None` while traces are off.
    #[must_use]
    pub const fn context(&self) -> Option<SpanContext> {
        self.context
    }

    /// Whether it is recorded; if not, there is no need to find out what to say about it.
    #[must_use]
    pub const fn is_recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// Begins a span below this one.
    pub fn child(&self, name: impl Into<Cow<'static, str>>) -> Self {
        let Some(above) = self.context else { return Self::none() };
        let context = SpanContext { span_id: SpanId::random(), ..above };
        match &self.recording {
            Some(recording) => recording.writer.begin(context, Some(above.span_id), name.into()),
            None => Self::unsampled(context),
        }
    }

    /// Says which side of a call it is.
    pub fn kind(mut self, kind: SpanKind) -> Self {
        if let Some(recording) = &mut self.recording {
            recording.record.kind = kind;
        }
        self
    }

    /// Sets an attribute, in the place of one with the same key.
    pub fn set(&mut self, key: impl Into<Cow<'static, str>>, value: impl Into<LogValue<'static>>) {
        if let Some(recording) = &mut self.recording {
            // One more than is sent, so that it is counted that there were more.
            recording.is_full |= recording.record.attributes.len() > MAX_ATTRIBUTES;
            if !recording.is_full {
                recording.record.set(key.into(), value.into());
            }
        }
    }

    /// Sets an attribute of a span that is being made.
    pub fn with(mut self, key: impl Into<Cow<'static, str>>, value: impl Into<LogValue<'static>>) -> Self {
        self.set(key, value);
        self
    }

    /// Says that it has to do with a span of another trace.
    pub fn link(&mut self, to: SpanContext) {
        if let Some(recording) = &mut self.recording
            && recording.record.links.len() <= MAX_LINKS
        {
            recording.record.links.push(to);
        }
    }

    /// Says how it ends.
    pub fn set_status(&mut self, status: SpanStatus) {
        if let Some(recording) = &mut self.recording {
            recording.record.status = status;
        }
    }

    /// Ends it now.
    pub fn end(self) {}

    #[cfg(feature = "tracing-layer")]
    pub(super) fn set_name(&mut self, name: String) {
        if let Some(recording) = &mut self.recording {
            recording.record.name = name.into();
        }
    }

    #[cfg(feature = "tracing-layer")]
    pub(super) fn set_kind(&mut self, kind: SpanKind) {
        if let Some(recording) = &mut self.recording {
            recording.record.kind = kind;
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(recording) = self.recording.take() {
            let Recording { writer, mut record, began, .. } = *recording;
            // A clock that is set meanwhile does not change how long it took.
            record.end = record.start + began.elapsed();
            // What is not taken is counted.
            let _ = writer.write(&record);
        }
    }
}
