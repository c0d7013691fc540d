//! Points to Prometheus text.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use telemetry_proto::Clock;
use telemetry_proto::exposition::{Point, write_point};

use crate::delivery::{DropReason, NotTaken, Pipelines, Stream, Taken};

/// The longest line that VictoriaMetrics reads; for a longer one it refuses the batch.
const MAX_LINE_BYTES: usize = 256 * 1024;
/// A line that most points fit in.
const USUAL_LINE_BYTES: usize = 256;

/// Writes metrics. Cheap to clone. A write costs a line of text in memory; it never waits for the network.
#[derive(Clone)]
pub struct MetricsWriter {
    pipelines: Arc<Pipelines>,
    clock: Arc<dyn Clock>,
    stream: Stream,
}

impl MetricsWriter {
    pub(crate) const fn new(pipelines: Arc<Pipelines>, clock: Arc<dyn Clock>) -> Self {
        Self { pipelines, clock, stream: Stream::Plain }
    }

    /// Marks what this writer writes as the runner's own series (process, host, controllers): it goes in batches of its own,
    /// which a coordinator that wants them takes apart instead of passing them on. Other writers are not touched.
    #[must_use]
    pub fn operational(self) -> Self {
        Self { stream: Stream::Operational, ..self }
    }

    /// Writes a point. Without a timestamp of its own it gets the present one. Names are sanitised. NaN is refused: the
    /// store would drop it and say nothing. Infinities are stored.
    ///
    /// # Errors
    /// The point was not taken, and is counted as dropped.
    pub fn write(&self, mut point: Point<'_>) -> Result<Taken, NotTaken> {
        let outbox = self.pipelines.metrics();
        if point.value.is_nan() {
            return Err(outbox.refuse(DropReason::NotANumber, NotTaken::NotANumber));
        }
        point.timestamp_ms.get_or_insert_with(|| self.now());
        match line_of(&point) {
            Some(line) => outbox.push_to(self.stream, &line),
            None => Err(outbox.refuse(DropReason::Oversize, NotTaken::Oversize)),
        }
    }

    fn now(&self) -> i64 {
        let since = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }
}

/// The point as a line. `None` if the store would not read it.
fn line_of(point: &Point<'_>) -> Option<Vec<u8>> {
    let texts: usize = point.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
    if point.name.len() + texts > MAX_LINE_BYTES {
        return None;
    }
    let mut line = Vec::with_capacity(USUAL_LINE_BYTES);
    write_point(&mut line, point);
    (line.len() <= MAX_LINE_BYTES).then_some(line)
}
