//! OTLP rewriting: what of a runner's spans reaches the store, and under whose name.
//!
//! [`rewrite`] reads an `ExportTraceServiceRequest` (OTLP 1.x, binary protobuf) and writes a new one. Nothing is passed
//! on because nobody thought of it: what is not named in this table is not written.
//!
//! | position | what becomes of it |
//! | --- | --- |
//! | resource attribute `miren.runner.id` | the verified runner, exactly once, whatever was claimed |
//! | other attributes `miren.*` of a resource or span | removed |
//! | resource attributes `service.name`, `service.version` | kept if they are strings; of two with one key, the last |
//! | other resource attributes, entities, schema URLs | removed |
//! | instrumentation scope: name, version, attributes, schema URL | removed |
//! | trace ID, span ID, parent, kind, start, end, status code | kept |
//! | flags | kept, without the bits that OTLP gives no meaning |
//! | span name | kept, cut at [`TraceLimits::max_name_bytes`]. It is free text, but a span without it is of no use |
//! | span attributes | kept if [`TraceRules`] list the key and the value is a string, bool, int or double |
//! | links | trace ID and span ID are kept; links that point nowhere are removed |
//! | events, links' attributes, status message, trace state | removed |
//! | counts of what an SDK dropped, links' flags | removed |
//! | unknown fields | removed |
//!
//! What is removed is read all the same: a body that the generated types would not decode is refused whole, never
//! repaired. The output is canonical (each field at most once, in ascending order, defaults left out), since stores
//! disagree about anything else: of two resources in one message one build of VictoriaTraces merges both, a later one
//! reads the first only. What was removed is counted by [`KeyClass`].
//!
//! Scopes and resources without spans are left out. Therefore the output is longer than the input by at most the
//! runner's attribute per span, see [`TraceLimits::max_rewritten_bytes`].

mod attribute;
mod error;
mod limits;
mod pass;
mod removed;
mod rewrite;
mod rules;
mod settings;
mod shape;
mod span;
#[cfg(test)]
mod tests;

pub use error::RewriteError;
pub use limits::TraceLimits;
pub use removed::{KeyClass, RemovedCounts};
pub use rewrite::{RUNNER_ATTRIBUTE, Rewritten, rewrite};
pub use rules::{DEFAULT_ATTRIBUTES, RuleError, TraceRules};
pub use settings::{DEFAULT_SAMPLE_RATIO, TracesFault, TracesSettings};
pub use telemetry_proto::protobuf::WireError;
