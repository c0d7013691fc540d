//! One log line per refusal, but not for each of a flood: the relay's own log may end up in the store that refuses.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use telemetry_proto::Reason;
use tokio::time::Instant;

use crate::gate::{Author, Peer};

/// At most one line in this time per runner and reason.
const QUIET: Duration = Duration::from_secs(10);

/// More pairs of runner and reason than this are not told apart; the oldest are forgotten.
const MAX_ENTRIES: usize = 4_096;

/// How many lines are kept for those who ask.
const MAX_RECENT: usize = 200;

/// Logs refusals, rate-limited per runner and reason, with a count of what was suppressed. Keeps the last lines.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusalLog {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<(Author, Reason), Entry>,
    recent: VecDeque<RecentRefusal>,
}

#[derive(Debug)]
struct Entry {
    last_line: Instant,
    suppressed: u64,
}

/// A line of the log of refusals.
#[derive(Debug, Clone)]
pub struct RecentRefusal {
    /// When.
    pub at: SystemTime,
    /// Who.
    pub author: Author,
    /// What was asked for.
    pub route: &'static str,
    /// Why not.
    pub reason: Reason,
    /// How many more of the kind came since, within the time in which there is no new line.
    pub repeated: u64,
}

impl RefusalLog {
    /// Logs that a request of `peer` on `route` was refused. Neither payload nor token is ever part of the line.
    pub(crate) fn note(&self, peer: &Peer, route: &'static str, reason: Reason, at: SystemTime) {
        let mut state = self.state.lock();
        let Some(suppressed) = state.due(peer.author(), reason, Instant::now()) else { return };
        if state.recent.len() == MAX_RECENT {
            state.recent.pop_front();
        }
        state.recent.push_back(RecentRefusal { at, author: peer.author().clone(), route, reason, repeated: 0 });
        drop(state);
        tracing::warn!(
            runner = %peer.author(), remote = %peer.remote(), route, reason = reason.as_str(), suppressed,
            "request refused"
        );
    }

    /// The last lines, the youngest first.
    pub(crate) fn recent(&self) -> Vec<RecentRefusal> {
        self.state.lock().recent.iter().rev().cloned().collect()
    }
}

impl State {
    /// How many were suppressed since the last line, if one is due now.
    fn due(&mut self, author: &Author, reason: Reason, now: Instant) -> Option<u64> {
        if let Some(entry) = self.entries.get_mut(&(author.clone(), reason)) {
            if now.duration_since(entry.last_line) < QUIET {
                entry.suppressed += 1;
                let of_kind = |line: &&mut RecentRefusal| line.author == *author && line.reason == reason;
                if let Some(line) = self.recent.iter_mut().rev().find(of_kind) {
                    line.repeated += 1;
                }
                return None;
            }
            entry.last_line = now;
            return Some(std::mem::take(&mut entry.suppressed));
        }
        if self.entries.len() >= MAX_ENTRIES {
            self.entries.retain(|_, entry| now.duration_since(entry.last_line) < QUIET);
        }
        if self.entries.len() >= MAX_ENTRIES {
            return None;
        }
        self.entries.insert((author.clone(), reason), Entry { last_line: now, suppressed: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::fixtures::author;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_one_line_and_a_count() {
        let mut log = State::default();
        let runner = author("r7");
        assert_eq!(log.due(&runner, Reason::TokenExpired, Instant::now()), Some(0));
        for _ in 0..100 {
            assert_eq!(log.due(&runner, Reason::TokenExpired, Instant::now()), None);
        }
        assert_eq!(log.due(&runner, Reason::TenantBusy, Instant::now()), Some(0), "reasons are told apart");
        tokio::time::advance(QUIET).await;
        assert_eq!(log.due(&runner, Reason::TokenExpired, Instant::now()), Some(100));
    }

    #[tokio::test(start_paused = true)]
    async fn many_runners_do_not_grow_it() {
        let mut log = State::default();
        for i in 0..2 * MAX_ENTRIES {
            log.due(&author(&format!("r{i}")), Reason::TokenMissing, Instant::now());
        }
        assert_eq!(log.entries.len(), MAX_ENTRIES);
        tokio::time::advance(QUIET).await;
        assert_eq!(log.due(&author("late"), Reason::TokenMissing, Instant::now()), Some(0));
    }

    #[test]
    fn the_last_lines_are_kept_and_say_how_often_they_were_repeated() {
        let log = RefusalLog::default();
        let peer = crate::gate::fixtures::peer("r7");
        for _ in 0..3 {
            log.note(&peer, "metrics", Reason::TokenExpired, SystemTime::UNIX_EPOCH);
        }
        log.note(&peer, "logs", Reason::TenantBusy, SystemTime::UNIX_EPOCH);
        let recent = log.recent();
        let told: Vec<_> = recent.iter().map(|line| (line.route, line.reason, line.repeated)).collect();
        assert_eq!(told, [("logs", Reason::TenantBusy, 0), ("metrics", Reason::TokenExpired, 2)]);
    }
}
