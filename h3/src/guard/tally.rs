//! A count that ages.

use std::time::Duration;

use tokio::time::Instant;

/// Counts what should be rare, and forgives one every now and then: what is left after a quiet time is nothing.
#[derive(Debug)]
pub(super) struct Tally {
    count: u32,
    /// Up to when forgiving is done.
    since: Instant,
    forgiven_after: Duration,
}

impl Tally {
    pub(super) fn new(forgiven_after: Duration, now: Instant) -> Self {
        Self { count: 0, since: now, forgiven_after: forgiven_after.max(Duration::from_nanos(1)) }
    }

    /// Adds one and says how many there are.
    pub(super) fn add(&mut self, now: Instant) -> u32 {
        let waited = now.saturating_duration_since(self.since);
        let forgiven = u32::try_from(waited.as_nanos() / self.forgiven_after.as_nanos()).unwrap_or(u32::MAX);
        if forgiven >= self.count {
            self.count = 0;
            self.since = now;
        } else {
            self.count -= forgiven;
            self.since += self.forgiven_after * forgiven;
        }
        self.count = self.count.saturating_add(1);
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_counts_in_full() {
        let start = Instant::now();
        let mut tally = Tally::new(10 * SECOND, start);
        assert_eq!((1..=5).map(|_| tally.add(start)).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn what_comes_no_faster_than_it_is_forgiven_never_adds_up() {
        let start = Instant::now();
        let mut tally = Tally::new(10 * SECOND, start);
        for i in 1..1_000 {
            assert_eq!(tally.add(start + 10 * SECOND * i), 1);
        }
    }

    #[test]
    fn what_comes_twice_as_fast_adds_up_to_half() {
        let start = Instant::now();
        let mut tally = Tally::new(10 * SECOND, start);
        let last = (1..=1_000).map(|i| tally.add(start + 5 * SECOND * i)).last();
        assert!(matches!(last, Some(499..=501)), "{last:?}");
    }

    #[test]
    fn a_quiet_time_is_not_saved_up() {
        let start = Instant::now();
        let mut tally = Tally::new(10 * SECOND, start);
        tally.add(start);
        let later = start + 1_000_000 * SECOND;
        assert_eq!((1..=3).map(|_| tally.add(later)).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn no_time_at_all_forgives_everything_but_the_last() {
        let start = Instant::now();
        let mut tally = Tally::new(Duration::ZERO, start);
        assert_eq!((tally.add(start), tally.add(start + SECOND)), (1, 1));
    }
}
