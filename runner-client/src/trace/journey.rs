//! Traces that cross processes and retries.
//!
//! A command is accepted in one process, attempted in others, now and later, and settled somewhere. All of them know its
//! ID, and nothing else need be stored or passed on: trace and root span follow from it.

use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};

use super::context::SpanContext;
use super::id::{SpanId, TraceId};
use super::record::{SpanKind, SpanRecord, SpanStatus};
use super::span::Span;
use super::writer::SpanWriter;
use crate::delivery::{NotTaken, Taken};

/// The way of one command, from acceptance to settlement: one trace.
///
/// The trace ID is the first 16 bytes of SHA-256 of the command ID, and the root span's ID the 8 bytes after them. A
/// command is a control request: its journey is recorded whenever the coordinator takes traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journey {
    command_id: String,
    root: SpanContext,
}

impl Journey {
    /// The journey of a command.
    #[must_use]
    pub fn of(command_id: impl Into<String>) -> Self {
        let command_id = command_id.into();
        let hash = digest(&SHA256, command_id.as_bytes());
        let (trace_id, rest) = hash.as_ref().split_at(16);
        let trace_id = trace_id.try_into().ok().and_then(TraceId::from_bytes);
        let span_id = rest.first_chunk().copied().and_then(SpanId::from_bytes);
        let root = SpanContext {
            // No command is known whose hash is zero; it would have a trace of its own in each process.
            trace_id: trace_id.unwrap_or_else(TraceId::random),
            span_id: span_id.unwrap_or_else(SpanId::random),
            sampled: true,
        };
        Self { command_id, root }
    }

    /// The root span: what the caller's own span [links](Span::link) to. It is in the store once the command is settled.
    #[must_use]
    pub const fn root(&self) -> SpanContext {
        self.root
    }

    /// Begins an attempt, counted from 1: a child of the root.
    pub fn attempt(&self, writer: &SpanWriter, name: &'static str, attempt: u32) -> Span {
        if !writer.is_enabled() {
            return Span::none();
        }
        let context = SpanContext { span_id: SpanId::random(), ..self.root };
        writer
            .begin(context, Some(self.root.span_id), name.into())
            .kind(SpanKind::Consumer)
            .with("command_id", self.command_id.clone())
            .with("attempt", attempt)
    }

    /// The command is settled: sends the root span, from its acceptance until now. To be called once, by whoever settles.
    ///
    /// # Errors
    /// The span was not taken. It is counted as dropped, unless traces are off.
    pub fn settle(
        &self,
        writer: &SpanWriter,
        name: &'static str,
        accepted: SystemTime,
        settlement: Settlement<'_>,
    ) -> Result<Taken, NotTaken> {
        writer.write(&SpanRecord {
            context: self.root,
            parent: None,
            name: name.into(),
            kind: SpanKind::Internal,
            start: accepted,
            end: writer.now(),
            attributes: vec![
                ("command_id".into(), self.command_id.clone().into()),
                ("settlement_code".into(), settlement.code.to_owned().into()),
            ],
            links: Vec::new(),
            status: if settlement.failed { SpanStatus::Error } else { SpanStatus::Ok },
        })
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settlement<'a> {
    /// The code: of low cardinality.
    pub code: &'a str,
    /// Whether that is a failure.
    pub failed: bool,
}
