//! What a connected runner has been doing, for those who watch.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use telemetry_proto::Reason;

/// What was done on one connection. Kept with the connection, so that it costs no lookup and ends with it.
#[derive(Debug, Default)]
pub struct Activity {
    requests: AtomicU64,
    refusals: AtomicU64,
    forwarded_bytes: AtomicU64,
    token_expires_at: AtomicU64,
    last_refusal: Mutex<Option<(SystemTime, Reason)>>,
}

impl Activity {
    pub(crate) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refusal(&self, at: SystemTime, reason: Reason) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
        *self.last_refusal.lock() = Some((at, reason));
    }

    pub(crate) fn count_forwarded(&self, bytes: u64) {
        self.forwarded_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes until when (seconds since 1970) the token lives that was shown last.
    pub(crate) fn note_token(&self, expires_at: u64) {
        self.token_expires_at.store(expires_at, Ordering::Relaxed);
    }

    /// Requests so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Requests that were refused so far.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Bytes of bodies that a store acknowledged, as received.
    #[must_use]
    pub fn forwarded_bytes(&self) -> u64 {
        self.forwarded_bytes.load(Ordering::Relaxed)
    }

    /// Until when the token lives that was shown last; `None` before the first good one.
    #[must_use]
    pub fn token_expires_at(&self) -> Option<SystemTime> {
        match self.token_expires_at.load(Ordering::Relaxed) {
            0 => None,
            seconds => UNIX_EPOCH.checked_add(Duration::from_secs(seconds)),
        }
    }

    /// When and why a request was refused last.
    #[must_use]
    pub fn last_refusal(&self) -> Option<(SystemTime, Reason)> {
        *self.last_refusal.lock()
    }
}
