//! How a command fails.

use std::process::ExitCode;

use telemetry_relay::config::ConfigFaults;
use telemetry_relay::running::StartError;

/// Wrong usage (`EX_USAGE` of sysexits).
pub(super) const USAGE: u8 = 64;
/// Wrong configuration (`EX_CONFIG` of sysexits).
const CONFIG: u8 = 78;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigFaults),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Other(String),
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Lives(faults) => Self::Config(faults),
            error => Self::other(error),
        }
    }
}

impl Failure {
    pub(super) fn other(error: impl std::fmt::Display) -> Self {
        Self::Other(error.to_string())
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) => CONFIG.into(),
            Self::Usage(_) => USAGE.into(),
            Self::Other(_) => ExitCode::FAILURE,
        }
    }
}
