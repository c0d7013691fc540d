//! The fan-out: every sink gets every chunk.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tokio_util::task::TaskTracker;

use super::lane::Lane;
use super::{Chunk, OperationalMetrics, OperationalSink, SinkLimits};

/// The sinks of the operational stream: [`RelayService::operational_sinks`](crate::RelayService::operational_sinks). A
/// handle: clones share the sinks, so that one kept by an embedder attaches to a relay that runs.
///
/// The points that a sink did not take are lost to that sink and counted; the other sinks and the runners notice nothing.
/// While no sink is attached, operational batches go to the metrics store like all others.
#[derive(Clone)]
pub struct OperationalSinks {
    shared: Arc<Shared>,
}

/// An attached sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SinkId(u64);

/// The sinks that get a batch: those that were attached when it came.
#[derive(Clone)]
pub(crate) struct Attached {
    lanes: Arc<Vec<(SinkId, Arc<Lane>)>>,
    tasks: TaskTracker,
}

struct Shared {
    attached: ArcSwap<Vec<(SinkId, Arc<Lane>)>>,
    next_id: AtomicU64,
    limits: SinkLimits,
    metrics: OperationalMetrics,
    tasks: TaskTracker,
}

impl OperationalSinks {
    /// No sinks yet. Each one will have a queue with these limits, and be counted in `metrics`.
    #[must_use]
    pub(crate) fn new(limits: SinkLimits, metrics: &OperationalMetrics) -> Self {
        Self {
            shared: Arc::new(Shared {
                attached: ArcSwap::default(),
                next_id: AtomicU64::new(0),
                limits,
                metrics: metrics.clone(),
                tasks: TaskTracker::new(),
            }),
        }
    }

    /// Attaches a sink, which gets every batch that comes from now on. `name` is its name in metrics and logs; two sinks of
    /// one name are counted together.
    pub fn attach(&self, name: impl Into<Arc<str>>, sink: Arc<dyn OperationalSink>) -> SinkId {
        let Shared { attached, next_id, limits, metrics, .. } = &*self.shared;
        let id = SinkId(next_id.fetch_add(1, Ordering::Relaxed));
        let lane = Arc::new(Lane::new(name.into(), sink, *limits, metrics.clone()));
        attached.rcu(|lanes| [lanes.as_slice(), &[(id, Arc::clone(&lane))]].concat());
        id
    }

    /// Detaches a sink. It is still given what waits for it. Whether it was attached.
    pub fn detach(&self, id: SinkId) -> bool {
        let before = self
            .shared
            .attached
            .rcu(|lanes| lanes.iter().filter(|(other, _)| *other != id).cloned().collect::<Vec<_>>());
        before.iter().any(|(other, _)| *other == id)
    }

    /// Detaches every sink and waits until each has been given what waits for it, and what batches that are being read hand
    /// on. That takes as long as the sinks do; to bound it is the caller's choice. For the end: what is attached later is
    /// not waited for.
    pub async fn close(&self) {
        self.shared.attached.store(Arc::default());
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// The names of the attached sinks, in the order in which they came.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        self.shared.attached.load().iter().map(|(_, lane)| Arc::clone(lane.name())).collect()
    }

    /// What the stream counts.
    #[must_use]
    pub fn metrics(&self) -> &OperationalMetrics {
        &self.shared.metrics
    }

    /// The sinks as they are now, if there are any.
    pub(crate) fn attached(&self) -> Option<Attached> {
        let lanes = self.shared.attached.load_full();
        (!lanes.is_empty()).then(|| Attached { lanes, tasks: self.shared.tasks.clone() })
    }
}

impl Attached {
    /// Queues a chunk for each sink. Never waits.
    pub(super) fn offer(&self, chunk: Chunk) {
        let chunk = Arc::new(chunk);
        self.lanes.iter().for_each(|(_, lane)| lane.offer(&chunk, &self.tasks));
    }
}

impl fmt::Debug for OperationalSinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationalSinks").field("names", &self.names()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
