//! Who may write: the peer that the handshake proved, the token it shows, and both together as a principal.

mod activity;
mod algorithm;
mod authenticate;
mod author;
mod explain;
#[cfg(test)]
pub(crate) mod fixtures;
mod key_error;
mod keys;
mod peer;
mod principal;
mod public_key;
mod registry;
mod static_token;
mod token_header;
mod unique_claims;
mod verifier;
mod writers;

pub use activity::Activity;
pub(crate) use algorithm::choose_cryptography;
pub use algorithm::{SignatureAlgorithm, UnknownAlgorithm};
pub use author::Author;
pub use explain::{Explanation, Outcome, Question, Step, explain};
pub use key_error::{KeyError, KeyFault, KeySetError};
pub use keys::{KeySet, MAX_JWKS_BYTES, MAX_KEYS, MAX_KID_BYTES, VerifyingKey};
pub use peer::{Identity, Peer};
pub use principal::{Credential, Principal};
pub use public_key::{MAX_RSA_BITS, MIN_RSA_BITS, PublicKey};
pub use registry::{AllRegistered, MAX_REMOVED_BYTES, RemovedRunners, RemovedRunnersError, RunnerRegistry};
pub use static_token::{StaticToken, StaticTokenError};
pub use token_header::workload_token;
pub use verifier::{DEFAULT_CACHE_ENTRIES, JwtVerifier, TokenVerifier};
pub use writers::{MAX_WRITERS, Writer, WriterCertificate, WriterSet, Writers, WritersError};
