//! Storing a batch at most once: which batches were acknowledged, and which are under way.

mod batch_id;
mod file;
pub(crate) mod format;
mod keep;
mod memory;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telemetry_proto::{Reason, Signal};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

pub use batch_id::BatchId;
pub use file::BatchIdError;
pub(crate) use file::{BatchIdFile, FOLDER_REMEDY};
pub use format::FormatError;
use memory::{Memory, Seen};

use crate::gate::Author;
use crate::refusal::Refusal;

/// Bounds of what is remembered. An ID costs about 160 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnceLimits {
    /// How long an acknowledged ID is remembered at most. Default 1 h.
    pub max_age: Duration,
    /// How many IDs of one runner are remembered; its oldest go first. Default 16,384.
    pub per_runner: usize,
    /// How many IDs of all runners are remembered; the oldest go first. Default 500,000, about 80 MB.
    pub total: usize,
    /// How long a repeat waits for the first of its ID. Default 40 s, a little more than a store may take.
    pub max_wait: Duration,
}

impl Default for OnceLimits {
    fn default() -> Self {
        Self {
            max_age: Duration::from_secs(60 * 60),
            per_runner: 16_384,
            total: 500_000,
            max_wait: Duration::from_secs(40),
        }
    }
}

/// A batch of a runner. The signal is part of it, so that a sender who gives one ID to batches of two signals loses none.
type Key = (Signal, BatchId);

/// Remembers the batch IDs that stores acknowledged, per runner, within [`OnceLimits`].
///
/// The memory is this relay's own: a batch that is tried again at another relay may be stored twice, and so may one whose
/// acknowledgement by the store never reached this relay. It outlives a stop where there is a
/// [folder](crate::RelayBuilder::state_folder) for it; it does not outlive a kill.
#[derive(Debug)]
pub struct Once {
    limits: OnceLimits,
    memory: Mutex<Memory>,
}

/// What a batch ID turns out to be.
#[derive(Debug)]
pub enum Claim {
    /// Nobody has brought this batch so far: forward it, and [acknowledge](Lease::acknowledge) it once its store has.
    First(Lease),
    /// The batch was acknowledged before.
    Duplicate,
}

impl Once {
    /// An empty memory.
    #[must_use]
    pub fn new(limits: OnceLimits) -> Arc<Self> {
        Arc::new(Self { limits, memory: Mutex::new(Memory::new(limits.per_runner, limits.total, limits.max_age)) })
    }

    /// How many acknowledged IDs are remembered now.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.memory.lock().len()
    }

    /// Claims a batch. While another request with the same ID is under way, waits for its end: if that one fails, this one
    /// is the first.
    ///
    /// # Errors
    /// `backend-timeout`, a retry, when the other request takes too long.
    pub async fn claim(self: &Arc<Self>, author: &Author, signal: Signal, id: BatchId) -> Result<Claim, Refusal> {
        let key = (signal, id);
        let deadline = Instant::now() + self.limits.max_wait;
        loop {
            let ended = {
                let mut memory = self.memory.lock();
                match memory.claim(author, key, Instant::now()) {
                    Seen::Never => return Ok(Claim::First(Lease::new(self, author, key))),
                    Seen::Acknowledged => return Ok(Claim::Duplicate),
                    // The future is made under the lock, so that no end can slip in between.
                    Seen::UnderWay(notify) => notify.notified_owned(),
                }
            };
            timeout_at(deadline, ended).await.map_err(|_| Refusal::new(Reason::BackendTimeout))?;
        }
    }
}

/// The right to forward a batch. Dropped without acknowledgement, it is as if the batch had never come.
#[derive(Debug)]
pub struct Lease {
    once: Arc<Once>,
    author: Author,
    key: Key,
    acknowledged: bool,
}

impl Lease {
    fn new(once: &Arc<Once>, author: &Author, key: Key) -> Self {
        Self { once: Arc::clone(once), author: author.clone(), key, acknowledged: false }
    }

    /// The store acknowledged the batch: its repeats are duplicates from now on.
    pub fn acknowledge(mut self) {
        self.acknowledged = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let waiting: Option<Arc<Notify>> =
            self.once.memory.lock().end(&self.author, self.key, self.acknowledged, Instant::now());
        if let Some(waiting) = waiting {
            waiting.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::fixtures::author;

    fn id(n: u128) -> BatchId {
        BatchId::from_u128(n)
    }

    fn runner(name: &str) -> Author {
        author(name)
    }

    async fn first(once: &Arc<Once>, name: &str, n: u128) -> Lease {
        match once.claim(&runner(name), Signal::Logs, id(n)).await.unwrap() {
            Claim::First(lease) => lease,
            Claim::Duplicate => panic!("{name} {n} is a duplicate"),
        }
    }

    async fn is_duplicate(once: &Arc<Once>, name: &str, n: u128) -> bool {
        matches!(once.claim(&runner(name), Signal::Logs, id(n)).await.unwrap(), Claim::Duplicate)
    }

    #[tokio::test]
    async fn an_acknowledged_batch_is_a_duplicate_for_its_runner_only() {
        let once = Once::new(OnceLimits::default());
        first(&once, "a", 1).await.acknowledge();
        assert!(is_duplicate(&once, "a", 1).await);
        assert!(!is_duplicate(&once, "b", 1).await, "another runner's ID is another batch");
        let other_signal = once.claim(&runner("a"), Signal::Metrics, id(1)).await.unwrap();
        assert!(matches!(other_signal, Claim::First(_)), "so is the ID on another signal");
    }

    #[tokio::test]
    async fn a_batch_that_failed_may_come_again() {
        let once = Once::new(OnceLimits::default());
        drop(first(&once, "a", 1).await);
        first(&once, "a", 1).await.acknowledge();
        assert!(is_duplicate(&once, "a", 1).await);
    }

    #[tokio::test]
    async fn repeats_wait_for_the_first_and_one_takes_over_when_it_fails() {
        let once = Once::new(OnceLimits::default());
        let lease = first(&once, "a", 1).await;
        let repeats: Vec<_> = (0..5)
            .map(|_| {
                let once = Arc::clone(&once);
                tokio::spawn(async move {
                    match once.claim(&runner("a"), Signal::Logs, id(1)).await.unwrap() {
                        Claim::First(lease) => {
                            tokio::task::yield_now().await;
                            lease.acknowledge();
                            1
                        }
                        Claim::Duplicate => 0,
                    }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        drop(lease);
        let mut stored = 0;
        for repeat in repeats {
            stored += repeat.await.unwrap();
        }
        assert_eq!(stored, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeat_does_not_wait_for_ever() {
        let once = Once::new(OnceLimits::default());
        let _lease = first(&once, "a", 1).await;
        let refusal = once.claim(&runner("a"), Signal::Logs, id(1)).await.unwrap_err();
        assert_eq!(refusal.reason(), Reason::BackendTimeout);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_ends_with_time() {
        let once = Once::new(OnceLimits::default());
        first(&once, "a", 1).await.acknowledge();
        tokio::time::advance(OnceLimits::default().max_age).await;
        assert!(!is_duplicate(&once, "a", 1).await);
        assert_eq!(once.remembered(), 0);
    }
}
