//! The bodies of `POST /_identity/token`.

use serde::{Deserialize, Serialize};

use crate::{Signal, claims, limits};

/// Asks for a workload token. The runner's ID is not here: it comes from the certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MintRequest {
    /// Which system workload: [`claims::WORKLOAD`].
    pub system_workload: String,
    /// For whom: [`claims::AUDIENCE`] and nothing else.
    pub audience: Vec<String>,
    /// The wanted life in seconds, clamped by the issuer to 60 s to 24 h.
    #[serde(default = "default_ttl_seconds")]
    pub ttl_seconds: u64,
    /// The signals to grant. Absent: metrics and logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signals: Option<Vec<Signal>>,
}

fn default_ttl_seconds() -> u64 {
    limits::DEFAULT_TOKEN_LIFETIME.as_secs()
}

impl MintRequest {
    /// Asks for a telemetry writer's token that grants `signals`.
    #[must_use]
    pub fn telemetry_writer(signals: &[Signal]) -> Self {
        Self {
            system_workload: claims::WORKLOAD.to_owned(),
            audience: vec![claims::AUDIENCE.to_owned()],
            ttl_seconds: default_ttl_seconds(),
            signals: Some(signals.to_vec()),
        }
    }
}

/// A minted token. Its `Debug` does not show the token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MintResponse {
    /// The token, for the header `Miren-Workload-Token`.
    pub token: String,
    /// When it ends.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: time::OffsetDateTime,
    /// The issuer's time of day, from which a runner learns how far its own clock is off.
    #[serde(with = "time::serde::rfc3339")]
    pub server_time: time::OffsetDateTime,
}

impl std::fmt::Debug for MintResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MintResponse").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_the_documented_json() {
        let request = MintRequest::telemetry_writer(&Signal::ALL);
        assert_eq!(
            serde_json::to_string(&request).unwrap(),
            r#"{"system_workload":"telemetrywriter","audience":["miren-telemetry"],"ttl_seconds":3600,"signals":["metrics","logs","traces"]}"#
        );
    }

    #[test]
    fn a_debug_print_does_not_show_the_token() {
        let json = r#"{"token":"SECRET","expires_at":"2030-01-01T00:00:00Z","server_time":"2030-01-01T00:00:00Z"}"#;
        let response: MintResponse = serde_json::from_str(json).unwrap();
        assert!(!format!("{response:?}").contains("SECRET"));
    }
}
