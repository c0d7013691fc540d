//! HTTP/3 over quinn with the guard that h3 0.0.8 needs, and bounded transport settings.
//!
//! h3 trusts its peer: it takes a truncated body for a whole one, buffers any frame before it looks at its size, and
//! finishes a stream that is merely dropped. [`guard`] stands between quinn and h3. It implements h3's public
//! [`quic`](h3::quic) traits on quinn's streams and watches the frames that go through, so that h3 only ever sees whole
//! frames of a bounded size, and a peer only ever sees a clean end where there was one.
//!
//! [`server`] and [`client`] make h3 connections over the guard; both sides of this project use them. [`fields`] knows which
//! fields no message may have; [`transport`] and [`udp`] hold the settings of the layer below.

pub mod client;
mod failure;
mod field_section;
pub mod fields;
mod frames;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod guard;
mod huffman;
mod limits;
pub mod server;
pub mod transport;
pub mod udp;
mod varint;
mod violation;

pub use failure::{GuardError, StreamFailure};
pub use h3::error::Code;
pub use limits::GuardLimits;
pub use violation::Violation;
