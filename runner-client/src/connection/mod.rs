//! The connection to the coordinator.

mod error;
mod transport;

pub use error::{ConnectError, ConnectErrorKind, SendError};
pub use transport::Transport;
