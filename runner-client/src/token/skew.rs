//! How far the runner's clock is off.

use std::time::{Duration, SystemTime};

/// A difference that is worth a line in the log.
const NOTEWORTHY: Duration = Duration::from_secs(60);

/// What is known about the difference between the issuer's clock and the runner's own.
#[derive(Debug, Default)]
pub(super) struct Skew {
    ahead: Duration,
    behind: Duration,
    told: bool,
}

impl Skew {
    /// Learns from an answer that was asked for at `asked` and came at `answered`, by the runner's clock.
    pub(super) fn learn(&mut self, server_time: SystemTime, asked: SystemTime, answered: SystemTime) {
        let middle = asked + answered.duration_since(asked).unwrap_or_default() / 2;
        self.ahead = server_time.duration_since(middle).unwrap_or_default();
        self.behind = middle.duration_since(server_time).unwrap_or_default();
        if self.ahead.max(self.behind) > NOTEWORTHY && !self.told {
            self.told = true;
            tracing::warn!(
                runner_is_behind_s = self.ahead.as_secs(),
                runner_is_ahead_s = self.behind.as_secs(),
                "the clocks of runner and coordinator differ by more than a minute"
            );
        }
    }

    /// Reads the issuer's clock where the runner's shows `local`.
    pub(super) fn issuer_time(&self, local: SystemTime) -> SystemTime {
        let ahead = local.checked_add(self.ahead).unwrap_or(local);
        ahead.checked_sub(self.behind).unwrap_or(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_taken_from_the_middle_of_the_exchange() {
        let at = |s| SystemTime::UNIX_EPOCH + Duration::from_secs(s);
        let mut skew = Skew::default();
        assert_eq!(skew.issuer_time(at(500)), at(500));
        skew.learn(at(205), at(100), at(110));
        assert_eq!(skew.issuer_time(at(500)), at(600));
        assert!(skew.told);
        skew.learn(at(5), at(100), at(110));
        assert_eq!(skew.issuer_time(at(500)), at(400));
    }
}
