//! The schema of `/status`. Fields are only ever added. Times are seconds since 1970.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use telemetry_certs::CertificateSummary;
use telemetry_proto::Signal;

use super::history::Moment;
use crate::tenancy::Tenant;

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
    /// The authority that renews runners' certificates; `null` where they are not renewed here.
    pub renewal_authority: Option<CertificateStatus>,
    /// What needs somebody soon: certificates that end, a configuration that could not be put in force.
    pub warnings: Vec<String>,
    /// The configuration in force.
    pub config: ConfigStatus,
    /// The stores.
    pub stores: Vec<StoreStatus>,
    /// The tenants, in the order of their rules; at most 1,000 of them.
    pub tenants: Vec<TenantStatus>,
    /// The runners that are connected, by ID; at most 1,000 of them.
    pub runners: Vec<RunnerStatus>,
    /// How many runners are connected in all.
    pub runners_connected: usize,
    /// The writers that are no runners, connected or not, in the order of the configuration.
    pub writers: Vec<WriterStatus>,
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
    /// Whether the same is served over TCP.
    pub tcp: bool,
    /// Open connections.
    pub connections: i64,
    /// Those of them over TCP.
    pub tcp_connections: i64,
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
    /// The sections of it whose changes take effect at the next start only, such as `[listener]`.
    pub needs_restart: Vec<&'static str>,
}

impl ConfigStatus {
    /// One that was put in force.
    pub(super) const fn loaded(loaded_at: u64, needs_restart: Vec<&'static str>) -> Self {
        Self { loaded_at, fault: None, fault_at: None, needs_restart }
    }
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

/// A tenant. What is counted, is counted since it is configured.
#[derive(Debug, Clone, Serialize)]
pub struct TenantStatus {
    /// Its name.
    pub name: String,
    /// Its requests at the stores.
    pub in_flight: u64,
    /// How many those may be.
    pub max_in_flight: usize,
    /// Its requests that wait for a place at the stores.
    pub waiting: usize,
    /// The memory that its bodies hold, in bytes.
    pub body_memory_bytes: u64,
    /// Its runners that came within the last minute.
    pub active_runners: usize,
    /// Batches that were taken, those among them that were known.
    pub accepted: u64,
    /// Requests that were refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

impl TenantStatus {
    /// What is to be known of a tenant.
    #[must_use]
    pub fn of(tenant: &Tenant) -> Self {
        let allowance = tenant.allowance();
        let (mut accepted, mut refused) = (0, BTreeMap::new());
        for (_, reason, count) in Signal::ALL.into_iter().flat_map(|signal| tenant.meter().outcomes(signal)) {
            match reason {
                None => accepted += count,
                Some(reason) => *refused.entry(reason.as_str()).or_default() += count,
            }
        }
        Self {
            name: tenant.name().to_string(),
            in_flight: allowance.in_flight(),
            max_in_flight: allowance.limits().max_in_flight,
            waiting: allowance.waiting(),
            body_memory_bytes: allowance.body_bytes(),
            active_runners: allowance.active_runners(),
            accepted,
            refused,
        }
    }
}

/// A runner that is connected.
#[derive(Debug, Clone, Serialize)]
pub struct RunnerStatus {
    /// Its ID.
    pub id: String,
    /// Its connections.
    #[serde(flatten)]
    pub connection: ConnectionStatus,
}

impl RunnerStatus {
    /// Whether its ID, its address or the reason of its last refusal has this in it. `wanted` is in lower case.
    pub(super) fn has(&self, wanted: &str) -> bool {
        let reason = self.connection.last_refusal.unwrap_or_default();
        [&*self.id, &self.connection.remote, reason].iter().any(|text| text.to_lowercase().contains(wanted))
    }
}

/// A writer that is no runner.
#[derive(Debug, Clone, Serialize)]
pub struct WriterStatus {
    /// Its name. Refusals name it as `writer:NAME`.
    pub name: String,
    /// Its tenant.
    pub tenant: Option<String>,
    /// What it may write.
    pub signals: Vec<&'static str>,
    /// Its connections; `null` while there are none.
    pub connection: Option<ConnectionStatus>,
}

/// The connections of one runner or writer.
#[derive(Debug, Clone, Serialize)]
pub struct ConnectionStatus {
    /// Where its youngest connection came from.
    pub remote: String,
    /// How many there are.
    pub connections: usize,
    /// What its youngest connection runs over: `quic` or `tcp`.
    pub transport: &'static str,
    /// When the oldest of them began.
    pub connected_at: u64,
    /// When its certificate ends.
    pub certificate_expires_at: u64,
    /// Whether that is soon, so that its renewal must have failed.
    pub certificate_ends_soon: bool,
    /// When the token ends that it showed last; `null` if it showed none that is good, and for static ones.
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
    /// Who: a runner's ID, or `writer:NAME`.
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

#[cfg(test)]
mod tests {
    use serde_json::json;
    use telemetry_proto::{Reason, RunnerId, Verdict};

    use super::*;
    use crate::admission::{Caller, TenantLimits};
    use crate::tenancy::{Tenancy, TenantSet};

    #[tokio::test]
    async fn a_tenant_shows_what_it_has_under_way_and_why_it_was_refused() {
        let tenancy = Tenancy::new(&TenantSet::single(TenantLimits::default()));
        let tenant = &tenancy.tenants()[0];
        let sender =
            tenant.allowance().sender(Caller { author: RunnerId::new("r1").unwrap().into(), batch: None }).unwrap();
        let _permit = sender.permit().await.unwrap();
        for (signal, outcome) in [
            (Signal::Metrics, Ok(Verdict::Delivered)),
            (Signal::Logs, Ok(Verdict::Duplicate)),
            (Signal::Metrics, Err(Reason::TenantBusy)),
            (Signal::Logs, Err(Reason::TenantBusy)),
            (Signal::Logs, Err(Reason::BodyTooLarge)),
        ] {
            tenant.meter().ended(signal, outcome);
        }
        let expected = json!({
            "name": "default", "in_flight": 1, "max_in_flight": 4, "waiting": 0, "body_memory_bytes": 0,
            "active_runners": 1, "accepted": 2, "refused": { "tenant-busy": 2, "body-too-large": 1 },
        });
        assert_eq!(serde_json::to_value(TenantStatus::of(tenant)).unwrap(), expected);
    }
}
