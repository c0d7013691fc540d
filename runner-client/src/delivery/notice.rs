//! Events that could be many become few, with a count.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two events of one kind.
const INTERVAL: Duration = Duration::from_secs(30);

/// Counts what happens and says when to tell it. Our own log may end in the writers whose trouble it describes.
#[derive(Debug, Default)]
pub(super) struct Notice {
    untold: u64,
    told_at: Option<Instant>,
}

impl Notice {
    /// Adds to the count. `Some`: tell that many now.
    pub(super) fn count(&mut self, more: u64, now: Instant) -> Option<u64> {
        self.untold += more;
        if self.untold == 0 || self.told_at.is_some_and(|at| now.duration_since(at) < INTERVAL) {
            return None;
        }
        self.told_at = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_the_others_together() {
        let start = Instant::now();
        let mut notice = Notice::default();
        assert_eq!(notice.count(0, start), None);
        assert_eq!(notice.count(2, start), Some(2));
        assert_eq!(notice.count(3, start + INTERVAL / 2), None);
        assert_eq!(notice.count(4, start + INTERVAL), Some(7));
        assert_eq!(notice.count(0, start + 3 * INTERVAL), None);
    }
}
