//! A line before something scarce: so many units, first come first served, with a bounded wait.
//!
//! A request that is refused does not lose its turn: it is told when it will have come, and goes before everyone who came
//! later. Without that, a `Retry-After` that many obey is a promise that one of them sees kept.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::Caller;
use super::queue::{Arrival, Bounds, Queue, Turn};

/// A line. Its bounds come with each request, so that they can change while it is in use.
#[derive(Debug)]
pub(super) struct Line {
    queue: Mutex<Queue>,
}

impl Line {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { queue: Mutex::new(Queue::new()) })
    }

    /// The units that are handed out.
    pub(super) fn used(&self) -> u64 {
        self.queue.lock().used()
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.queue.lock().waiting()
    }

    /// Whether nothing would be lost if the line were forgotten.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.queue.lock().is_idle(now)
    }

    /// Takes `units`, waiting for them until `deadline`. Whoever goes away while they wait leaves the line at once.
    ///
    /// # Errors
    /// When to come back. The request then stands where it stood before.
    pub(super) async fn take(
        self: &Arc<Self>,
        caller: &Caller,
        units: u64,
        bounds: Bounds,
        deadline: Instant,
    ) -> Result<Place, Duration> {
        let (turn, again) = match self.change(|queue| queue.arrive(caller, units, bounds, Instant::now())) {
            Arrival::Served => return Ok(self.place(units)),
            Arrival::TurnedAway(after) => return Err(after),
            Arrival::Waits { turn, again } => (turn, again),
        };
        let wait = Wait { line: self, turn, units, come: false };
        match timeout_at(deadline, wait).await {
            Ok(()) => Ok(self.place(units)),
            Err(_) => Err(self.change(|queue| queue.turn_away(turn, caller, units, again, Instant::now()))),
        }
    }

    /// The turn that the caller would have by its tickets.
    #[cfg(test)]
    pub(super) fn turn_kept_for(&self, caller: &Caller) -> Option<Turn> {
        self.queue.lock().turn_kept_for(caller, Instant::now())
    }

    fn place(self: &Arc<Self>, units: u64) -> Place {
        Place { line: Arc::clone(self), units, since: Instant::now() }
    }

    /// Wakes those whose turn a change has brought, after the lock is given back.
    fn change<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> T {
        let mut queue = self.queue.lock();
        let result = change(&mut queue);
        let woken = queue.take_woken();
        drop(queue);
        woken.into_iter().for_each(Waker::wake);
        result
    }
}

/// Units of a line; given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    line: Arc<Line>,
    units: u64,
    since: Instant,
}

impl Place {
    /// Gives back what is beyond `units`.
    pub(super) fn shrink_to(&mut self, units: u64) {
        let (now, surplus) = (Instant::now(), self.units.saturating_sub(units));
        if surplus > 0 {
            self.units = units;
            self.line.change(|queue| queue.give_back(surplus, now - self.since, now));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let now = Instant::now();
        self.line.change(|queue| queue.give_back(self.units, now - self.since, now));
    }
}

/// Someone in the line.
struct Wait<'a> {
    line: &'a Line,
    turn: Turn,
    units: u64,
    come: bool,
}

impl Future for Wait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.come = self.line.queue.lock().has_come(self.turn, cx.waker());
        if self.come { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if !self.come {
            self.line.change(|queue| queue.leave(self.turn, self.units));
        }
    }
}
