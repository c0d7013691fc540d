//! The schema of `/status`. Fields are only ever added. Times are seconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use telemetry_certs::CertificateSummary;

use super::history::Moment;

/// The state of a relay.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// The program's version.
    pub version: &'static str,
    /// The relay's time of day.
    pub now: u64,
    /// When it started.
    pub started_at: u64,
    /// Whether runners' writes can succeed.
    pub ready: bool,
    /// What is in the way, if it is not ready.
    pub not_ready_because: Vec<String>,
    /// Whether it is shutting down.
    pub draining: bool,
    /// Where runners connect.
    pub listener: ListenerStatus,
    /// The coordinator's certificate.
    pub certificate: CertificateStatus,
    /// The configuration in force.
    pub config: ConfigStatus,
    /// The stores.
    pub stores: Vec<StoreStatus>,
    /// The runners that are connected, by ID; at most 1,000 of them.
    pub runners: Vec<RunnerStatus>,
    /// How many runners are connected in all.
    pub runners_connected: usize,
    /// The last refusals, the youngest first.
    pub refusals: Vec<RefusalStatus>,
    /// The memory that bodies under way hold, in bytes.
    pub body_memory_bytes: u64,
    /// The last quarter of an hour.
    pub history: Vec<Moment>,
}

/// Where runners connect.
#[derive(Debug, Clone, Serialize)]
pub struct ListenerStatus {
    /// The address.
    pub address: String,
    /// Open connections.
    pub connections: i64,
    /// Requests that are being served.
    pub requests_running: i64,
}

/// The configuration in force.
#[derive(Debug, Clone, Serialize)]
pub struct ConfigStatus {
    /// Since when.
    pub loaded_at: u64,
    /// What is wrong with the one on disk, if it could not be put in force.
    pub fault: Option<String>,
    /// When that was found.
    pub fault_at: Option<u64>,
}

/// A certificate.
#[derive(Debug, Clone, Serialize)]
pub struct CertificateStatus {
    /// Its subject.
    pub subject: String,
    /// When it ends.
    pub expires_at: u64,
}

impl CertificateStatus {
    /// What is to be known of a certificate.
    #[must_use]
    pub fn of(summary: &CertificateSummary) -> Self {
        Self { subject: summary.subject.clone(), expires_at: unix(summary.not_after) }
    }
}

/// A store.
#[derive(Debug, Clone, Serialize)]
pub struct StoreStatus {
    /// The signal that goes there.
    pub signal: &'static str,
    /// Where it listens.
    pub address: String,
    /// Whether it answered when it was asked last; `null` before the first time.
    pub up: Option<bool>,
    /// How long that answer took, in seconds.
    pub latency_seconds: Option<f64>,
}

/// A runner that is connected.
#[derive(Debug, Clone, Serialize)]
pub struct RunnerStatus {
    /// Its ID.
    pub id: String,
    /// Where its youngest connection came from.
    pub remote: String,
    /// Its connections.
    pub connections: usize,
    /// When the oldest of them began.
    pub connected_at: u64,
    /// When its certificate ends.
    pub certificate_expires_at: u64,
    /// When the token ends that it showed last; `null` if it showed none that is good.
    pub token_expires_at: Option<u64>,
    /// Requests on its open connections.
    pub requests: u64,
    /// Those of them that were refused.
    pub refused: u64,
    /// Bytes of bodies that a store acknowledged.
    pub bytes: u64,
    /// The reason of the last refusal.
    pub last_refusal: Option<&'static str>,
    /// When that was.
    pub last_refusal_at: Option<u64>,
}

/// A refusal.
#[derive(Debug, Clone, Serialize)]
pub struct RefusalStatus {
    /// When.
    pub at: u64,
    /// Who.
    pub runner: String,
    /// What was asked for.
    pub route: &'static str,
    /// The stable code.
    pub reason: &'static str,
    /// The same in words.
    pub text: &'static str,
    /// How many more of the kind came in the ten seconds after.
    pub repeated: u64,
}

/// Seconds since 1970.
pub(super) fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
