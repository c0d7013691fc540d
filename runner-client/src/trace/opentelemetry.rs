//! Spans of the OpenTelemetry SDK, handed to a [`SpanWriter`].
//!
//! ```no_run
//! # fn example(writer: telemetry_runner_client::trace::SpanWriter) {
//! use opentelemetry_sdk::trace::SdkTracerProvider;
//! use telemetry_runner_client::trace::Entry;
//! use telemetry_runner_client::trace::opentelemetry::{Exporter, PolicySampler};
//!
//! let provider = SdkTracerProvider::builder()
//!     .with_sampler(PolicySampler::new(writer.clone(), Entry::DataPath))
//!     .with_simple_exporter(Exporter::new(writer))
//!     .build();
//! # drop(provider);
//! # }
//! ```
//!
//! The simple processor is the one to take: an export costs as much as encoding the spans, and the writer makes the
//! batches. The SDK's resource is not looked at: `service.name` is what the client was [built](crate::ClientBuilder::service)
//! with, and the relay keeps little else.

use std::borrow::Cow;

use ::opentelemetry::trace::{Link, SpanKind as SdkKind, Status, TraceContextExt as _, TraceState};
use ::opentelemetry::{Context, KeyValue, Value, trace};
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SamplingDecision, SamplingResult, ShouldSample, SpanData, SpanExporter};

use super::context::SpanContext;
use super::id::{SpanId, TraceId};
use super::record::{SpanKind, SpanRecord, SpanStatus};
use super::sampling::Entry;
use super::writer::SpanWriter;
use crate::delivery::NotTaken;
use crate::writer::LogValue;

/// Exports spans to a [`SpanWriter`].
#[derive(Debug, Clone)]
pub struct Exporter {
    writer: SpanWriter,
}

impl Exporter {
    /// An exporter for `writer`.
    #[must_use]
    pub const fn new(writer: SpanWriter) -> Self {
        Self { writer }
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let written = batch.into_iter().filter_map(record).map(|record| self.writer.write(&record));
        // Nobody is told that spans are off.
        let lost = written.filter(|result| matches!(result, Err(error) if *error != NotTaken::Disabled)).count();
        match lost {
            0 => Ok(()),
            lost => Err(OTelSdkError::InternalFailure(format!("{lost} spans were dropped"))),
        }
    }
}

/// Samples as the coordinator's policy says. What a remote caller says is not heeded; below a span of this process its
/// decision holds.
#[derive(Debug, Clone)]
pub struct PolicySampler {
    writer: SpanWriter,
    entry: Entry,
}

impl PolicySampler {
    /// A sampler for traces that begin with this kind of entry.
    #[must_use]
    pub const fn new(writer: SpanWriter, entry: Entry) -> Self {
        Self { writer, entry }
    }
}

impl ShouldSample for PolicySampler {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace_id: trace::TraceId,
        _: &str,
        _: &SdkKind,
        _: &[KeyValue],
        _: &[Link],
    ) -> SamplingResult {
        let above = parent.filter(|parent| parent.has_active_span()).map(|parent| parent.span().span_context().clone());
        let above = above.filter(|above| above.is_valid() && !above.is_remote());
        let is_sampled = match above {
            Some(above) => above.is_sampled() && self.writer.is_enabled(),
            None => TraceId::from_bytes(trace_id.to_bytes())
                .and_then(|id| self.writer.switch().decide(self.entry, || id))
                .is_some_and(|(_, sampled)| sampled),
        };
        let decision = if is_sampled { SamplingDecision::RecordAndSample } else { SamplingDecision::Drop };
        SamplingResult { decision, attributes: Vec::new(), trace_state: TraceState::NONE }
    }
}

/// `None` for a span without IDs.
fn record(span: SpanData) -> Option<SpanRecord> {
    Some(SpanRecord {
        context: context(&span.span_context)?,
        parent: SpanId::from_bytes(span.parent_span_id.to_bytes()),
        name: span.name,
        kind: match span.span_kind {
            SdkKind::Client => SpanKind::Client,
            SdkKind::Server => SpanKind::Server,
            SdkKind::Producer => SpanKind::Producer,
            SdkKind::Consumer => SpanKind::Consumer,
            SdkKind::Internal => SpanKind::Internal,
        },
        start: span.start_time,
        end: span.end_time,
        attributes: span.attributes.into_iter().filter_map(attribute).collect(),
        links: span.links.links.iter().filter_map(|link| context(&link.span_context)).collect(),
        status: match span.status {
            Status::Unset => SpanStatus::Unset,
            Status::Ok => SpanStatus::Ok,
            Status::Error { .. } => SpanStatus::Error,
        },
    })
}

fn context(context: &trace::SpanContext) -> Option<SpanContext> {
    Some(SpanContext {
        trace_id: TraceId::from_bytes(context.trace_id().to_bytes())?,
        span_id: SpanId::from_bytes(context.span_id().to_bytes())?,
        sampled: context.is_sampled(),
    })
}

/// The relay keeps no other values than these.
fn attribute(pair: KeyValue) -> Option<(Cow<'static, str>, LogValue<'static>)> {
    let value = match pair.value {
        Value::Bool(truth) => truth.into(),
        Value::I64(number) => number.into(),
        Value::F64(number) => number.into(),
        Value::String(text) => String::from(text).into(),
        _ => return None,
    };
    Some((String::from(pair.key).into(), value))
}
