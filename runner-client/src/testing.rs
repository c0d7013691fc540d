//! Helpers of the unit tests.

use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use telemetry_proto::Clock;
use tokio::time::Instant;

/// A time of day that passes as tokio's time does, paused or not, and that can be set off.
pub(crate) struct TestClock {
    start: Instant,
    at_start: Mutex<SystemTime>,
}

impl TestClock {
    pub(crate) fn new() -> Self {
        let at_start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
        Self { start: Instant::now(), at_start: Mutex::new(at_start) }
    }

    /// A clock that is this much behind [`TestClock::new`].
    pub(crate) fn behind(self, by: Duration) -> Self {
        *self.at_start.lock() -= by;
        self
    }
}

impl Clock for TestClock {
    fn now(&self) -> SystemTime {
        *self.at_start.lock() + self.start.elapsed()
    }
}
