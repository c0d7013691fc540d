//! The time of day, as a value that tests can set.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells the time of day. Whatever ages takes a clock, so that tests need not sleep.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> SystemTime;

    /// Now, in whole seconds since 1970 (RFC 7519 NumericDate).
    fn unix_seconds(&self) -> u64 {
        self.now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
    }
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> SystemTime {
        (**self).now()
    }
}
