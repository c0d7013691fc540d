//! A part of a batch, as sinks receive it.

use std::fmt;
use std::mem::size_of;
use std::sync::Arc;

use telemetry_proto::RunnerId;
use telemetry_proto::exposition::{Label, Point};

use super::limits::{CHUNK_BYTES, CHUNK_POINTS};
use crate::tenancy::Tenant;

/// What an allocation takes beside its contents, roughly.
const ALLOCATION: usize = 16;

/// Points of one batch: at most 1,000, in their order. Each has passed every rule, bears `miren_runner` and a timestamp,
/// and has its labels sorted by name.
#[derive(Clone)]
pub struct Chunk {
    tenant: Arc<Tenant>,
    runner: RunnerId,
    points: Vec<Point<'static>>,
    bytes: usize,
}

impl Chunk {
    pub(super) const fn new(tenant: Arc<Tenant>, runner: RunnerId) -> Self {
        Self { tenant, runner, points: Vec::new(), bytes: 0 }
    }

    /// The runner's tenant, whose the points are.
    #[must_use]
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// The runner that sent them, as its certificate says. It is the `miren_runner` of every point, unless its token names
    /// no runner: then the points keep the label that they came with.
    #[must_use]
    pub const fn runner(&self) -> &RunnerId {
        &self.runner
    }

    /// The points.
    #[must_use]
    pub fn points(&self) -> &[Point<'static>] {
        &self.points
    }

    /// The memory that they take, in bytes, roughly.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn push(&mut self, point: Point<'static>) {
        self.bytes += weight(&point);
        self.points.push(point);
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    pub(super) const fn is_full(&self) -> bool {
        self.points.len() >= CHUNK_POINTS || self.bytes >= CHUNK_BYTES
    }
}

/// Without the points, which are payload.
impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tenant, runner, points, bytes } = self;
        f.debug_struct("Chunk")
            .field("tenant", tenant.name())
            .field("runner", runner)
            .field("points", &points.len())
            .field("bytes", bytes)
            .finish()
    }
}

fn weight(point: &Point<'_>) -> usize {
    let labels = point.labels.iter().map(|(name, value)| name.len() + value.len() + 2 * ALLOCATION);
    let labels: usize = labels.map(|text| size_of::<Label<'_>>() + text).sum();
    size_of::<Point<'_>>() + point.name.len() + 2 * ALLOCATION + labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operational::testing;

    #[test]
    fn a_chunk_is_full_by_number_or_by_memory() {
        let mut chunk = testing::chunk(0);
        (1..CHUNK_POINTS).for_each(|_| chunk.push(Point::new("up", 1.0)));
        assert!(!chunk.is_full());
        chunk.push(Point::new("up", 1.0));
        assert!(chunk.is_full());

        let mut chunk = testing::chunk(0);
        chunk.push(Point::new("up", 1.0).label("a", "x".repeat(CHUNK_BYTES)));
        assert!(chunk.is_full());
    }

    #[test]
    fn a_chunk_does_not_show_its_points() {
        let mut chunk = testing::chunk(0);
        chunk.push(Point::new("secret", 1.0));
        let shown = format!("{chunk:?}");
        assert!(shown.contains("r7") && !shown.contains("secret"), "{shown}");
    }
}
