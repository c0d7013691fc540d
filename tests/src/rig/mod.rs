//! A whole cluster in one call: certificates, stores, a relay and runners.
//!
//! ```no_run
//! # async fn example() -> Result<(), telemetry_rig::rig::RigError> {
//! use telemetry_rig::rig::{Rig, StoreKind};
//!
//! let rig = Rig::builder().stores(StoreKind::BuiltIn).runners(3).start().await?;
//! # drop(rig);
//! # Ok(())
//! # }
//! ```

mod cluster;
mod program;
mod relay;
mod runner;
mod tenants;
mod tokens;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use telemetry_certs::{AuthorityError, Credentials, LoadError, TlsError};
use telemetry_proto::claims::{Expectations, RunnerBinding};
use telemetry_proto::{Clock, RunnerId, Signal, SystemClock, limits};
use telemetry_relay::RelayBuilder;
use telemetry_relay::forward::BackendSettings;
use telemetry_relay::gate::{JwtVerifier, KeySet, RemovedRunners, SignatureAlgorithm};
use telemetry_relay::issuer::{Issuer, IssuerConfig, KeyRing, MintRate, SigningKey};
use telemetry_relay::listener::ListenerConfig;
use telemetry_relay::tenancy::{TenantPlan, TenantSettings};
use telemetry_runner_client::ClientBuilder;

use crate::net::free_address;
use crate::process::ProcessError;
use crate::program::Program;
use crate::raw::{HandMade, RawClient, RawError};
use crate::stores::{BuiltInStore, Store, StoreError};
use crate::tcp::{Http, TcpBytes, TcpClient, TcpError};
use crate::wait::TimedOut;

pub use cluster::Cluster;
pub(crate) use program::Parts;
pub use program::RelayProgram;
pub use relay::{InProcessRelay, RigRelay};
pub use runner::RigRunner;
pub use tenants::tenant;
pub use tokens::TokenBuilder;

/// The issuer of every rig's tokens.
pub const ISSUER: &str = "https://coordinator.test";

/// Kept over restarts of the relay, as an operator's is.
const RESET_KEY: [u8; 64] = [7; 64];

/// Which stores stand behind the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreKind {
    /// VictoriaMetrics and VictoriaLogs.
    Real,
    /// A built-in store in the place of a VictoriaMetrics cluster, and VictoriaLogs as a cluster.
    Cluster,
    /// One built-in store for both.
    #[default]
    BuiltIn,
}

/// The rig can't be put together.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// A store does not start.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A certificate can't be issued.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A certificate can't be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A TLS configuration can't be built.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The relay's program does not do as it should.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The relay does not listen in time.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// A file or an address can't be used.
    #[error("a file or an address can't be used: {0}")]
    Io(#[from] std::io::Error),
    /// Anything else.
    #[error("the rig can't be put together: {0}")]
    Setup(String),
}

/// Says what a rig is made of.
#[must_use]
pub struct RigBuilder {
    cluster: Option<Cluster>,
    stores: StoreKind,
    runners: usize,
    binding: RunnerBinding,
    mint_rate: MintRate,
    store_timeout: Duration,
    clock: Arc<dyn Clock>,
    program: Option<String>,
    log_levels: &'static str,
    tcp: bool,
    tenants: Vec<TenantSettings>,
    adjust: Box<dyn Fn(RelayBuilder) -> RelayBuilder + Send + Sync>,
    traces: Option<StoreKind>,
    client: Box<dyn Fn(ClientBuilder) -> ClientBuilder + Send + Sync>,
}

/// A cluster that runs. Everything ends when it is dropped.
pub struct Rig {
    cluster: Cluster,
    signing: Arc<SigningKey>,
    issuer: Arc<Issuer>,
    verifier: Arc<JwtVerifier>,
    removed: Arc<RemovedRunners>,
    relay: RigRelay,
    metrics: Store,
    logs: Option<Store>,
    traces: Option<Store>,
    runners: Vec<RigRunner>,
}

