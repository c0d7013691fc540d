//! What a write request says and carries: header rules, the body and its budget, decoding.

mod body;
mod decode;
mod head;

pub use body::{BodyLimits, WholeBody, read_whole};
pub use decode::Encoding;
pub use head::{HeadRules, LogFields, WriteHead};
