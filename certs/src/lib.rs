//! Certificates: cluster authority, identities, TLS configurations.

mod identity;

pub use identity::{IdentitySource, PeerIdentity};