impl Rig {
    /// A cluster with built-in stores and one runner, unless told otherwise.
    pub fn builder() -> RigBuilder {
        RigBuilder {
            cluster: None,
            stores: StoreKind::default(),
            runners: 1,
            binding: RunnerBinding::default(),
            mint_rate: MintRate { per_minute: 6_000, burst: 1_000 },
            store_timeout: limits::BACKEND_TIMEOUT,
            clock: Arc::new(SystemClock),
            program: None,
            log_levels: program::LOG_LEVELS,
            tcp: false,
            tenants: Vec::new(),
            adjust: Box::new(|relay| relay),
            traces: None,
            client: Box::new(|client| client),
        }
    }

    /// The identities.
    #[must_use]
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Where the relay listens.
    #[must_use]
    pub const fn relay_address(&self) -> SocketAddr {
        self.relay.address()
    }

    /// The relay, to be ended and started again.
    #[must_use]
    pub const fn relay(&self) -> &RigRelay {
        &self.relay
    }

    /// The relay's program, to be measured.
    ///
    /// # Panics
    /// When the relay runs in this process.
    #[must_use]
    pub fn relay_program(&self) -> &RelayProgram {
        match &self.relay {
            RigRelay::Program(relay) => relay,
            RigRelay::InProcess(_) => panic!("the relay of this rig runs in this process"),
        }
    }

    /// The store behind the metrics route.
    #[must_use]
    pub const fn metrics_store(&self) -> &Store {
        &self.metrics
    }

    /// The store behind the logs route.
    #[must_use]
    pub fn log_store(&self) -> &Store {
        self.logs.as_ref().unwrap_or(&self.metrics)
    }

    /// The store behind the traces route, if there is one.
    #[must_use]
    pub fn trace_store(&self) -> &Store {
        self.traces.as_ref().unwrap_or(&self.metrics)
    }

    /// The built-in store, to be told how to misbehave and asked what it saw.
    ///
    /// # Panics
    /// When the stores are real.
    #[must_use]
    pub fn built_in_store(&self) -> &BuiltInStore {
        match &self.metrics {
            Store::BuiltIn(store) => store,
            Store::Real(_) | Store::LogCluster(_) => panic!("the stores of this rig are real"),
        }
    }

    /// A runner, from 0.
    #[must_use]
    pub fn runner(&self, index: usize) -> &RigRunner {
        &self.runners[index]
    }

    /// Who mints tokens.
    #[must_use]
    pub const fn issuer(&self) -> &Arc<Issuer> {
        &self.issuer
    }

    /// Who checks tokens.
    #[must_use]
    pub const fn verifier(&self) -> &Arc<JwtVerifier> {
        &self.verifier
    }

    /// Who was removed.
    #[must_use]
    pub const fn removed(&self) -> &Arc<RemovedRunners> {
        &self.removed
    }

    /// The key that signs tokens.
    #[must_use]
    pub fn signing_key(&self) -> &SigningKey {
        &self.signing
    }

    /// A good token for a runner, to be spoilt.
    pub fn token_for(&self, runner: &RunnerId) -> TokenBuilder {
        TokenBuilder::good(ISSUER, runner)
    }

    /// A good token for the runner with this index.
    #[must_use]
    pub fn token(&self, index: usize) -> String {
        self.token_for(&self.runner(index).id).sign(&self.signing)
    }

    /// Connects to the relay as the runner with this index.
    ///
    /// # Errors
    /// The connection does not come up.
    pub async fn raw_client(&self, index: usize) -> Result<RawClient, RawError> {
        self.raw_client_with(Some(&self.runner(index).credentials)).await
    }

    /// Connects to the relay with these credentials, or none.
    ///
    /// # Errors
    /// The connection does not come up.
    pub async fn raw_client_with(&self, credentials: Option<&Credentials>) -> Result<RawClient, RawError> {
        RawClient::connect(self.relay_address(), self.cluster.roots(), credentials).await
    }

