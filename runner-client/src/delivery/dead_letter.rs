//! Batches of metrics and logs that the relay will never accept. Rejected spans are counted and gone.

use std::collections::VecDeque;
use std::time::SystemTime;

use bytes::Bytes;
use parking_lot::Mutex;
use telemetry_proto::{Reason, Signal};
use ulid::Ulid;

use crate::spool::BodyEncoding;

/// How many rejections are remembered.
const REMEMBERED: usize = 64;

/// A batch that was rejected for good.
#[derive(Debug, Clone)]
pub struct Rejected {
    /// When it was rejected.
    pub at: SystemTime,
    /// What it holds.
    pub signal: Signal,
    /// Its ID.
    pub batch_id: Ulid,
    /// How many items were lost with it.
    pub items: u64,
    /// Its size in bytes, as it was sent.
    pub bytes: usize,
    /// How its body is encoded.
    pub encoding: BodyEncoding,
    /// The query that it was sent with: names of fields.
    pub query: Option<Box<str>>,
    /// The status of the response.
    pub status: u16,
    /// The relay's reason, where it gave one that we know.
    pub reason: Option<Reason>,
}

/// Puts rejected batches of metrics and logs aside; of spans nothing is kept. Called by delivery, which waits: it must
/// return soon, and not panic.
pub trait DeadLetters: Send + Sync + 'static {
    /// Takes what is known about a rejected batch, and its bytes.
    fn put_aside(&self, rejected: Rejected, body: Bytes);
}

/// Remembers the last 64 rejections, without the bytes.
#[derive(Debug, Default)]
pub struct RecentRejections(Mutex<VecDeque<Rejected>>);

impl RecentRejections {
    /// The rejections that are remembered, oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<Rejected> {
        self.0.lock().iter().cloned().collect()
    }
}

impl DeadLetters for RecentRejections {
    fn put_aside(&self, rejected: Rejected, _body: Bytes) {
        let mut recent = self.0.lock();
        if recent.len() == REMEMBERED {
            recent.pop_front();
        }
        recent.push_back(rejected);
    }
}
