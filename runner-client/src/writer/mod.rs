//! What an embedder writes to.

mod line;
mod logs;
mod metrics;
mod raw;
mod record;

pub use logs::LogWriter;
pub use metrics::MetricsWriter;
pub use raw::RawBatch;
pub use record::{LogRecord, LogValue};
