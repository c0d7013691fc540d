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

/// A setting under which spans would be lost.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TracesFault {
    /// The ratio is no share.
    #[error("is {0}, but a share is from 0 to 1")]
    NoRatio(f64),
    /// With such a limit no body would get through, or nothing of what it is for.
    #[error("is zero: nothing would get through")]
    ZeroLimit {
        /// Which one.
        limit: &'static str,
    },
}

impl TracesFault {
    /// The key of the setting, below `traces`.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        match self {
            Self::NoRatio(_) => "sample_ratio",
            Self::ZeroLimit { limit } => limit,
        }
    }
}

impl TracesSettings {
    /// Checks what its parts can't. Everything that is wrong, not the first.
    #[must_use]
    pub fn check(&self) -> Vec<TracesFault> {
        let Self { sample_ratio, keep: _, limits } = self;
        let ratio = (!(0.0..=1.0).contains(sample_ratio)).then_some(TracesFault::NoRatio(*sample_ratio));
        ratio.into_iter().chain(limits.zeros().map(|limit| TracesFault::ZeroLimit { limit })).collect()
    }
}

impl Default for TracesSettings {
    fn default() -> Self {
        Self { sample_ratio: DEFAULT_SAMPLE_RATIO, keep: TraceRules::default(), limits: TraceLimits::default() }
    }
}
