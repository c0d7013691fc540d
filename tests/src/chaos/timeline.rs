//! What really happened, and when: the lives of processes, and the faults.

use std::time::Instant;

use parking_lot::Mutex;

use super::plan::FaultKind;

/// How a life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// By SIGKILL.
    Killed,
    /// In good order.
    Stopped,
}

/// The lives of one process, one after the other.
#[derive(Debug)]
pub(super) struct Lives {
    // Ends of those that are over; there is one more that goes on.
    ends: Mutex<Vec<(Instant, End)>>,
}

impl Lives {
    /// The first life begins.
    pub(super) const fn new() -> Self {
        Self { ends: Mutex::new(Vec::new()) }
    }

    /// The number of the present life, from 0. A dead process is in its last one until it is started again.
    pub(super) fn current(&self) -> usize {
        self.ends.lock().len()
    }

    /// The process died at `at`, and is about to be started again.
    pub(super) fn next(&self, at: Instant, end: End) {
        self.ends.lock().push((at, end));
    }

    /// The ends of all that are over.
    pub(super) fn ends(&self) -> Vec<(Instant, End)> {
        self.ends.lock().clone()
    }
}

/// A fault that is over.
#[derive(Debug, Clone)]
pub(super) struct Incident {
    /// What it was.
    pub(super) kind: FaultKind,
    /// What it hit; `None` for everything.
    pub(super) target: Option<String>,
    /// When it began.
    pub(super) began: Instant,
    /// When it ended.
    pub(super) ended: Instant,
}
