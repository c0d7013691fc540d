//! A bounded number of places to wait in.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts those who wait and lets only so many in.
#[derive(Debug)]
pub(super) struct WaitingRoom {
    taken: AtomicUsize,
    max: usize,
}

impl WaitingRoom {
    pub(super) const fn new(max: usize) -> Self {
        Self { taken: AtomicUsize::new(0), max }
    }

    /// How many wait now.
    pub(super) fn len(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes a seat; `None` when all are taken. A seat is free again as soon as it is dropped.
    pub(super) fn enter(&self) -> Option<Seat<'_>> {
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < self.max).then_some(n + 1));
        taken.ok().map(|_| Seat(self))
    }
}

/// A place in a [`WaitingRoom`].
pub(super) struct Seat<'a>(&'a WaitingRoom);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
