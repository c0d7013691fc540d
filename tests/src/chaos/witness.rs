//! What passed between relay and stores: who saw which items, and what the store answered.
//!
//! An item is told by its source, its number, and the attempt to hand it over: whoever feeds an agent and gets no answer tries again
//! under the next attempt, so that its own repetition is never taken for one of the path.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use serde::Deserialize;
use telemetry_proto::{Signal, exposition};
use tokio::sync::Notify;

/// The metric of every item.
pub(super) const METRIC: &str = "chaos_item";
/// The label and field that name the source.
pub(super) const SOURCE: &str = "chaos_source";
/// The label and field that count attempts.
pub(super) const ATTEMPT: &str = "chaos_attempt";
/// The field that numbers a log line; a metric's number is its value.
pub(super) const NUMBER: &str = "chaos_number";

/// The most that a body decodes to: far above what any batch of ours is.
const MAX_DECODED: u64 = 64 << 20;

/// Numbers in a row of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// The attempt.
    pub(super) attempt: u32,
    /// The first number.
    pub(super) first: u32,
    /// How many there are.
    pub(super) count: u32,
}

impl Run {
    /// Its items.
    pub(super) fn items(self) -> impl Iterator<Item = Item> {
        (self.first..self.first + self.count).map(move |number| Item { attempt: self.attempt, number })
    }
}

/// One item of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Item {
    /// The attempt.
    pub(super) attempt: u32,
    /// The number.
    pub(super) number: u32,
}

/// What became of a request at a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// There is none, or none yet: the store may have it.
    None,
    /// It has it.
    Stored(Instant),
    /// It does not want it.
    Refused,
}

/// A request that went to a store.
#[derive(Debug, Clone)]
pub(super) struct Sighting {
    /// Its items.
    pub(super) runs: Vec<Run>,
    /// Which life of the relay sent it.
    pub(super) relay_life: usize,
    /// Which life of the store was asked.
    pub(super) store_life: usize,
    /// When the whole body was there.
    pub(super) begun: Instant,
    /// What the store said.
    pub(super) answer: Answer,
}

/// The source of a signal: whose items are numbered.
pub(super) type Stream = (String, Signal);

/// Remembers every request of every stream, in order.
#[derive(Debug, Default)]
pub(super) struct Witness {
    sightings: Mutex<BTreeMap<Stream, Vec<Sighting>>>,
    /// A whole request is on its way to a store.
    pub(super) request: Notify,
    /// A store has answered.
    pub(super) answer: Notify,
    holds_answers: AtomicBool,
}

/// Where a sighting is kept, to note its answer.
pub(super) type Place = (Stream, usize);

impl Witness {
    /// A whole request is about to go to the store.
    pub(super) fn begin(&self, stream: Stream, sighting: Sighting) -> Place {
        self.request.notify_waiters();
        let mut sightings = self.sightings.lock();
        let of_stream = sightings.entry(stream.clone()).or_default();
        of_stream.push(sighting);
        (stream, of_stream.len() - 1)
    }

    /// The store answered.
    pub(super) fn end(&self, (stream, index): &Place, answer: Answer) {
        if let Some(sighting) = self.sightings.lock().get_mut(stream).and_then(|all| all.get_mut(*index)) {
            sighting.answer = answer;
        }
        self.answer.notify_waiters();
    }

    /// Keeps answers of the stores from the relay for a moment, so that it can be killed before it has one; or no longer.
    pub(super) fn hold_answers(&self, hold: bool) {
        self.holds_answers.store(hold, Ordering::SeqCst);
    }

    pub(super) fn holds_answers(&self) -> bool {
        self.holds_answers.load(Ordering::SeqCst)
    }

    /// The requests of a stream, in the order in which they came.
    pub(super) fn of(&self, stream: &Stream) -> Vec<Sighting> {
        self.sightings.lock().get(stream).cloned().unwrap_or_default()
    }

    /// How many requests were stored so far.
    pub(super) fn stored(&self) -> usize {
        let is_stored = |sighting: &&Sighting| matches!(sighting.answer, Answer::Stored(_));
        self.sightings.lock().values().flatten().filter(is_stored).count()
    }
}

/// Reads whose items a body has. `None` if it is none of ours.
pub(super) fn read(signal: Signal, is_gzip: bool, body: &[u8]) -> Option<(Stream, Vec<Run>)> {
    let mut plain = Vec::new();
    let body = if is_gzip {
        flate2::read::MultiGzDecoder::new(body).take(MAX_DECODED).read_to_end(&mut plain).ok()?;
        &plain
    } else {
        body
    };
    let mut source = None;
    let mut runs: Vec<Run> = Vec::new();
    let mut add = |of: &str, item: Item| {
        if source.get_or_insert_with(|| of.to_owned()) != of {
            return;
        }
        match runs.last_mut() {
            Some(run) if run.attempt == item.attempt && run.first + run.count == item.number => run.count += 1,
            _ => runs.push(Run { attempt: item.attempt, first: item.number, count: 1 }),
        }
    };
    if signal == Signal::Metrics {
        for point in exposition::parse(body).filter_map(Result::ok) {
            if let Some(item) = item(point.get(ATTEMPT)?, point.value) {
                add(point.get(SOURCE)?, item);
            }
        }
    } else {
        for line in serde_json::Deserializer::from_slice(body).into_iter::<Line>().map_while(Result::ok) {
            if let (Ok(attempt), Ok(number)) = (line.attempt.parse(), line.number.parse()) {
                add(&line.source, Item { attempt, number });
            }
        }
    }
    Some(((source?, signal), runs))
}

/// The item of a sample: its value is its number.
pub(super) fn item(attempt: &str, value: f64) -> Option<Item> {
    // A float of a whole number is written without a point.
    Some(Item { attempt: attempt.parse().ok()?, number: value.to_string().parse().ok()? })
}

/// A log line of ours.
#[derive(Deserialize)]
pub(super) struct Line {
    #[serde(rename = "chaos_source")]
    pub(super) source: String,
    #[serde(rename = "chaos_attempt")]
    pub(super) attempt: String,
    #[serde(rename = "chaos_number")]
    pub(super) number: String,
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn items_of_metrics_are_read() {
        let body = "chaos_item{chaos_source=\"a\",chaos_attempt=\"0\"} 7 1\nchaos_item{chaos_source=\"a\",chaos_attempt=\"0\"} 8 2\n\
                    chaos_item{chaos_source=\"a\",chaos_attempt=\"1\"} 9 3\n";
        let (stream, runs) = read(Signal::Metrics, false, body.as_bytes()).unwrap();
        assert_eq!(stream, ("a".to_owned(), Signal::Metrics));
        assert_eq!(runs, [Run { attempt: 0, first: 7, count: 2 }, Run { attempt: 1, first: 9, count: 1 }]);
        assert!(read(Signal::Metrics, false, b"other 1\n").is_none());
    }

    #[test]
    fn items_of_compressed_logs_are_read() {
        let line =
            |n| format!("{{\"_msg\":\"m\",\"chaos_source\":\"a\",\"chaos_attempt\":\"0\",\"chaos_number\":\"{n}\"}}\n");
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all((line(1) + &line(2) + &line(4)).as_bytes()).unwrap();
        let (stream, runs) = read(Signal::Logs, true, &encoder.finish().unwrap()).unwrap();
        assert_eq!(stream, ("a".to_owned(), Signal::Logs));
        assert_eq!(runs, [Run { attempt: 0, first: 1, count: 2 }, Run { attempt: 0, first: 4, count: 1 }]);
    }
}
