//! How the agent is, for people and programs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use telemetry_runner_client::{Client, DeadLetterFolder, DeadLetterStats, DropReason, Signal, TokenSource};
use time::OffsetDateTime;
use tokio::time::timeout;

/// How long the status waits for a token that is being fetched.
const TOKEN_PATIENCE: Duration = Duration::from_millis(500);

/// The body of `/status`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The version of the agent.
    pub(crate) version: String,
    /// The coordinator that is connected.
    pub(crate) coordinator: Option<String>,
    /// What the connection runs over: `quic`, or `tcp` where UDP does not get through.
    pub(crate) transport: Option<String>,
    /// The round trip to it, in milliseconds.
    pub(crate) round_trip_ms: Option<f64>,
    /// Seconds until the token ends; absent if there is none, or it does not say.
    pub(crate) token_seconds_left: Option<i64>,
    /// What is wrong with the token.
    pub(crate) token_trouble: Option<String>,
    /// When the certificate ends.
    #[serde(with = "time::serde::rfc3339::option")]
    pub(crate) certificate_ends: Option<OffsetDateTime>,
    /// When it is to be renewed; absent if this agent does not renew it.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub(crate) certificate_renews: Option<OffsetDateTime>,
    /// Why it could not be renewed when that was tried last.
    #[serde(default)]
    pub(crate) certificate_trouble: Option<String>,
    /// What the coordinator takes; absent until it has told.
    pub(crate) coordinator_takes: Option<Vec<Signal>>,
    /// The account of each signal, in items.
    pub(crate) signals: BTreeMap<String, SignalStatus>,
    /// The spool, if there is one.
    pub(crate) spool: Option<SpoolStatus>,
    /// The folder for rejected batches, if there is one.
    pub(crate) dead_letters: Option<DeadLetterStats>,
}

/// The account of a signal: written + recovered = delivered + dropped + waiting.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SignalStatus {
    pub(crate) written: u64,
    pub(crate) recovered: u64,
    pub(crate) delivered: u64,
    pub(crate) waiting: u64,
    /// By reason; those that are zero are left out.
    pub(crate) dropped: BTreeMap<String, u64>,
}

/// How the spool is.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SpoolStatus {
    /// What it takes on disk.
    pub(crate) bytes: u64,
    /// Batches that wait.
    pub(crate) batches: u64,
    /// When the oldest was made.
    #[serde(with = "time::serde::rfc3339::option")]
    pub(crate) oldest: Option<OffsetDateTime>,
    /// Batches that a power loss would take.
    pub(crate) unsynced_batches: u64,
}

/// What the status is made from, besides the client.
#[derive(Clone)]
pub(crate) struct Observer {
    tokens: Arc<dyn TokenSource>,
    dead_letters: Option<Arc<DeadLetterFolder>>,
}

impl Observer {
    pub(crate) fn new(tokens: Arc<dyn TokenSource>, dead_letters: Option<Arc<DeadLetterFolder>>) -> Self {
        Self { tokens, dead_letters }
    }

    /// Adds the metrics of what it knows and the client does not.
    pub(crate) fn register_metrics(&self, registry: &mut Registry) {
        if let Some(folder) = &self.dead_letters {
            folder.register_metrics(registry);
        }
    }

    pub(crate) async fn look(&self, client: &Client) -> Status {
        let peer = client.peer();
        let (token_seconds_left, token_trouble) = match timeout(TOKEN_PATIENCE, self.tokens.token()).await {
            Ok(Ok(token)) => (token.expires_at().map(seconds_left), None),
            Ok(Err(error)) => (None, Some(error.to_string())),
            Err(_) => (None, Some("none yet".to_owned())),
        };
        let certificate = client.certificate();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            transport: peer.as_ref().map(|peer| peer.carrier.to_string()),
            round_trip_ms: peer.as_ref().map(|peer| peer.round_trip.as_secs_f64() * 1e3),
            coordinator: peer.map(|peer| peer.coordinator),
            token_seconds_left,
            token_trouble,
            certificate_ends: certificate.ends.map(OffsetDateTime::from),
            certificate_renews: certificate.renews.map(OffsetDateTime::from),
            certificate_trouble: certificate.trouble,
            coordinator_takes: client.policy().current().map(|policy| policy.signals.clone()),
            signals: Signal::ALL.into_iter().map(|signal| (signal.to_string(), account(client, signal))).collect(),
            spool: client.spool_stats().map(|stats| SpoolStatus {
                bytes: stats.bytes,
                batches: stats.waiting.values().map(|waiting| waiting.records).sum(),
                oldest: stats
                    .oldest_unix_ms
                    .and_then(|ms| OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).ok()),
                unsynced_batches: stats.unsynced_records + stats.records_at_risk,
            }),
            dead_letters: self.dead_letters.as_ref().map(|folder| folder.stats()),
        }
    }
}

fn account(client: &Client, signal: Signal) -> SignalStatus {
    let tally = client.tally(signal);
    let dropped = DropReason::ALL.into_iter().map(|reason| (reason.to_string(), tally.dropped(reason)));
    SignalStatus {
        written: tally.written,
        recovered: tally.recovered,
        delivered: tally.delivered,
        waiting: tally.waiting,
        dropped: dropped.filter(|(_, items)| *items > 0).collect(),
    }
}

fn seconds_left(ends: SystemTime) -> i64 {
    (OffsetDateTime::from(ends) - OffsetDateTime::now_utc()).whole_seconds()
}
