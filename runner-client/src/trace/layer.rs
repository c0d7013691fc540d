//! Spans of the `tracing` crate, made spans of ours.
//!
//! ```no_run
//! # fn example(writer: telemetry_runner_client::trace::SpanWriter, traceparent: &str) {
//! use tracing_subscriber::layer::SubscriberExt as _;
//!
//! let subscriber = tracing_subscriber::registry().with(telemetry_runner_client::trace::layer::layer(writer));
//! tracing::subscriber::with_default(subscriber, || {
//!     let request = tracing::info_span!(
//!         "create volume", trace.entry = "control", otel.kind = "server", traceparent, volume_id = "v-1"
//!     );
//!     let _entered = request.enter();
//! });
//! # }
//! ```
//!
//! Fields become attributes, but for these:
//!
//! | field | meaning |
//! | --- | --- |
//! | `trace.entry` | `control` or `data-path`: this is an [entry](Entry). A span that has none above it and is no entry is background work |
//! | `traceparent` | at an entry: what the caller sent |
//! | `otel.name` | a name that is not known at compile time |
//! | `otel.kind` | `server`, `client`, `producer` or `consumer` |
//! | `otel.status_code` | `ok` or `error` |
//!
//! Events are not looked at: the relay would remove them.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::Filtered;
use tracing_subscriber::layer::{Context, Filter, Layer};
use tracing_subscriber::registry::{LookupSpan, Registry};

use super::context::{SpanContext, TraceParent};
use super::record::{SpanKind, SpanStatus};
use super::sampling::Entry;
use super::span::Span;
use super::writer::SpanWriter;
use crate::writer::LogValue;

const ENTRY: &str = "trace.entry";
const TRACEPARENT: &str = "traceparent";
const NAME: &str = "otel.name";
const KIND: &str = "otel.kind";
const STATUS: &str = "otel.status_code";

/// A layer that writes to `writer`. While the coordinator takes no traces, a subscriber that has no other layer does not
/// even make its own spans.
pub fn layer<S>(writer: SpanWriter) -> Filtered<TraceLayer, WhileEnabled, S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    TraceLayer { writer: writer.clone() }.with_filter(WhileEnabled { writer })
}

/// The IDs of the nearest span around the caller that has any: for log records. `None` outside of all spans, and while
/// traces are off. It knows the spans of a subscriber that is a [`Registry`] with layers.
#[must_use]
pub fn current() -> Option<SpanContext> {
    let find = |(id, dispatch): (&Id, &tracing::Dispatch)| {
        let span = dispatch.downcast_ref::<Registry>()?.span(id)?;
        span.scope().find_map(|span| span.extensions().get::<Slot>()?.0.context())
    };
    tracing::Span::current().with_subscriber(find).flatten()
}

/// Turns spans of the `tracing` crate into spans of a [`SpanWriter`]. Made by [`layer`].
#[derive(Debug, Clone)]
pub struct TraceLayer {
    writer: SpanWriter,
}

/// Lets spans through, and no events, while the coordinator takes traces.
#[derive(Debug, Clone)]
pub struct WhileEnabled {
    writer: SpanWriter,
}

/// Our span, beside the registry's.
struct Slot(Span);

impl<S> Filter<S> for WhileEnabled {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        metadata.is_span() && self.writer.is_enabled()
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_span() && self.writer.is_enabled() { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        None
    }
}

impl<S> Layer<S> for TraceLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_register_dispatch(&self, subscriber: &tracing::Dispatch) {
        self.writer.switch().set_subscriber(subscriber);
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(registered) = context.span(id) else { return };
        let name = attributes.metadata().name();
        let above = registered.parent().and_then(|parent| {
            parent.scope().find_map(|above| above.extensions().get::<Slot>().map(|slot| slot.0.child(name)))
        });
        let mut span = above.unwrap_or_else(|| {
            let mut head = Head::default();
            attributes.record(&mut head);
            self.writer.entry(head.entry, name, head.caller)
        });
        if span.is_recorded() {
            attributes.record(&mut Body(&mut span));
        }
        registered.extensions_mut().replace(Slot(span));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(registered) = context.span(id)
            && let Some(Slot(span)) = registered.extensions_mut().get_mut::<Slot>()
            && span.is_recorded()
        {
            values.record(&mut Body(span));
        }
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        let followed = context.span(follows).and_then(|span| span.extensions().get::<Slot>()?.0.context());
        if let Some(followed) = followed
            && let Some(registered) = context.span(id)
            && let Some(Slot(span)) = registered.extensions_mut().get_mut::<Slot>()
        {
            span.link(followed);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        // Not under the lock of the extensions: what is dropped is told as an event.
        let slot = context.span(&id).and_then(|registered| registered.extensions_mut().remove::<Slot>());
        drop(slot);
    }
}

/// What decides at an entry.
#[derive(Default)]
struct Head {
    entry: Entry,
    caller: Option<TraceParent>,
}

impl Visit for Head {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            ENTRY => {
                self.entry = match value {
                    "control" => Entry::Control,
                    "data-path" => Entry::DataPath,
                    _ => Entry::Background,
                }
            }
            TRACEPARENT => self.caller = value.parse().ok(),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if [ENTRY, TRACEPARENT].contains(&field.name()) {
            self.record_str(field, &format!("{value:?}"));
        }
    }
}

/// What is said about a span.
struct Body<'a>(&'a mut Span);

impl Body<'_> {
    fn set(&mut self, field: &Field, value: impl Into<LogValue<'static>>) {
        if ![ENTRY, TRACEPARENT].contains(&field.name()) {
            self.0.set(field.name(), value);
        }
    }
}

impl Visit for Body<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            NAME => self.0.set_name(value.to_owned()),
            KIND => self.0.set_kind(match value {
                "server" => SpanKind::Server,
                "client" => SpanKind::Client,
                "producer" => SpanKind::Producer,
                "consumer" => SpanKind::Consumer,
                _ => SpanKind::Internal,
            }),
            STATUS => self.0.set_status(match value {
                "ok" => SpanStatus::Ok,
                "error" => SpanStatus::Error,
                _ => SpanStatus::Unset,
            }),
            _ => self.set(field, value.to_owned()),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.set(field, value),
            Err(_) => self.set(field, value.to_string()),
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
