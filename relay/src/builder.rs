//! Putting a relay together.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use telemetry_proto::{Clock, Signal, SystemClock};
use tokio_util::task::TaskTracker;

use crate::admission::{BodyBudget, BudgetLimits, TenantLimits};
use crate::forward::{Backend, BackendSettings};
use crate::gate::{AllRegistered, RunnerRegistry, TokenVerifier, Writers};
use crate::intake::BodyLimits;
use crate::issuer::{Issuer, MintRate};
use crate::metrics::RelayMetrics;
use crate::once::{BatchIdFile, Once, OnceLimits};
use crate::operational::{OperationalSinks, OperationalStream, PointLimits, SinkLimits};
use crate::refusal_log::RefusalLog;
use crate::renewal::CertificateIssuer;
use crate::rules::WriteRules;
use crate::service::{Backends, Relay, RelayService};
use crate::tenancy::{Stores, Tenancy, TenantSet};
use crate::traces::TracesSettings;
use crate::workers::Workers;

/// Puts a [`RelayService`] together.
#[derive(Clone)]
pub struct RelayBuilder {
    verifier: Arc<dyn TokenVerifier>,
    registry: Arc<dyn RunnerRegistry>,
    writers: Arc<Writers>,
    issuer: Option<Arc<Issuer>>,
    certificates: Option<Arc<CertificateIssuer>>,
    backends: [Option<BackendSettings>; 3],
    tenants: TenantSet,
    budget_limits: BudgetLimits,
    once_limits: OnceLimits,
    state_folder: Option<PathBuf>,
    rules: WriteRules,
    point_limits: PointLimits,
    sink_limits: SinkLimits,
    metrics: RelayMetrics,
    clock: Arc<dyn Clock>,
}

impl RelayBuilder {
    /// Starts from who checks tokens, the one part that has no default.
    #[must_use]
    pub fn new(verifier: Arc<dyn TokenVerifier>) -> Self {
        Self {
            verifier,
            registry: Arc::new(AllRegistered),
            writers: Arc::default(),
            issuer: None,
            certificates: None,
            backends: [None, None, None],
            tenants: TenantSet::single(TenantLimits::default()),
            budget_limits: BudgetLimits::default(),
            once_limits: OnceLimits::default(),
            state_folder: None,
            rules: WriteRules::default(),
            point_limits: PointLimits::default(),
            sink_limits: SinkLimits::default(),
            metrics: RelayMetrics::new(),
            clock: Arc::new(SystemClock),
        }
    }

    /// Where batches of `signal` go. A signal without a store is refused with `signal-disabled`.
    #[must_use]
    pub fn store(mut self, signal: Signal, settings: BackendSettings) -> Self {
        self.backends[signal as usize] = Some(settings);
        self
    }

    /// Who knows which runners are still part of the cluster. By default every certified runner is.
    #[must_use]
    pub fn registry(mut self, registry: Arc<dyn RunnerRegistry>) -> Self {
        self.registry = registry;
        self
    }

    /// Writers that are no runners. By default there are none. The [listener](crate::listener::Listener::with_writers) must be
    /// given the same, and the [plan](crate::tenancy::TenantPlan::writers) of the tenants, if there are any, must name the tenant
    /// of each.
    #[must_use]
    pub fn writers(mut self, writers: Arc<Writers>) -> Self {
        self.writers = writers;
        self
    }

    /// Mints tokens at `POST /_identity/token`. Without one that path is a 404.
    #[must_use]
    pub fn issuer(mut self, issuer: Arc<Issuer>) -> Self {
        self.issuer = Some(issuer);
        self
    }

    /// Renews certificates at `POST /_identity/certificate`. Without one, or one without an authority, that is refused with
    /// `renewal-not-offered`.
    #[must_use]
    pub fn certificates(mut self, issuer: Arc<CertificateIssuer>) -> Self {
        self.certificates = Some(issuer);
        self
    }

    /// The stores so far: what a [`TenantPlan`](crate::tenancy::TenantPlan) is checked against.
    #[must_use]
    pub fn stores(&self) -> Stores {
        Signal::ALL.into_iter().fold(Stores::default(), |stores, signal| match &self.backends[signal as usize] {
            Some(settings) => stores.with(signal, settings.cluster),
            None => stores,
        })
    }

