//! What the streams of one connection share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use h3::quic::ConnectionErrorIncoming;
use parking_lot::Mutex;
use quinn::ConnectionError;
use tokio::sync::watch;
use tokio::time::Instant;

use super::ResponseWatch;
use super::tally::Tally;
use crate::violation::quic_code;
use crate::{GuardLimits, Violation};

pub(super) struct Shared {
    pub(super) connection: quinn::Connection,
    pub(super) limits: GuardLimits,
    /// Whether the peer's SETTINGS arrived.
    pub(super) settings: watch::Sender<bool>,
    /// The watch over the request stream that was accepted last, until someone takes it.
    pub(super) accepted: Mutex<Option<ResponseWatch>>,
    pub(super) accepted_count: AtomicU64,
    pub(super) refusing: AtomicBool,
    unanswered: Mutex<Tally>,
    unanswered_ever: AtomicU64,
    violation: OnceLock<Violation>,
}

impl Shared {
    pub(super) fn new(connection: quinn::Connection, limits: GuardLimits) -> Self {
        Self {
            connection,
            limits,
            settings: watch::Sender::new(false),
            accepted: Mutex::new(None),
            accepted_count: AtomicU64::new(0),
            refusing: AtomicBool::new(false),
            unanswered: Mutex::new(Tally::new(limits.unanswered_stream_forgiven_after, Instant::now())),
            unanswered_ever: AtomicU64::new(0),
            violation: OnceLock::new(),
        }
    }

    /// Notes what the peer did, and closes the connection if that is what it deserves.
    pub(super) fn violated(&self, violation: Violation) {
        if violation.ends_connection() {
            // The first one is the cause; more may follow from streams that notice the close.
            let _ = self.violation.set(violation);
            self.connection.close(quic_code(violation.code()), violation.as_str().as_bytes());
        }
    }

    pub(super) fn violation(&self) -> Option<Violation> {
        self.violation.get().copied()
    }

    /// Counts a request stream that ended before any response.
    pub(super) fn count_unanswered(&self) {
        self.unanswered_ever.fetch_add(1, Ordering::Relaxed);
        let lately = self.unanswered.lock().add(Instant::now());
        if lately > self.limits.max_unanswered_streams {
            self.violated(Violation::TooManyUnanswered);
        }
    }

    pub(super) fn unanswered_ever(&self) -> u64 {
        self.unanswered_ever.load(Ordering::Relaxed)
    }
}

/// quinn's error as h3 knows it.
pub(super) fn connection_error(error: ConnectionError) -> ConnectionErrorIncoming {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            ConnectionErrorIncoming::ApplicationClose { error_code: close.error_code.into() }
        }
        ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        other => ConnectionErrorIncoming::Undefined(std::sync::Arc::new(other)),
    }
}
