//! Items become batches.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use ulid::Ulid;

use crate::spool::{BodyEncoding, Position};

/// When a batch is closed: at the first of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// As many items.
    pub max_items: u64,
    /// As many bytes; at most 32 MiB.
    pub max_bytes: usize,
    /// The age of the first item, once nothing older is waiting.
    pub max_age: Duration,
}

/// What a batch is marked as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stream {
    /// Nothing: it goes to the store.
    #[default]
    Plain,
    /// The runner's own series.
    Operational,
}

/// Makes a body of a batch's items where they are not one as they stand.
pub(crate) type Frame = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// A closed batch. Its bytes never change again, whatever the number of attempts.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    /// Chosen once, so that the relay stores the batch at most once.
    pub(crate) id: Ulid,
    /// Counts batches of the signal.
    pub(crate) number: u64,
    pub(crate) items: u64,
    pub(crate) body: Bytes,
    /// When its first item was written.
    pub(crate) born: Instant,
    /// How the body is encoded.
    pub(crate) encoding: BodyEncoding,
    /// What goes behind the path: names of fields.
    pub(crate) query: Option<Box<str>>,
    /// Which stream it is marked for.
    pub(crate) stream: Stream,
    /// Where the spool has it. `None`: it is in memory only.
    pub(crate) position: Option<Position>,
}

/// The batches that take lines now, one for each stream: lines of one don't close the other's.
#[derive(Debug, Default)]
pub(super) struct OpenBatches {
    plain: OpenBatch,
    operational: OpenBatch,
}

impl OpenBatches {
    /// How many may be open at a time.
    pub(super) const MAX: usize = 2;
    pub(super) const STREAMS: [Stream; Self::MAX] = [Stream::Plain, Stream::Operational];

    pub(super) const fn of(&mut self, stream: Stream) -> &mut OpenBatch {
        match stream {
            Stream::Plain => &mut self.plain,
            Stream::Operational => &mut self.operational,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.plain.len() + self.operational.len()
    }

    /// When the first is to be closed for its age.
    pub(super) fn due(&self, limits: &BatchLimits) -> Option<Instant> {
        [self.plain.due(limits), self.operational.due(limits)].into_iter().flatten().min()
    }
}

/// A batch that takes lines now.
#[derive(Debug, Default)]
pub(super) struct OpenBatch {
    buffer: Vec<u8>,
    items: u64,
    born: Option<Instant>,
}

impl OpenBatch {
    /// The first allocation of a batch.
    const FIRST_ALLOCATION: usize = 4 * 1024;

    /// Whether one more line would make the batch too large.
    pub(super) const fn would_burst(&self, line: usize, limits: &BatchLimits) -> bool {
        self.items > 0 && self.buffer.len() + line > limits.max_bytes
    }

    pub(super) fn push(&mut self, line: &[u8], limits: &BatchLimits, now: Instant) {
        let needed = self.buffer.len() + line.len();
        if needed > self.buffer.capacity() {
            // Doubling, but never past the limit: what is allocated is what the memory budget counts.
            let wanted = (2 * self.buffer.capacity()).max(Self::FIRST_ALLOCATION).min(limits.max_bytes).max(needed);
            self.buffer.reserve_exact(wanted - self.buffer.len());
        }
        self.buffer.extend_from_slice(line);
        self.items += 1;
        self.born.get_or_insert(now);
    }

    pub(super) const fn is_full(&self, limits: &BatchLimits) -> bool {
        self.items >= limits.max_items || self.buffer.len() >= limits.max_bytes
    }

    pub(super) const fn len(&self) -> usize {
        self.buffer.len()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// When the batch is to be closed for its age; `None` while it is empty.
    pub(super) fn due(&self, limits: &BatchLimits) -> Option<Instant> {
        self.born?.checked_add(limits.max_age)
    }

    /// Closes the batch. `None` if it is empty.
    pub(super) fn close(
        &mut self,
        stream: Stream,
        id: impl FnOnce() -> Ulid,
        number: u64,
        frame: Option<&Frame>,
    ) -> Option<Batch> {
        let born = self.born.take()?;
        let mut body = std::mem::take(&mut self.buffer);
        if let Some(frame) = frame {
            body = frame(&body);
        }
        body.shrink_to_fit();
        let items = std::mem::take(&mut self.items);
        let encoding = BodyEncoding::Identity;
        Some(Batch { id: id(), number, items, body: body.into(), born, encoding, query: None, stream, position: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BatchLimits = BatchLimits { max_items: 3, max_bytes: 10, max_age: Duration::from_secs(1) };

    #[test]
    fn a_batch_is_full_by_count_and_by_size() {
        let mut open = OpenBatch::default();
        assert!(open.close(Stream::Plain, Ulid::nil, 0, None).is_none());
        assert!(!open.would_burst(100, &LIMITS), "an empty batch takes any line");
        open.push(b"1234", &LIMITS, Instant::now());
        assert!(!open.would_burst(6, &LIMITS) && open.would_burst(7, &LIMITS));
        open.push(b"a", &LIMITS, Instant::now());
        assert!(!open.is_full(&LIMITS));
        open.push(b"b", &LIMITS, Instant::now());
        assert!(open.is_full(&LIMITS));
        let batch = open.close(Stream::Plain, Ulid::nil, 7, None).unwrap();
        assert_eq!((batch.items, batch.number, &batch.body[..]), (3, 7, &b"1234ab"[..]));
        open.push(b"0123456789", &LIMITS, Instant::now());
        assert!(open.is_full(&LIMITS));
    }

    #[test]
    fn memory_for_a_batch_never_exceeds_its_limit() {
        let limits = BatchLimits { max_items: u64::MAX, max_bytes: 9_000, max_age: Duration::ZERO };
        let mut open = OpenBatch::default();
        while !open.would_burst(100, &limits) {
            open.push(&[b'x'; 100], &limits, Instant::now());
            assert!(open.buffer.capacity() <= limits.max_bytes);
        }
        assert_eq!(open.items, 90);
    }
}
