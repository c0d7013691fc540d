//! Everything that is shown, gathered.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use telemetry_daemon::ProcessCollector;
use telemetry_proto::{Clock, WriterName};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::expiry;
use super::history::{History, SAMPLE_EVERY};
use super::levels::Levels;
use super::per_runner;
use super::ready;
use super::status::{
    CertificateStatus, ConfigStatus, ConnectionStatus, ListenerStatus, RefusalStatus, RunnerStatus, Status,
    TenantStatus, WriterStatus, unix,
};
use super::stores::Stores;
use crate::RelayService;
use crate::gate::Writer;
use crate::listener::{Connected, ListenerView, Transport};

/// More runners than this are counted in `/status` but not listed, and no more tenants are listed either.
const MAX_LISTED: usize = 1_000;

/// Gathers what is shown from where it happens.
pub struct Observer {
    service: RelayService,
    listener: ListenerView,
    certificate: ArcSwap<CertificateStatus>,
    /// When the log said last what ends soon, in seconds since 1970.
    warned_at: AtomicU64,
    config: Mutex<ConfigStatus>,
    reloads: Family<ReloadLabel, Counter>,
    levels: Levels,
    registry: Registry,
    clock: Arc<dyn Clock>,
    started: SystemTime,
    stores: Stores,
    history: Mutex<History>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabel {
    outcome: &'static str,
}

impl Observer {
    /// Watches a relay: its service, where it listens, and the certificate that it shows.
    #[must_use]
    pub fn new(
        service: RelayService,
        listener: ListenerView,
        certificate: CertificateStatus,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let mut registry = Registry::default();
        service.register(&mut registry);
        listener.metrics().register(&mut registry);
        let reloads = Family::<ReloadLabel, Counter>::default();
        registry.register(
            "telemetry_relay_config_reloads",
            "Reloads of the configuration, by outcome",
            reloads.clone(),
        );
        let started = clock.now();
        let levels = Levels::register(&mut registry, unix(started));
        registry.register_collector(Box::new(ProcessCollector));
        let config = Mutex::new(ConfigStatus::loaded(unix(started), Vec::new()));
        let certificate = ArcSwap::from_pointee(certificate);
        let (stores, history) = (Stores::default(), Mutex::default());
        Arc::new(Self {
            service,
            listener,
            certificate,
            warned_at: AtomicU64::new(0),
            config,
            reloads,
            levels,
            registry,
            clock,
            started,
            stores,
            history,
        })
    }

    /// Asks the stores and takes samples, for ever.
    pub async fn watch(self: Arc<Self>) {
        let mut ticks = interval(SAMPLE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            self.history.lock().sample(self.clock.now(), self.service.metrics().totals());
            self.warn();
            self.stores.ask(&self.service).await;
        }
    }

    /// The coordinator shows another certificate from now on.
    pub(crate) fn set_certificate(&self, certificate: CertificateStatus) {
        self.certificate.store(Arc::new(certificate));
    }

    /// Notes that the configuration was read again: that it is in force, but for the sections that need a restart, or what
    /// was wrong with it.
    pub fn note_reload(&self, outcome: Result<Vec<&'static str>, String>) {
        let now = unix(self.clock.now());
        let label = ReloadLabel { outcome: if outcome.is_ok() { "applied" } else { "failed" } };
        self.reloads.get_or_create(&label).inc();
        let mut config = self.config.lock();
        match outcome {
            Ok(needs_restart) => *config = ConfigStatus::loaded(now, needs_restart),
            Err(fault) => (config.fault, config.fault_at) = (Some(fault), Some(now)),
        }
    }

    /// The metrics, as exposition text, with series of each runner if no more than `runner_series` are connected.
    pub(super) fn metrics(&self, runner_series: usize) -> Option<String> {
        let status = self.status_now();
        self.levels.set(&status);
        let mut text = String::new();
        encode_registry(&mut text, &self.registry).ok()?;
        if status.runners.len() <= runner_series {
            encode_registry(&mut text, &per_runner::series(&status.runners)).ok()?;
        }
        encode_eof(&mut text).ok()?;
        Some(text)
    }

