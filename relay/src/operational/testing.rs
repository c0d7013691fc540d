//! Sinks for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use telemetry_proto::RunnerId;
use telemetry_proto::exposition::{Point, write_point};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::{Chunk, OperationalSink, SinkError, SinkFuture};
use crate::admission::TenantLimits;
use crate::tenancy::{Tenancy, Tenant, TenantSet};

/// The one tenant that there is where none is configured.
pub(super) fn tenant() -> Arc<Tenant> {
    Tenancy::new(&TenantSet::single(TenantLimits::default())).tenants().remove(0)
}

/// A chunk of so many small points.
pub(super) fn chunk(points: usize) -> Chunk {
    let mut chunk = Chunk::new(tenant(), RunnerId::new("r7").unwrap());
    (0..points).for_each(|_| chunk.push(Point::new("up", 1.0)));
    chunk
}

/// Keeps every chunk.
pub(super) struct Recording(UnboundedSender<Arc<Chunk>>);

/// What a [`Recording`] has kept.
pub(super) struct Recorded(UnboundedReceiver<Arc<Chunk>>);

impl Recording {
    pub(super) fn new() -> (Arc<Self>, Recorded) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Arc::new(Self(sender)), Recorded(receiver))
    }
}

impl Recorded {
    /// The chunks so far.
    pub(super) fn chunks(&mut self) -> Vec<Arc<Chunk>> {
        std::iter::from_fn(|| self.0.try_recv().ok()).collect()
    }

    /// The sizes of the chunks so far.
    pub(super) fn sizes(&mut self) -> Vec<usize> {
        self.chunks().iter().map(|chunk| chunk.points().len()).collect()
    }

    /// The points so far, as text.
    pub(super) fn lines(&mut self) -> Vec<String> {
        let mut text = Vec::new();
        self.chunks().iter().flat_map(|chunk| chunk.points()).for_each(|point| write_point(&mut text, point));
        String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
    }

    /// The next chunk.
    pub(super) async fn next(&mut self) -> Arc<Chunk> {
        self.0.recv().await.unwrap()
    }
}

impl OperationalSink for Recording {
    fn take(&self, chunk: Arc<Chunk>) -> SinkFuture<'_> {
        Box::pin(async move { self.0.send(chunk).map_err(|_| SinkError::Other("nobody listens".into())) })
    }
}

/// Panics, before it returns a future or within it.
pub(super) struct Panicking {
    pub(super) at_once: bool,
}

impl OperationalSink for Panicking {
    fn take(&self, _chunk: Arc<Chunk>) -> SinkFuture<'_> {
        assert!(!self.at_once, "a panic of the test");
        Box::pin(async { panic!("a panic of the test") })
    }
}

/// Refuses every chunk.
pub(super) struct Refusing;

impl OperationalSink for Refusing {
    fn take(&self, _chunk: Arc<Chunk>) -> SinkFuture<'_> {
        Box::pin(async { Err(SinkError::Other("refused by the test".into())) })
    }
}

/// Never takes a chunk to its end, and counts how many it has begun.
#[derive(Default)]
pub(super) struct Endless {
    pub(super) begun: AtomicUsize,
}

impl OperationalSink for Endless {
    fn take(&self, _chunk: Arc<Chunk>) -> SinkFuture<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::pending())
    }
}
