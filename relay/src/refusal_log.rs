//! One log line per refusal, but not for each of a flood: the relay's own log may end up in the store that refuses.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telemetry_proto::{Reason, RunnerId};
use tokio::time::Instant;

use crate::gate::Peer;

/// At most one line in this time per runner and reason.
const QUIET: Duration = Duration::from_secs(10);

/// More pairs of runner and reason than this are not told apart; the oldest are forgotten.
const MAX_ENTRIES: usize = 4_096;

/// Logs refusals, rate-limited per runner and reason, with a count of what was suppressed.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusalLog {
    entries: Arc<Mutex<HashMap<(RunnerId, Reason), Entry>>>,
}

#[derive(Debug)]
struct Entry {
    last_line: Instant,
    suppressed: u64,
}

impl RefusalLog {
    /// Logs that a request of `peer` on `route` was refused. Neither payload nor token is ever part of the line.
    pub(crate) fn note(&self, peer: &Peer, route: &'static str, reason: Reason) {
        if let Some(suppressed) = self.due(peer.runner(), reason, Instant::now()) {
            tracing::warn!(
                runner = %peer.runner(), remote = %peer.remote(), route, reason = reason.as_str(), suppressed,
                "request refused"
            );
        }
    }

    /// How many were suppressed since the last line, if one is due now.
    fn due(&self, runner: &RunnerId, reason: Reason, now: Instant) -> Option<u64> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(&(runner.clone(), reason)) {
            if now.duration_since(entry.last_line) < QUIET {
                entry.suppressed += 1;
                return None;
            }
            entry.last_line = now;
            return Some(std::mem::take(&mut entry.suppressed));
        }
        if entries.len() >= MAX_ENTRIES {
            entries.retain(|_, entry| now.duration_since(entry.last_line) < QUIET);
        }
        if entries.len() >= MAX_ENTRIES {
            return None;
        }
        entries.insert((runner.clone(), reason), Entry { last_line: now, suppressed: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_one_line_and_a_count() {
        let log = RefusalLog::default();
        let runner = RunnerId::new("r7").unwrap();
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
        let log = RefusalLog::default();
        for i in 0..2 * MAX_ENTRIES {
            log.due(&RunnerId::new(&format!("r{i}")).unwrap(), Reason::TokenMissing, Instant::now());
        }
        assert_eq!(log.entries.lock().len(), MAX_ENTRIES);
        tokio::time::advance(QUIET).await;
        assert_eq!(log.due(&RunnerId::new("late").unwrap(), Reason::TokenMissing, Instant::now()), Some(0));
    }
}
