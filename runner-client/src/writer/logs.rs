//! Records to JSON lines.

use std::sync::Arc;

use telemetry_proto::{Clock, Signal};

use super::line;
use super::record::LogRecord;
use crate::delivery::{NotTaken, Pipelines, Taken};
use crate::metrics::CutCounter;

/// Writes logs. Cheap to clone. A write costs a line of text in memory; it never waits for the network.
#[derive(Clone)]
pub struct LogWriter {
    pipelines: Arc<Pipelines>,
    clock: Arc<dyn Clock>,
    cuts: CutCounter,
}

impl LogWriter {
    pub(crate) const fn new(pipelines: Arc<Pipelines>, clock: Arc<dyn Clock>, cuts: CutCounter) -> Self {
        Self { pipelines, clock, cuts }
    }

    /// Writes a record, with the present time. What the store would not take is cut, marked and counted.
    ///
    /// # Errors
    /// The record was not taken, and is counted as dropped.
    pub fn write(&self, record: &LogRecord<'_>) -> Result<Taken, NotTaken> {
        let line = line::encode(record, self.clock.now());
        self.cuts.count(Signal::Logs, "line", line.too_long.into());
        self.cuts.count(Signal::Logs, "fields", line.fields);
        self.cuts.count(Signal::Logs, "names", line.names);
        self.pipelines.logs().push(&line.bytes)
    }
}
