//! The gauges of what `/status` says too, for rules that warn.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use std::sync::atomic::AtomicU64;

use super::status::Status;

/// Set when they are read. Runners are counted, never named: the number of series does not grow with theirs.
#[derive(Debug, Default)]
pub(super) struct Levels {
    ready: Gauge,
    draining: Gauge,
    config_broken: Gauge,
    config_loaded: Gauge,
    certificate_expiry: Gauge,
    authority_expiry: Gauge,
    stores_up: Family<SignalLabel, Gauge>,
    stores_seconds: Family<SignalLabel, Gauge<f64, AtomicU64>>,
    body_memory: Gauge,
    runners: Gauge,
    runner_certificates_ending: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SignalLabel {
    signal: &'static str,
}

impl Levels {
    pub(super) fn register(registry: &mut Registry, started_at: u64) -> Self {
        let levels = Self::default();
        let registry = registry.sub_registry_with_prefix("telemetry_relay");
        registry.register("build", "The program", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        let started = Gauge::<i64>::default();
        started.set(signed(started_at));
        registry.register_with_unit("start_time", "When it started, since 1970", Unit::Seconds, started);
        registry.register("ready", "1 if runners' writes can succeed", levels.ready.clone());
        registry.register("draining", "1 if it is shutting down", levels.draining.clone());
        registry.register(
            "config_broken",
            "1 if the configuration on disk could not be put in force",
            levels.config_broken.clone(),
        );
        registry.register_with_unit(
            "config_loaded_timestamp",
            "When the configuration in force was read, since 1970",
            Unit::Seconds,
            levels.config_loaded.clone(),
        );
        registry.register_with_unit(
            "certificate_expiry_timestamp",
            "When the coordinator's certificate ends, since 1970",
            Unit::Seconds,
            levels.certificate_expiry.clone(),
        );
        registry.register_with_unit(
            "renewal_authority_expiry_timestamp",
            "When the authority that renews runners' certificates ends, since 1970; 0 where they are not renewed",
            Unit::Seconds,
            levels.authority_expiry.clone(),
        );
        registry.register("store_up", "1 if the store answered when it was asked last", levels.stores_up.clone());
        registry.register_with_unit(
            "store_probe",
            "How long that answer took",
            Unit::Seconds,
            levels.stores_seconds.clone(),
        );
        registry.register_with_unit(
            "body_memory",
            "Memory that bodies under way hold",
            Unit::Bytes,
            levels.body_memory.clone(),
        );
        registry.register("runners_connected", "Runners that are connected", levels.runners.clone());
        registry.register(
            "runner_certificates_ending",
            "Connected runners whose certificate ends within 14 days and within a quarter of its life",
            levels.runner_certificates_ending.clone(),
        );
        levels
    }

    pub(super) fn set(&self, status: &Status) {
        self.ready.set(status.ready.into());
        self.draining.set(status.draining.into());
        self.config_broken.set(status.config.fault.is_some().into());
        self.config_loaded.set(signed(status.config.loaded_at));
        self.certificate_expiry.set(signed(status.certificate.expires_at));
        let authority = status.renewal_authority.as_ref().map_or(0, |authority| authority.expires_at);
        self.authority_expiry.set(signed(authority));
        self.body_memory.set(signed(status.body_memory_bytes));
        self.runners.set(signed(status.runners_connected as u64));
        let ending = status.runners.iter().filter(|runner| runner.connection.certificate_ends_soon).count();
        self.runner_certificates_ending.set(signed(ending as u64));
        for store in &status.stores {
            let label = SignalLabel { signal: store.signal };
            // A store that was not asked yet is neither up nor down.
            if let Some(up) = store.up {
                self.stores_up.get_or_create(&label).set(up.into());
            }
            if let Some(seconds) = store.latency_seconds {
                self.stores_seconds.get_or_create(&label).set(seconds);
            }
        }
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
