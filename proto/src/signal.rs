//! The three kinds of telemetry.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A kind of telemetry: what a batch holds, which store it goes to and which grant it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    /// Prometheus text lines for VictoriaMetrics.
    Metrics,
    /// JSON lines for VictoriaLogs.
    Logs,
    /// OTLP protobuf for VictoriaTraces.
    Traces,
}

impl Signal {
    /// Every signal, in the order in which documents list them.
    pub const ALL: [Self; 3] = [Self::Metrics, Self::Logs, Self::Traces];

    /// The name used in tokens, configuration, the policy and metric labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Logs => "logs",
            Self::Traces => "traces",
        }
    }

    /// The base path on the relay. A writer built for the store works when it is pointed at this base.
    #[must_use]
    pub const fn base_path(self) -> &'static str {
        match self {
            Self::Metrics => "/_telemetry/metrics",
            Self::Logs => "/_telemetry/logs",
            Self::Traces => "/_telemetry/traces",
        }
    }

    /// The store's own write path, which follows the base.
    #[must_use]
    pub const fn store_path(self) -> &'static str {
        match self {
            Self::Metrics => "/api/v1/import/prometheus",
            Self::Logs => "/insert/jsonline",
            Self::Traces => "/insert/opentelemetry/v1/traces",
        }
    }

    /// The write path on the relay: [`base_path`](Self::base_path) and [`store_path`](Self::store_path) together.
    #[must_use]
    pub const fn write_path(self) -> &'static str {
        match self {
            Self::Metrics => "/_telemetry/metrics/api/v1/import/prometheus",
            Self::Logs => "/_telemetry/logs/insert/jsonline",
            Self::Traces => "/_telemetry/traces/insert/opentelemetry/v1/traces",
        }
    }

    /// What `Content-Type` a writer of ours sends.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Metrics => "text/plain",
            Self::Logs => "application/x-ndjson",
            Self::Traces => "application/x-protobuf",
        }
    }

    /// Whether the relay takes this `Content-Type` (`None`: the header is absent).
    ///
    /// Parameters such as `charset` are allowed but for traces, whose store refuses them. A form content type is never
    /// accepted: the stores read such a body as arguments, which outrank the pinned ones.
    #[must_use]
    pub fn accepts_content_type(self, value: Option<&str>) -> bool {
        let Some(value) = value else {
            return !matches!(self, Self::Traces);
        };
        let essence = value.split(';').next().unwrap_or_default().trim();
        let one_of = |allowed: &[&str]| allowed.iter().any(|a| essence.eq_ignore_ascii_case(a));
        match self {
            Self::Metrics => one_of(&["text/plain"]),
            Self::Logs => {
                one_of(&["application/x-ndjson", "application/stream+json", "application/json", "text/plain"])
            }
            Self::Traces => value.trim().eq_ignore_ascii_case("application/x-protobuf"),
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no signal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown signal {0:?}: expected metrics, logs or traces")]
pub struct UnknownSignal(pub String);

impl FromStr for Signal {
    type Err = UnknownSignal;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == s).ok_or_else(|| UnknownSignal(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_write_path_is_the_base_and_the_stores_own_path() {
        for signal in Signal::ALL {
            assert_eq!(signal.write_path(), format!("{}{}", signal.base_path(), signal.store_path()));
            assert_eq!(signal.as_str().parse(), Ok(signal));
            assert!(signal.accepts_content_type(Some(signal.content_type())));
        }
    }

    #[test]
    fn a_form_content_type_is_accepted_for_no_signal() {
        for signal in Signal::ALL {
            for form in ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", ";text/plain"] {
                assert!(!signal.accepts_content_type(Some(form)), "{signal}: {form}");
            }
        }
    }

    #[test]
    fn parameters_are_allowed_but_for_traces() {
        assert!(Signal::Metrics.accepts_content_type(Some("Text/Plain; version=0.0.4")));
        assert!(Signal::Logs.accepts_content_type(Some("application/json;charset=utf-8")));
        assert!(!Signal::Traces.accepts_content_type(Some("application/x-protobuf; v=1")));
        assert!(!Signal::Traces.accepts_content_type(None));
        assert!(Signal::Metrics.accepts_content_type(None) && Signal::Logs.accepts_content_type(None));
    }
}
