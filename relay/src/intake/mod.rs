//! What a write request says and carries: header rules, the body and its budget, decoding.

mod blocks;
mod body;
mod decode;
mod head;

pub use body::{BodyLimits, WholeBody, read_whole};
pub(crate) use decode::Decoder;
pub use decode::Encoding;
#[cfg(test)]
pub(crate) use decode::tests::gzip;
pub use head::{HeadRules, LogFields, WriteHead};
