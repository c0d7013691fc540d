//! What an embedder makes spans with.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use telemetry_proto::{Clock, Signal};

use super::context::{SpanContext, TraceParent};
use super::encode;
use super::id::{SpanId, TraceId};
use super::record::{SpanKind, SpanRecord, SpanStatus};
use super::sampling::{Entry, Switch};
use super::span::Span;
use crate::delivery::{NotTaken, Pipelines, Taken};
use crate::metrics::CutCounter;

/// Makes and writes spans. Cheap to clone. It never waits for the network, and nothing that it holds touches the disk.
#[derive(Clone)]
pub struct SpanWriter {
    shared: Arc<Shared>,
}

struct Shared {
    pipelines: Arc<Pipelines>,
    switch: Arc<Switch>,
    clock: Arc<dyn Clock>,
    cuts: CutCounter,
}

impl SpanWriter {
    pub(crate) fn new(pipelines: Arc<Pipelines>, switch: Arc<Switch>, clock: Arc<dyn Clock>, cuts: CutCounter) -> Self {
        Self { shared: Arc::new(Shared { pipelines, switch, clock, cuts }) }
    }

    /// Whether spans are made: whether the coordinator takes traces.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.shared.switch.is_on()
    }

    /// Begins what someone asked for: goes on with the caller's trace, or begins one. Here and nowhere else it is decided
    /// whether the trace is recorded, whatever the caller thinks.
    pub fn entry(&self, entry: Entry, name: impl Into<Cow<'static, str>>, caller: Option<TraceParent>) -> Span {
        let new_or_callers = || caller.map_or_else(TraceId::random, |caller| caller.trace_id);
        let Some((trace_id, sampled)) = self.shared.switch.decide(entry, new_or_callers) else { return Span::none() };
        let context = SpanContext { trace_id, span_id: SpanId::random(), sampled };
        if sampled {
            self.begin(context, caller.map(|caller| caller.parent_id), name.into())
        } else {
            Span::unsampled(context)
        }
    }

    /// Writes a span that has ended.
    ///
    /// # Errors
    /// It was not taken. It is counted as dropped, unless traces are off.
    pub fn write(&self, span: &SpanRecord) -> Result<Taken, NotTaken> {
        if !self.is_enabled() {
            return Err(NotTaken::Disabled);
        }
        let encoded = encode::span(span);
        for (what, times) in [("attributes", encoded.attributes), ("texts", encoded.texts), ("links", encoded.links)] {
            self.shared.cuts.count(Signal::Traces, what, times);
        }
        self.shared.pipelines.traces().push(&encoded.bytes)
    }

    /// Begins a span that is recorded.
    pub(super) fn begin(&self, context: SpanContext, parent: Option<SpanId>, name: Cow<'static, str>) -> Span {
        let now = self.shared.clock.now();
        let record = SpanRecord {
            context,
            parent,
            name,
            kind: SpanKind::Internal,
            start: now,
            end: now,
            attributes: Vec::new(),
            links: Vec::new(),
            status: SpanStatus::Unset,
        };
        Span::recorded(self.clone(), record)
    }

    pub(super) fn now(&self) -> std::time::SystemTime {
        self.shared.clock.now()
    }

    #[cfg(any(feature = "opentelemetry", feature = "tracing-layer"))]
    pub(super) fn switch(&self) -> &Switch {
        &self.shared.switch
    }
}

impl fmt::Debug for SpanWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanWriter").field("enabled", &self.is_enabled()).finish_non_exhaustive()
    }
}
