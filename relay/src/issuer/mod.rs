//! Minting workload tokens: signing keys and their rotation, what is minted for whom, and how often.

mod config;
mod key_ring;
mod mint;
mod rate;
mod signing_key;

pub use config::{IssuerConfig, IssuerConfigError};
pub use key_ring::{KeyRing, RotationError};
pub use mint::Issuer;
pub(crate) use rate::MintLimiter;
pub use rate::MintRate;
pub use signing_key::{SigningKey, SigningKeyError};
