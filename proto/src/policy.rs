//! The body of `GET /_telemetry/policy`: what a coordinator wants from a runner.

use serde::{Deserialize, Serialize};

use crate::Signal;

/// What this coordinator wants from a runner. Unknown fields are ignored, so that it may grow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// The signals that the coordinator takes from this runner.
    pub signals: Vec<Signal>,
    /// The values of `Content-Encoding` that it takes; `identity` is always among them.
    pub encodings: Vec<String>,
    /// Limits of one batch.
    pub limits: PolicyLimits,
    /// How spans are sampled; absent where traces are not taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traces: Option<TracesPolicy>,
    /// The coordinator's time of day.
    #[serde(with = "time::serde::rfc3339")]
    pub server_time: time::OffsetDateTime,
}

/// Limits of one batch, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyLimits {
    /// The largest body, as sent.
    pub max_body_bytes: u64,
    /// The largest body after decompression.
    pub max_decoded_bytes: u64,
}

/// How spans are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TracesPolicy {
    /// The share of data-path traces to record, 0 to 1.
    pub sample_ratio: f64,
}

impl Policy {
    /// Whether the coordinator takes `signal`.
    #[must_use]
    pub fn takes(&self, signal: Signal) -> bool {
        self.signals.contains(&signal)
    }
}
