//! How often a runner may ask for a token, or for a certificate.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use telemetry_proto::RunnerId;

/// How often one runner may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MintRate {
    /// How many tokens a minute, in the long run.
    pub per_minute: u32,
    /// How many at once, after a rest. A runner that starts with several writers and restarts once needs a few.
    pub burst: u32,
}

impl Default for MintRate {
    fn default() -> Self {
        Self { per_minute: 6, burst: 6 }
    }
}

/// Counts each runner's requests with the generic cell rate algorithm (ITU-T I.371 annex A): one time per runner, from
/// which both the answer and the wait follow.
///
/// Invariants:
/// - a time that lies in the past says nothing and may be forgotten;
/// - no time lies further ahead than a whole burst takes to come back, even when the clock jumps back: nobody waits longer;
/// - at most [`MAX_RUNNERS`] times are held. A runner that finds no place is told to come back: that many runners at once are
///   an attack or a restart of the whole cluster, and both get better with time.
#[derive(Debug)]
pub(crate) struct MintLimiter {
    interval_ms: u64,
    window_ms: u64,
    state: Mutex<State>,
}

/// How many runners are counted at the same time. One costs about 200 bytes at most.
pub(super) const MAX_RUNNERS: usize = 64 * 1024;

/// How often a full table is searched for entries to forget.
const PURGE_EVERY_MS: u64 = 1_000;

#[derive(Debug, Default)]
struct State {
    /// When each runner's bucket is full again, in milliseconds since 1970.
    full_at: HashMap<RunnerId, u64>,
    purged_at: u64,
}

impl MintLimiter {
    pub(crate) fn new(rate: MintRate) -> Self {
        let interval_ms = 60_000_u64.div_ceil(u64::from(rate.per_minute).max(1));
        let window_ms = interval_ms.saturating_mul(u64::from(rate.burst).max(1));
        Self { interval_ms, window_ms, state: Mutex::default() }
    }

    /// Takes one token request of `runner` into account, or says how long to wait.
    pub(crate) fn admit(&self, runner: &RunnerId, now: SystemTime) -> Result<(), Duration> {
        let now = millis(now);
        let mut state = self.state.lock();
        let full_at = state.full_at.get(runner).map_or(now, |full_at| self.bounded(*full_at, now));
        let next = full_at + self.interval_ms;
        let over = next.saturating_sub(now.saturating_add(self.window_ms));
        if over > 0 {
            return Err(Duration::from_millis(over));
        }
        if state.full_at.len() >= MAX_RUNNERS && !state.full_at.contains_key(runner) && !state.purge(now) {
            return Err(Duration::from_millis(PURGE_EVERY_MS));
        }
        state.full_at.insert(runner.clone(), next);
        Ok(())
    }

    /// How long `runner` has to wait before it may ask again; zero when it may ask now.
    pub(crate) fn wait(&self, runner: &RunnerId, now: SystemTime) -> Duration {
        let now = millis(now);
        let state = self.state.lock();
        let Some(full_at) = state.full_at.get(runner) else { return Duration::ZERO };
        let next = self.bounded(*full_at, now) + self.interval_ms;
        Duration::from_millis(next.saturating_sub(now.saturating_add(self.window_ms)))
    }

    /// The time as it counts now: not in the past, and not further ahead than a whole burst.
    fn bounded(&self, full_at: u64, now: u64) -> u64 {
        full_at.clamp(now, now.saturating_add(self.window_ms))
    }
}

impl State {
    /// Forgets what says nothing any more. Whether there is room now.
    fn purge(&mut self, now: u64) -> bool {
        if now.abs_diff(self.purged_at) >= PURGE_EVERY_MS {
            self.purged_at = now;
            self.full_at.retain(|_, full_at| *full_at > now);
        }
        self.full_at.len() < MAX_RUNNERS
    }
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::fixtures::runner;

    const RATE: MintRate = MintRate { per_minute: 6, burst: 3 };

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_900_000_000 + seconds)
    }

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let limiter = MintLimiter::new(RATE);
        let (r7, r8) = (runner("r7"), runner("r8"));
        for _ in 0..3 {
            assert_eq!(limiter.admit(&r7, at(0)), Ok(()));
        }
        assert_eq!(limiter.admit(&r7, at(0)), Err(Duration::from_secs(10)));
        assert_eq!(limiter.wait(&r7, at(4)), Duration::from_secs(6));
        assert_eq!(limiter.admit(&r8, at(0)), Ok(()), "others are not concerned");
        assert_eq!(limiter.admit(&r7, at(9)), Err(Duration::from_secs(1)), "a refusal costs nothing");
        assert_eq!(limiter.admit(&r7, at(10)), Ok(()));
        assert!(limiter.admit(&r7, at(10)).is_err());
        assert_eq!(limiter.wait(&r7, at(20)), Duration::ZERO);
        for _ in 0..3 {
            assert_eq!(limiter.admit(&r7, at(100)), Ok(()), "a rest gives the burst back, and no more");
        }
        assert!(limiter.admit(&r7, at(100)).is_err());
    }

    #[test]
    fn a_clock_that_jumps_back_keeps_nobody_out_for_longer_than_a_burst() {
        let limiter = MintLimiter::new(RATE);
        let r7 = runner("r7");
        for _ in 0..3 {
            assert_eq!(limiter.admit(&r7, at(100_000)), Ok(()));
        }
        assert_eq!(limiter.wait(&r7, at(0)), Duration::from_secs(10));
        assert_eq!(limiter.admit(&r7, at(0)), Err(Duration::from_secs(10)));
        assert_eq!(limiter.wait(&r7, UNIX_EPOCH), Duration::from_secs(10));
    }

    #[test]
    fn runners_that_rest_are_forgotten_and_the_table_never_grows_past_its_bound() {
        let limiter = MintLimiter::new(RATE);
        for i in 0..MAX_RUNNERS {
            assert_eq!(limiter.admit(&runner(&format!("r{i}")), at(0)), Ok(()));
        }
        let late = runner("late");
        assert_eq!(limiter.admit(&late, at(1)), Err(Duration::from_millis(PURGE_EVERY_MS)));
        assert_eq!(limiter.admit(&runner("r0"), at(1)), Ok(()), "who has a place keeps it");
        assert_eq!(limiter.state.lock().full_at.len(), MAX_RUNNERS);
        assert_eq!(limiter.admit(&late, at(11)), Ok(()));
        assert_eq!(limiter.state.lock().full_at.len(), 2, "the late one, and the one that asked twice");
    }
}