    /// Who shares the stores. Others can be published while the relay runs.
    #[must_use]
    pub fn tenants(mut self, tenants: TenantSet) -> Self {
        self.tenants = tenants;
        self
    }

    /// There is one tenant, and this is what it may use: the default.
    #[must_use]
    pub fn tenant_limits(self, limits: TenantLimits) -> Self {
        self.tenants(TenantSet::single(limits))
    }

    /// The memory for bodies.
    #[must_use]
    pub const fn budget_limits(mut self, limits: BudgetLimits) -> Self {
        self.budget_limits = limits;
        self
    }

    /// How many batch IDs are remembered, and how long.
    #[must_use]
    pub const fn once_limits(mut self, limits: OnceLimits) -> Self {
        self.once_limits = limits;
        self
    }

    /// A folder of this relay's own, where the IDs of acknowledged batches outlive a stop: [`build`](Self::build) reads them, and
    /// [`RelayService::write_batch_ids`] is to be called at the end. By default they are forgotten.
    #[must_use]
    pub fn state_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.state_folder = Some(folder.into());
        self
    }

    /// Bounds of one body.
    #[must_use]
    pub const fn body_limits(mut self, limits: BodyLimits) -> Self {
        self.rules.body = limits;
        self
    }

    /// What holds for every write: [`body_limits`](Self::body_limits), [`traces`](Self::traces) and
    /// [`allow_unknown_length`](Self::allow_unknown_length) in one.
    #[must_use]
    pub fn rules(mut self, rules: WriteRules) -> Self {
        self.rules = rules;
        self
    }

    /// What of a runner's spans is kept, and how many spans a runner should make.
    #[must_use]
    pub fn traces(mut self, settings: TracesSettings) -> Self {
        self.rules.traces = settings;
        self
    }

    /// Which points of the operational stream are taken, and what may wait for each of its sinks. Sinks are attached to the
    /// service, at any time: see [`RelayService::operational_sinks`].
    #[must_use]
    pub const fn operational(mut self, points: PointLimits, queues: SinkLimits) -> Self {
        self.point_limits = points;
        self.sink_limits = queues;
        self
    }

    /// Takes writes without `Content-Length`, for writers that can't give one. Such a body reserves memory for the
    /// largest.
    #[must_use]
    pub const fn allow_unknown_length(mut self, allow: bool) -> Self {
        self.rules.allow_unknown_length = allow;
        self
    }

    /// Counts into these metrics.
    #[must_use]
    pub fn metrics(mut self, metrics: RelayMetrics) -> Self {
        self.metrics = metrics;
        self
    }

    /// Reads the time of day from this clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The service. With a [state folder](Self::state_folder) this reads a file; what is wrong with it is logged.
    #[must_use]
    pub fn build(self) -> RelayService {
        let batch_ids = self.state_folder.as_deref().map(BatchIdFile::in_folder);
        let once = match &batch_ids {
            Some(file) => Once::of_file(self.once_limits, file, self.clock.now()),
            None => Once::new(self.once_limits),
        };
        let [metrics, logs, traces] = self.backends;
        let backend = |signal, settings: Option<BackendSettings>| settings.map(|s| Backend::new(signal, s));
        let certificates = self
            .certificates
            .unwrap_or_else(|| Arc::new(CertificateIssuer::new(MintRate::default(), Arc::clone(&self.clock))));
        let sinks = OperationalSinks::new(self.sink_limits, self.metrics.operational());
        RelayService::new(Relay {
            verifier: self.verifier,
            registry: self.registry,
            writers: self.writers,
            issuer: self.issuer.into(),
            certificates,
            backends: Backends {
                metrics: backend(Signal::Metrics, metrics),
                logs: backend(Signal::Logs, logs),
                traces: backend(Signal::Traces, traces),
            },
            tenancy: Arc::new(Tenancy::new(&self.tenants)),
            budget: BodyBudget::new(self.budget_limits),
            once,
            batch_ids,
            forwarding: TaskTracker::new(),
            rules: ArcSwap::from_pointee(self.rules),
            workers: Workers::default(),
            operational: OperationalStream::new(sinks, self.point_limits, Arc::clone(&self.clock)),
            metrics: self.metrics,
            refusals: RefusalLog::default(),
            clock: self.clock,
            leaving: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        })
    }
}
