//! How fast a line moves: what `Retry-After` is reckoned from.

use std::time::Duration;

use tokio::time::Instant;

/// An estimate is believed at least so far ahead.
const NEAR: Duration = Duration::from_secs(3);

/// A line in which nobody stood for so long is another one when it forms again.
const GAP: Duration = Duration::from_secs(10);

/// The smoothed time for which a unit is held. The average goes over about one capacity's worth of units, so that many small
/// holders do not hide the few large ones that everyone waits for.
#[derive(Debug)]
pub(super) struct Pace {
    unit_seconds: f64,
    units: f64,
    /// When something was last given back, or the line began to form.
    last_move: Option<Instant>,
    /// Since when the line stands, and when it was last seen to.
    stands: Option<(Instant, Instant)>,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Self { unit_seconds: 0.0, units: 0.0, last_move: None, stands: None }
    }

    /// Someone is the first to wait.
    pub(super) const fn line_forms(&mut self, now: Instant) {
        self.last_move = Some(now);
    }

    /// Someone waits, or is sent away.
    pub(super) fn line_stands(&mut self, now: Instant) {
        let since = match self.stands {
            Some((since, seen)) if now.saturating_duration_since(seen) <= GAP => since,
            _ => now,
        };
        self.stands = Some((since, now));
    }

    /// `units` were given back, of `capacity`, after they had been held for so long.
    pub(super) fn released(&mut self, units: u64, capacity: u64, held: Duration, now: Instant) {
        let keep = capacity as f64 / (capacity as f64 + units as f64);
        self.unit_seconds = self.unit_seconds * keep + units as f64 * held.as_secs_f64();
        self.units = self.units * keep + units as f64;
        self.last_move = Some(now);
    }

    /// When whoever has `ahead` units before them, their own included, will have been served: all that is held now must
    /// be given back, and all that is ahead after it. What is held now takes as long again as nothing has moved for; that says nothing
    /// of those who come after a stand-still.
    pub(super) fn until_served(&self, ahead: u64, capacity: u64, now: Instant) -> Duration {
        let held = if self.units > 0.0 { self.unit_seconds / self.units } else { 0.0 };
        let stood = self.last_move.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        let rounds = ahead as f64 / capacity.max(1) as f64;
        Duration::try_from_secs_f64(held.max(stood.as_secs_f64()) + held * rounds).unwrap_or(Duration::MAX)
    }

    /// How much of `estimate` to tell someone who is sent away for the first time. A line that stands since a few seconds may become
    /// ten times as fast in the next few: after a restart, with a machine that has thousands of handshakes behind it. So what is further
    /// away than half the time for which the line has stood counts less and less, and nobody is told more than that time; whoever
    /// comes too early for it waits, and is told the whole of a better estimate then.
    pub(super) fn believed(&self, estimate: Duration, now: Instant) -> Duration {
        let stands = self.stands.map_or(Duration::ZERO, |(since, _)| now.saturating_duration_since(since));
        let near = (stands / 2).max(NEAR);
        if estimate <= near {
            return estimate;
        }
        near.mul_f64(2.0 - near.as_secs_f64() / estimate.as_secs_f64())
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
    fn a_line_that_stands_still_is_not_called_fast_nor_are_all_rounds_to_come_as_slow() {
        let now = Instant::now();
        let mut pace = Pace::new();
        pace.line_forms(now);
        assert_eq!(pace.until_served(400, 4, now + 10 * SECOND), 10 * SECOND, "nothing else is known");
        pace.released(4, 4, SECOND, now);
        assert_eq!(pace.until_served(40, 4, now + 10 * SECOND), 20 * SECOND);
        assert_eq!(pace.until_served(u64::MAX, 1, now), Duration::MAX);
    }

    #[test]
    fn what_a_line_of_a_few_seconds_promises_for_later_counts_less_and_keeps_its_order() {
        let now = Instant::now();
        let mut pace = Pace::new();
        pace.line_stands(now);
        let told = |pace: &Pace, estimate, now| pace.believed(estimate * SECOND, now);
        let of_young: Vec<_> = [1, 3, 10, 45, 300].map(|estimate| told(&pace, estimate, now + SECOND)).into();
        assert_eq!((of_young[0], of_young[1]), (SECOND, 3 * SECOND));
        assert!(of_young.is_sorted_by(|one, next| one < next) && of_young[4] < 6 * SECOND, "{of_young:?}");
        for second in 1..=120 {
            pace.line_stands(now + second * SECOND);
        }
        let later = now + 120 * SECOND;
        assert_eq!(told(&pace, 45, later), 45 * SECOND, "a line that stands that long is known");
        assert!(told(&pace, 300, later) < 120 * SECOND);
        let later = later + GAP + SECOND;
        pace.line_stands(later);
        assert!(told(&pace, 45, later) < 6 * SECOND, "another line");
    }
}
