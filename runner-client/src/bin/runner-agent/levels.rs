//! The gauges of what `/status` says too, for rules that warn.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use telemetry_runner_client::Client;

/// Set when they are read.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    connected: Gauge,
    certificate_expiry: Gauge,
    spool: SpoolLevels,
}

#[derive(Debug, Default)]
struct SpoolLevels {
    bytes: Gauge,
    batches: Gauge,
    oldest: Gauge,
    unsynced: Gauge,
}

impl Levels {
    /// Registers them; those of the spool only where there is one.
    pub(crate) fn register(registry: &mut Registry, spool: bool) -> Self {
        let levels = Self::default();
        let agent = registry.sub_registry_with_prefix("telemetry_agent");
        agent.register("build", "The program", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        agent.register("connected", "1 if there is a connection to a coordinator", levels.connected.clone());
        agent.register_with_unit(
            "certificate_expiry_timestamp",
            "When the runner's certificate ends, since 1970",
            Unit::Seconds,
            levels.certificate_expiry.clone(),
        );
        if spool {
            let registry = registry.sub_registry_with_prefix("telemetry_spool");
            registry.register("bytes", "What the spool takes on disk at most", levels.spool.bytes.clone());
            registry.register("batches", "Batches that wait in the spool", levels.spool.batches.clone());
            registry.register_with_unit(
                "oldest_timestamp",
                "When the oldest batch in the spool was made, since 1970; 0 without any",
                Unit::Seconds,
                levels.spool.oldest.clone(),
            );
            registry.register(
                "unsynced_batches",
                "Batches that a power loss would take",
                levels.spool.unsynced.clone(),
            );
        }
        levels
    }

    pub(crate) fn set(&self, client: &Client, certificate_ends: Option<SystemTime>) {
        self.connected.set(client.peer().is_some().into());
        let ends = certificate_ends.and_then(|ends| ends.duration_since(UNIX_EPOCH).ok());
        self.certificate_expiry.set(ends.map_or(0, |ends| signed(ends.as_secs())));
        let Some(stats) = client.spool_stats() else { return };
        self.spool.bytes.set(signed(stats.bytes));
        self.spool.batches.set(signed(stats.waiting.values().map(|waiting| waiting.records).sum()));
        self.spool.oldest.set(signed(stats.oldest_unix_ms.unwrap_or(0) / 1_000));
        self.spool.unsynced.set(signed(stats.unsynced_records + stats.records_at_risk));
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
