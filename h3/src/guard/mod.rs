//! The guard: h3's traits on quinn's streams, with the frames watched.
//!
//! What it adds to a plain adapter such as `h3-quinn`, by what h3 0.0.8 lacks:
//!
//! 1. A stream that ends inside a frame is an error, never a clean end, and stays one however often it is read.
//! 2. An empty DATA frame does not end the body.
//! 3. A send stream that is dropped before it was finished is reset: the other side sees a cancelled message, not a whole one.
//! 4. A frame that is not DATA has a size limit, and a stream a limit on frames without effect. h3 gets one frame at a time,
//!    so that it never reads ahead of whoever reads the body.
//! 5. Reading may be stopped at any time, also while a read is pending.
//! 6. A write that was given up half way, or that failed, ends its stream and not the connection.
//! 7. A server can turn away what comes after its GOAWAY, and it is told when a response has arrived or nobody wants it.
//!
//! Timeouts (8) are the business of whoever drives the connection.

mod connection;
mod monitor;
mod recv;
mod send;
mod shared;
mod stream;
mod tally;
mod uni;

pub use connection::{Connection, OpenStreams};
pub use monitor::{Monitor, ResponseEnd, ResponseWatch};
pub use recv::RecvStream;
pub use send::SendStream;
pub use stream::BidiStream;
