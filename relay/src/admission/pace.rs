//! How fast a line moves: what `Retry-After` is reckoned from.

use std::time::Duration;

use tokio::time::Instant;

/// The smoothed time for which a unit is held. The average goes over about one capacity's worth of units, so that many small
/// holders do not hide the few large ones that everyone waits for.
#[derive(Debug)]
pub(super) struct Pace {
    unit_seconds: f64,
    units: f64,
    /// When something was last given back, or the line began to form.
    last_move: Option<Instant>,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Self { unit_seconds: 0.0, units: 0.0, last_move: None }
    }

    /// Someone is the first to wait.
    pub(super) const fn line_forms(&mut self, now: Instant) {
        self.last_move = Some(now);
    }

    /// `units` were given back, of `capacity`, after they had been held for so long.
    pub(super) fn released(&mut self, units: u64, capacity: u64, held: Duration, now: Instant) {
        let keep = capacity as f64 / (capacity as f64 + units as f64);
        self.unit_seconds = self.unit_seconds * keep + units as f64 * held.as_secs_f64();
        self.units = self.units * keep + units as f64;
        self.last_move = Some(now);
    }

    /// When whoever has `ahead` units before them, their own included, will have been served: all that is held now must
    /// be given back, and all that is ahead after it. A line that stands still counts as one that moves once in the time
    /// for which it has stood.
    pub(super) fn until_served(&self, ahead: u64, capacity: u64, now: Instant) -> Duration {
        let held = if self.units > 0.0 { self.unit_seconds / self.units } else { 0.0 };
        let stood = self.last_move.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        let rounds = 1.0 + ahead as f64 / capacity.max(1) as f64;
        Duration::try_from_secs_f64(held.max(stood.as_secs_f64()) * rounds).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_steady_line_is_reckoned_by_its_rounds() {
        let now = Instant::now();
        let mut pace = Pace::new();
        for _ in 0..20 {
            pace.released(1, 4, SECOND, now);
        }
        assert_eq!(pace.until_served(1, 4, now).as_millis(), 1_250);
        assert_eq!(pace.until_served(40, 4, now).as_secs(), 11);
    }

    #[test]
    fn small_holders_do_not_hide_large_ones() {
        let now = Instant::now();
        let mut pace = Pace::new();
        pace.released(50, 100, 10 * SECOND, now);
        for _ in 0..20 {
            pace.released(1, 100, Duration::from_millis(1), now);
        }
        assert!(pace.until_served(0, 100, now) > 5 * SECOND);
    }

    #[test]
    fn a_line_that_stands_still_is_not_called_fast() {
        let now = Instant::now();
        let mut pace = Pace::new();
        pace.line_forms(now);
        assert_eq!(pace.until_served(0, 4, now + 10 * SECOND), 10 * SECOND);
        assert_eq!(pace.until_served(u64::MAX, 1, now + 10 * SECOND), Duration::MAX);
    }
}