    /// Connects to the relay over TCP as the runner with this index.
    ///
    /// # Errors
    /// The connection does not come up.
    pub async fn tcp_client(&self, index: usize, http: Http) -> Result<TcpClient, TcpError> {
        self.tcp_client_with(Some(&self.runner(index).credentials), http).await
    }

    /// Connects to the relay over TCP with these credentials, or none.
    ///
    /// # Errors
    /// The connection does not come up.
    pub async fn tcp_client_with(&self, credentials: Option<&Credentials>, http: Http) -> Result<TcpClient, TcpError> {
        TcpClient::connect(self.relay_address(), self.cluster.roots(), credentials, http).await
    }

    /// Connects to the relay over TCP as the runner with this index, to write bytes by hand.
    ///
    /// # Errors
    /// The connection does not come up.
    pub async fn tcp_bytes(&self, index: usize, http: Http) -> Result<TcpBytes, TcpError> {
        let credentials = Some(&self.runner(index).credentials);
        TcpBytes::connect(self.relay_address(), self.cluster.roots(), credentials, http).await
    }

    /// Connects to the relay as the runner with this index, to write frames by hand.
    ///
    /// # Errors
    /// The connection does not come up.
    pub async fn hand_made(&self, index: usize) -> Result<HandMade, RawError> {
        HandMade::connect(self.relay_address(), self.cluster.roots(), &self.runner(index).credentials).await
    }
}

impl RigBuilder {
    /// With these identities instead of new ones.
    pub fn cluster(mut self, cluster: Cluster) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// With these stores.
    pub const fn stores(mut self, stores: StoreKind) -> Self {
        self.stores = stores;
        self
    }

    /// With this many runners: `r1`, `r2` and so on.
    pub const fn runners(mut self, count: usize) -> Self {
        self.runners = count;
        self
    }

    /// With tokens that must name their runner, or need not.
    pub const fn runner_binding(mut self, binding: RunnerBinding) -> Self {
        self.binding = binding;
        self
    }

    /// With this bound on how often a runner may mint; without it as good as none.
    pub const fn mint_rate(mut self, per_minute: u32, burst: u32) -> Self {
        self.mint_rate = MintRate { per_minute, burst };
        self
    }

    /// With a relay that waits this long for its stores.
    pub const fn store_timeout(mut self, timeout: Duration) -> Self {
        self.store_timeout = timeout;
        self
    }

    /// With a relay and an issuer in this process that read the time of day from this clock. Runners keep their own.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// With these tenants, for a relay in this process; without any, everyone is one.
    pub fn tenants(mut self, tenants: impl IntoIterator<Item = TenantSettings>) -> Self {
        self.tenants = tenants.into_iter().collect();
        self
    }

    /// With other settings of the relay in this process.
    pub fn relay(mut self, adjust: impl Fn(RelayBuilder) -> RelayBuilder + Send + Sync + 'static) -> Self {
        self.adjust = Box::new(adjust);
        self
    }

    /// With a store for traces, which there is none of otherwise. A built-in one is the one of the other signals, if that is
    /// built in.
    pub const fn traces(mut self, store: StoreKind) -> Self {
        self.traces = Some(store);
        self
    }

    /// With other settings of the runners' clients.
    pub fn client(mut self, adjust: impl Fn(ClientBuilder) -> ClientBuilder + Send + Sync + 'static) -> Self {
        self.client = Box::new(adjust);
        self
    }

    /// With a relay that listens on TCP too.
    pub const fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// With the program `telemetry-relay` as a child process, and these lines more in its configuration file. Settings of
    /// [`relay`](Self::relay) mean nothing to it.
    pub fn relay_program(mut self, settings: &str) -> Self {
        self.program = Some(settings.to_owned());
        self
    }

    /// With a relay program that logs this, as `RUST_LOG` says it, and not all that it can say.
    pub const fn log_levels(mut self, levels: &'static str) -> Self {
        self.log_levels = levels;
        self
    }

