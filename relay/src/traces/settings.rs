//! The operator's settings for spans.

use serde::Deserialize;

use super::{TraceLimits, TraceRules};

/// The share of data-path traces that a runner records unless the operator says otherwise.
pub const DEFAULT_SAMPLE_RATIO: f64 = 0.01;

/// What of a runner's spans is kept, and how many spans it should make: `[traces]` in the configuration.
#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct TracesSettings {
    /// The share of data-path traces that runners record, 0 to 1. Default 0.01. Runners learn it from the policy.
    pub sample_ratio: f64,
    /// Which attributes of a span are kept.
    pub keep: TraceRules,
    /// How much one body of spans may hold.
    pub limits: TraceLimits,
}

/// The ratio is no share.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("sample_ratio is {0}, but a share is from 0 to 1")]
pub struct NoRatio(f64);

impl TracesSettings {
    /// Checks what its parts can't.
    ///
    /// # Errors
    /// [`NoRatio`]
    pub fn check(&self) -> Result<(), NoRatio> {
        if (0.0..=1.0).contains(&self.sample_ratio) { Ok(()) } else { Err(NoRatio(self.sample_ratio)) }
    }
}

impl Default for TracesSettings {
    fn default() -> Self {
        Self { sample_ratio: DEFAULT_SAMPLE_RATIO, keep: TraceRules::default(), limits: TraceLimits::default() }
    }
}
