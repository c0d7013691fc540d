//! Why a body is refused.

use telemetry_proto::Reason;

use super::WireError;

/// Why a body of spans is refused. The texts hold nothing of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    /// It is no `ExportTraceServiceRequest`.
    #[error("malformed protobuf: {0}")]
    Malformed(#[from] WireError),
    /// A trace ID is not 16 bytes or a span ID not 8, or the ID of a span is all zero.
    #[error("a trace ID or span ID has the wrong length, or is missing or all zero")]
    BadId,
    /// Longer than [`TraceLimits::max_body_bytes`](super::TraceLimits::max_body_bytes).
    #[error("the spans take more than {0} bytes")]
    BodyBytes(usize),
    /// More than [`TraceLimits::max_spans`](super::TraceLimits::max_spans).
    #[error("more than {0} spans")]
    Spans(usize),
    /// More than [`TraceLimits::max_spans`](super::TraceLimits::max_spans), with or without spans.
    #[error("more than {0} resources")]
    Resources(usize),
    /// More than [`TraceLimits::max_attributes`](super::TraceLimits::max_attributes).
    #[error("a span or resource has more than {0} attributes")]
    Attributes(usize),
    /// More than [`TraceLimits::max_links`](super::TraceLimits::max_links).
    #[error("a span has more than {0} links")]
    Links(usize),
    /// Deeper than [`TraceLimits::max_nesting`](super::TraceLimits::max_nesting).
    #[error("the value of an attribute nests deeper than {0} levels")]
    Nesting(usize),
    /// Longer than [`TraceLimits::max_string_bytes`](super::TraceLimits::max_string_bytes).
    #[error("a string has more than {0} bytes")]
    StringBytes(usize),
}

impl RewriteError {
    /// What the sender is told: 400 for what can't be read, 413 for what is too much.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Malformed(_) | Self::BadId => Reason::BodyMalformed,
            Self::BodyBytes(_)
            | Self::Spans(_)
            | Self::Resources(_)
            | Self::Attributes(_)
            | Self::Links(_)
            | Self::Nesting(_)
            | Self::StringBytes(_) => Reason::DecodedTooLarge,
        }
    }
}