    /// Puts it together and waits until everything answers.
    ///
    /// # Errors
    /// What does not work.
    pub async fn start(self) -> Result<Rig, RigError> {
        let setup = |error: &dyn std::fmt::Display| RigError::Setup(error.to_string());
        let cluster = self.cluster.map_or_else(|| Cluster::new("rig"), Ok)?;
        let clock = self.clock;
        let removed = Arc::new(RemovedRunners::default());

        let signing = SigningKey::generate(SignatureAlgorithm::EdDsa).map_err(|e| setup(&e))?;
        let keys = KeyRing::new(signing, &KeySet::default()).map_err(|e| setup(&e))?;
        let signing = keys.signing();
        let mut issuing = IssuerConfig::new(ISSUER);
        issuing.rate = self.mint_rate;
        let issuer =
            Issuer::new(issuing, keys, Arc::clone(&clock), Arc::clone(&removed) as _).map_err(|e| setup(&e))?;
        let issuer = Arc::new(issuer);
        let expected = Expectations { runner_binding: self.binding, ..Expectations::new(ISSUER) };
        let verifier = Arc::new(JwtVerifier::new(issuer.public_keys(), expected, Arc::clone(&clock)));

        let (metrics, logs) = match self.stores {
            StoreKind::BuiltIn => (Store::built_in().await?, None),
            StoreKind::Real => {
                let (metrics, logs) =
                    tokio::try_join!(Store::real(Program::VictoriaMetrics), Store::real(Program::VictoriaLogs))?;
                (metrics, Some(logs))
            }
            StoreKind::Cluster => {
                let (metrics, logs) = tokio::try_join!(Store::built_in(), Store::log_cluster())?;
                (metrics, Some(logs))
            }
        };
        let log_address = logs.as_ref().unwrap_or(&metrics).address();
        let traces = match self.traces {
            Some(StoreKind::Real) => Some(Store::real(Program::VictoriaTraces).await?),
            Some(StoreKind::BuiltIn) if self.stores == StoreKind::Real => Some(Store::built_in().await?),
            _ => None,
        };
        let trace_address = self.traces.map(|_| traces.as_ref().unwrap_or(&metrics).address());
        let address = free_address()?;
        let relay = if let Some(settings) = &self.program {
            let parts = program::Parts {
                cluster: &cluster,
                signing: &signing,
                metrics: metrics.address(),
                logs: log_address,
                traces: trace_address,
                tcp: self.tcp,
                settings,
                variables: &[],
                log_levels: self.log_levels,
            };
            RigRelay::Program(RelayProgram::start(address, parts).await?)
        } else {
            let store_timeout = self.store_timeout;
            let is_cluster = self.stores == StoreKind::Cluster;
            let backend = move |address: SocketAddr| BackendSettings {
                timeout: store_timeout,
                cluster: is_cluster,
                ..BackendSettings::new(address.into())
            };
            let mut builder = RelayBuilder::new(Arc::clone(&verifier) as _)
                .store(Signal::Metrics, backend(metrics.address()))
                .store(Signal::Logs, backend(log_address))
                .registry(Arc::clone(&removed) as _)
                .issuer(Arc::clone(&issuer))
                .clock(clock);
            if let Some(address) = trace_address {
                builder = builder.store(Signal::Traces, backend(address));
            }
            if !self.tenants.is_empty() {
                let plan = TenantPlan { tenants: self.tenants, ..TenantPlan::default() };
                let tenants = plan.check(&builder.stores()).map_err(|e| setup(&e))?;
                builder = builder.tenants(tenants);
            }
            let adjust = self.adjust;
            let build = move || adjust(builder.clone()).build();
            let listener = ListenerConfig { reset_key: Some(RESET_KEY), tcp: self.tcp, ..ListenerConfig::new(address) };
            RigRelay::InProcess(InProcessRelay::start(listener, &cluster, build).await?)
        };

        let runners = (1..=self.runners).map(|number| RigRunner::new(number, &cluster, address, &*self.client));
        let runners = runners.collect::<Result<_, RigError>>()?;
        Ok(Rig { cluster, signing, issuer, verifier, removed, relay, metrics, logs, traces, runners })
    }
}