    /// What is in the way of runners' writes.
    pub(super) fn obstacles(&self) -> Vec<String> {
        let stores = self.stores.status(&self.service);
        ready::obstacles(self.service.is_draining(), &self.certificate.load(), &stores, self.clock.now())
    }

    fn writers(&self, connected: &[Connected], now: SystemTime) -> Vec<WriterStatus> {
        let mut of_writer: HashMap<&WriterName, Vec<&Connected>> = HashMap::new();
        for connection in connected {
            if let Some(writer) = connection.peer.author().writer() {
                of_writer.entry(writer).or_default().push(connection);
            }
        }
        let status = |writer: &Writer| {
            let connections = of_writer.get(&writer.name).map(Vec::as_slice).unwrap_or_default();
            WriterStatus {
                name: writer.name.to_string(),
                tenant: self.service.tenancy().of_writer(&writer.name).map(|tenant| tenant.name().to_string()),
                signals: writer.signals.iter().map(|signal| signal.as_str()).collect(),
                connection: connection_status(connections, now),
            }
        };
        self.service.writers().snapshot().as_slice().iter().map(status).collect()
    }

    fn renewal_authority(&self) -> Option<CertificateStatus> {
        let (subject, ends) = self.service.certificates().authority()?;
        Some(CertificateStatus { subject, expires_at: unix(ends) })
    }

    /// Says in the log, once a day, which of the relay's own certificates end soon.
    fn warn(&self) {
        let now = self.clock.now();
        let authority = self.renewal_authority();
        let warnings = expiry::warnings(&self.certificate.load(), authority.as_ref(), now);
        let last = self.warned_at.load(Ordering::Relaxed);
        if warnings.is_empty() || unix(now).saturating_sub(last) < expiry::WARN_EVERY.as_secs() {
            return;
        }
        self.warned_at.store(unix(now), Ordering::Relaxed);
        warnings.iter().for_each(|warning| tracing::warn!(warning, "a certificate ends soon"));
    }

    /// What needs somebody soon.
    fn warnings(&self, runners: &[RunnerStatus]) -> Vec<String> {
        let certificate = self.certificate.load();
        let authority = self.renewal_authority();
        let mut warnings = expiry::warnings(&certificate, authority.as_ref(), self.clock.now());
        let ending: Vec<&str> =
            runners.iter().filter(|r| r.connection.certificate_ends_soon).map(|r| r.id.as_str()).collect();
        warnings.extend(expiry::of_runners(&ending));
        let config = self.config.lock();
        if !config.needs_restart.is_empty() {
            warnings.push(format!("changes of {} take effect at the next start", config.needs_restart.join(", ")));
        }
        if config.fault.is_some() {
            warnings.push("the configuration on disk could not be put in force; the one before is".to_owned());
        }
        warnings
    }

    fn tenants(&self) -> Vec<TenantStatus> {
        let tenants = self.service.tenancy().tenants();
        tenants.iter().take(MAX_LISTED).map(|tenant| TenantStatus::of(tenant)).collect()
    }

    /// The state in one line, for a service manager.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut line = format!("{} connections", self.listener.metrics().active_connections());
        for store in self.stores.status(&self.service).iter().filter(|store| store.up == Some(false)) {
            line += &format!("; the store for {} does not answer", store.signal);
        }
        if self.config.lock().fault.is_some() {
            line += "; the configuration on disk is broken and not in force";
        }
        line
    }

