//! The runners' own series (process, host, controllers): parsed, held to rules, and handed to sinks.
//!
//! A metrics batch marked `Miren-Telemetry-Stream: operational` comes here instead of going to its store, as long as any
//! sink is attached. [`OperationalSinks`] is the fan-out: an embedder attaches what it likes to it, at any time; built in
//! is [`PushSink`], which writes to the metrics store or to a second address. The sender is answered before any sink has
//! seen a point and whatever they make of it: these are gauges that are sampled again in seconds, and a refusal would be
//! retried for ever.
//!
//! What bounds it, from the body inwards: a line of at most 256 KiB; a chunk of at most 1,000 points and 2 MiB, in memory
//! from the same budget as bodies; [`PointLimits`] for each batch and point; [`SinkLimits`] for what waits for a sink.

mod chunk;
mod drop_reason;
mod lane;
mod limits;
mod lines;
mod metrics;
mod push;
mod reader;
mod rules;
mod sink;
mod sinks;
mod stream;
#[cfg(test)]
mod testing;

pub use chunk::Chunk;
pub use drop_reason::DropReason;
pub use limits::{PointLimits, SinkLimits};
pub use metrics::{OperationalMetrics, SinkOutcome};
pub use push::PushSink;
pub use sink::{OperationalSink, SinkError, SinkFuture};
pub(crate) use sinks::Attached;
pub use sinks::{OperationalSinks, SinkId};
pub(crate) use stream::{OperationalStream, Source};
