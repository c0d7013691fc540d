//! How a command fails.

use std::process::ExitCode;

use crate::config::ConfigFaults;

/// Wrong usage (`EX_USAGE` of sysexits).
pub(crate) const USAGE: u8 = 64;
/// Wrong configuration (`EX_CONFIG` of sysexits).
const CONFIG: u8 = 78;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigFaults),
    #[error("{0}")]
    Other(String),
}

impl Failure {
    pub(crate) fn other(error: impl std::fmt::Display) -> Self {
        Self::Other(error.to_string())
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) => CONFIG.into(),
            Self::Other(_) => ExitCode::FAILURE,
        }
    }
}

/// What a command comes to.
pub(crate) type Outcome = Result<(), Failure>;