    /// The state as it is now. Runners whose certificate ends soon are listed first, then the others by ID.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status_with("")
    }

    /// The state, with those runners only that have this in their ID, their address or the reason of their last refusal,
    /// whatever the case.
    pub(super) fn status_with(&self, wanted: &str) -> Status {
        let mut status = self.status_now();
        if !wanted.is_empty() {
            let wanted = wanted.to_lowercase();
            status.runners.retain(|runner| runner.has(&wanted));
        }
        status.runners.sort_by_key(|runner| !runner.connection.certificate_ends_soon);
        status.runners.truncate(MAX_LISTED);
        status.tenants = self.tenants();
        status.history = self.history.lock().moments();
        status
    }

    /// The state with every runner, but without what takes long to put together.
    fn status_now(&self) -> Status {
        let connected = self.listener.connected();
        let now = self.clock.now();
        let runners = by_runner(&connected, now);
        let obstacles = self.obstacles();
        let refusals = self.service.recent_refusals().into_iter().map(|refusal| RefusalStatus {
            at: unix(refusal.at),
            runner: refusal.author.to_string(),
            route: refusal.route,
            reason: refusal.reason.as_str(),
            text: refusal.reason.text(),
            repeated: refusal.repeated,
        });
        Status {
            version: env!("CARGO_PKG_VERSION"),
            now: unix(self.clock.now()),
            started_at: unix(self.started),
            ready: obstacles.is_empty(),
            not_ready_because: obstacles,
            draining: self.service.is_draining(),
            listener: ListenerStatus {
                address: self.listener.local_addr().to_string(),
                tcp: self.listener.has_tcp(),
                connections: self.listener.metrics().active_connections(),
                tcp_connections: self.listener.metrics().active_over(Transport::Tcp),
                requests_running: self.listener.metrics().running_requests(),
            },
            certificate: CertificateStatus::clone(&self.certificate.load()),
            renewal_authority: self.renewal_authority(),
            warnings: self.warnings(&runners),
            config: self.config.lock().clone(),
            stores: self.stores.status(&self.service),
            tenants: Vec::new(),
            runners_connected: runners.len(),
            runners,
            writers: self.writers(&connected, now),
            refusals: refusals.collect(),
            body_memory_bytes: self.service.reserved_body_bytes(),
            history: Vec::new(),
        }
    }
}

/// One entry per runner, by ID, over all its connections. Writers that are no runners are not among them.
fn by_runner(connected: &[Connected], now: SystemTime) -> Vec<RunnerStatus> {
    let mut runners: BTreeMap<&str, Vec<&Connected>> = BTreeMap::new();
    for connection in connected {
        if let Some(runner) = connection.peer.runner() {
            runners.entry(runner.as_str()).or_default().push(connection);
        }
    }
    let status = |(id, connections): (&str, Vec<&Connected>)| {
        Some(RunnerStatus { id: id.to_owned(), connection: connection_status(&connections, now)? })
    };
    runners.into_iter().filter_map(status).collect()
}

/// What is to be known of someone over all its connections; `None` without any.
fn connection_status(connections: &[&Connected], now: SystemTime) -> Option<ConnectionStatus> {
    let youngest = connections.iter().max_by_key(|connection| connection.since)?;
    let oldest = connections.iter().map(|connection| connection.since).min()?;
    let age = Instant::now().saturating_duration_since(oldest);
    let activities = || connections.iter().map(|connection| connection.peer.activity());
    let last_refusal = activities().filter_map(|activity| activity.last_refusal()).max_by_key(|(at, _)| *at);
    Some(ConnectionStatus {
        remote: youngest.peer.remote().to_string(),
        connections: connections.len(),
        transport: youngest.transport().as_str(),
        connected_at: unix(now.checked_sub(age).unwrap_or(now)),
        certificate_expires_at: unix(youngest.peer.identity().not_after()),
        certificate_ends_soon: expiry::ends_soon(youngest.peer.identity(), now),
        token_expires_at: activities().filter_map(|activity| activity.token_expires_at()).max().map(unix),
        requests: activities().map(|activity| activity.requests()).sum(),
        refused: activities().map(|activity| activity.refusals()).sum(),
        bytes: activities().map(|activity| activity.forwarded_bytes()).sum(),
        last_refusal: last_refusal.map(|(_, reason)| reason.as_str()),
        last_refusal_at: last_refusal.map(|(at, _)| unix(at)),
    })
}
