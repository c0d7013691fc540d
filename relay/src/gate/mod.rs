//! Who may write: the peer that the handshake proved, the token it shows, and both together as a principal.

mod peer;

pub use peer::Peer;
