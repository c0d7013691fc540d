//! Spans: made where the coordinator takes traces, kept in memory, sent once, and dropped where they can't be delivered.
//!
//! Nothing here is configured on the runner: whether spans are made, and how many, comes with the coordinator's policy
//! and changes with it.
//!
//! - [`SpanWriter::entry`] begins a trace or goes on with a caller's; [`Span::child`] goes on below a span of ours;
//! - [`Journey`] is a trace that crosses processes and retries without any stored context;
//! - [`TraceParent`] reads what a caller sent, and [`SpanContext::header`] says what we answer;
//! - `layer`, with the feature `tracing-layer`, makes spans of those of the `tracing` crate;
//! - `opentelemetry`, with the feature of that name, takes those of the OpenTelemetry SDK.

mod context;
mod encode;
mod id;
mod journey;
#[cfg(feature = "tracing-layer")]
pub mod layer;
#[cfg(feature = "opentelemetry")]
pub mod opentelemetry;
mod record;
mod sampling;
mod span;
mod writer;

#[cfg(test)]
mod tests;

pub use context::{SpanContext, TRACEPARENT, TRACERESPONSE, TraceParent, TraceParentError};
pub use id::{SpanId, TraceId};
pub use journey::{Journey, Settlement};
pub use record::{SpanKind, SpanRecord, SpanStatus};
pub use sampling::{Entry, is_sampled};
pub use span::Span;
pub use writer::SpanWriter;

pub(crate) use encode::frame;
pub(crate) use sampling::{Switch, follow};
