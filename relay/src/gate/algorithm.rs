//! The signature algorithms of the contract, and the library that computes them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The signature algorithms of the contract. A key is for exactly one of them; what a token's header says never chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SignatureAlgorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256 (RFC 7518 section 3.3).
    #[serde(rename = "RS256")]
    Rs256,
    /// ECDSA on P-256 with SHA-256 (RFC 7518 section 3.4).
    #[serde(rename = "ES256")]
    Es256,
    /// Ed25519 (RFC 8037 section 3.1).
    #[serde(rename = "EdDSA")]
    EdDsa,
}

impl SignatureAlgorithm {
    /// Every algorithm.
    pub const ALL: [Self; 3] = [Self::Rs256, Self::Es256, Self::EdDsa];

    /// The name in `alg` (RFC 7518 section 3.1, RFC 8037 section 3.1).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }
}

impl fmt::Display for SignatureAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no algorithm of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown signature algorithm: expected RS256, ES256 or EdDSA")]
pub struct UnknownAlgorithm;

impl FromStr for SignatureAlgorithm {
    type Err = UnknownAlgorithm;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == s).ok_or(UnknownAlgorithm)
    }
}

impl From<SignatureAlgorithm> for jsonwebtoken::Algorithm {
    fn from(algorithm: SignatureAlgorithm) -> Self {
        match algorithm {
            SignatureAlgorithm::Rs256 => Self::RS256,
            SignatureAlgorithm::Es256 => Self::ES256,
            SignatureAlgorithm::EdDsa => Self::EdDSA,
        }
    }
}

/// Makes jsonwebtoken use aws-lc. It would find that out by itself, but panics where an embedder's build turns its other
/// implementation on as well. An embedder that has chosen before us keeps its choice.
pub(crate) fn choose_cryptography() {
    let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
}
