//! The client: a connection, a token source and writers, put together.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use telemetry_certs::{Credentials, Roots};
use telemetry_proto::limits::MAX_BODY_BYTES;
use telemetry_proto::{Clock, Signal, SystemClock};
use tokio_util::task::AbortOnDropHandle;

use crate::backoff::Jitter;
use crate::connection::{
    self, ConnectError, Coordinator, CoordinatorError, CoordinatorPeer, IdentityError, Link, TcpFallback, Transport,
};
use crate::delivery::{
    CloseReport, DeadLetters, DropReason, FlushReport, KeeperHandle, NotTaken, Outbox, Pipelines, Plan,
    RecentRejections, RetrySettings, SignalSettings, Tally, Way,
};
use crate::metrics::{self, ConnectionMetrics, CutCounter, RequestCounter};
use crate::policy::{self, PolicyHandle};
use crate::renewal::{CertificateState, Identity, IdentityStore, Renewer};
use crate::spool::{Recovery, Spool, SpoolConfig, SpoolError, SpoolStats};
use crate::token::{LateTokenSettings, LateTokenSource, RemoteIssuer, TokenIssuer, TokenSource};
use crate::trace::{self, SpanWriter, Switch};
use crate::writer::{LogWriter, MetricsWriter, RawBatch};

/// The signals that a token is asked for. Spans have a token of their own: one that an older coordinator does not know to
/// grant must not keep metrics and logs from theirs.
const SIGNALS: [Signal; 2] = [Signal::Metrics, Signal::Logs];
/// The smallest limit of a batch that makes sense.
const MIN_BATCH_BYTES: usize = 512;

/// Delivers telemetry to a coordinator. Cheap to clone; clones are the same client. Delivery ends when the client is
/// closed, or when it and all its writers are dropped.
#[derive(Clone)]
pub struct Client {
    pipelines: Arc<Pipelines>,
    /// Absent over a foreign transport.
    link: Option<Arc<Link>>,
    transport: Arc<dyn Transport>,
    /// Absent over a foreign transport.
    identity: Option<Arc<Identity>>,
    clock: Arc<dyn Clock>,
    requests: RequestCounter,
    cuts: CutCounter,
    connections: ConnectionMetrics,
    policy: PolicyHandle,
    /// What the policy says of spans.
    switch: Arc<Switch>,
    recovery: Option<Arc<Recovery>>,
}

impl Client {
    /// Begins a client.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A writer of metrics.
    #[must_use]
    pub fn metrics(&self) -> MetricsWriter {
        MetricsWriter::new(Arc::clone(&self.pipelines), Arc::clone(&self.clock))
    }

    /// A writer of logs.
    #[must_use]
    pub fn logs(&self) -> LogWriter {
        LogWriter::new(Arc::clone(&self.pipelines), Arc::clone(&self.clock), self.cuts.clone())
    }

    /// A writer of spans. Whether it makes any is the coordinator's policy, which is asked from now on.
    #[must_use]
    pub fn spans(&self) -> SpanWriter {
        self.policy.want();
        SpanWriter::new(
            Arc::clone(&self.pipelines),
            Arc::clone(&self.switch),
            Arc::clone(&self.clock),
            self.cuts.clone(),
        )
    }

    /// What the coordinator wants from this runner. It is asked from now on, every 5 minutes.
    #[must_use]
    pub fn policy(&self) -> PolicyHandle {
        self.policy.want();
        self.policy.clone()
    }

    /// Takes bytes that are a batch already. With a spool this returns when the batch is stored there; spans are never
    /// stored. Nothing older goes for it.
    ///
    /// # Errors
    /// The batch was not taken, and is not counted: [`NotTaken::Full`] and [`NotTaken::Closed`] may end,
    /// [`NotTaken::Oversize`] does not.
    pub async fn submit(&self, batch: RawBatch) -> Result<(), NotTaken> {
        batch.submit(&self.pipelines, true).await
    }

    /// As [`submit`](Self::submit), but returns when the batch is in memory.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit).
    pub async fn submit_unconfirmed(&self, batch: RawBatch) -> Result<(), NotTaken> {
        batch.submit(&self.pipelines, false).await
    }

    /// Counts items that were left out of a batch before it was submitted, as written and dropped, so that the account shows
    /// them.
    pub fn count_dropped(&self, signal: Signal, reason: DropReason, items: u64) {
        self.outbox(signal).count_refused(items, reason);
    }

    /// Sets whether batches are compressed with gzip when they go to the spool, where the coordinator's
    /// [`policy`](Self::policy) allows it; off at first. What goes out from memory stays as it is.
    pub fn set_gzip(&self, on: bool) {
        self.pipelines.metrics().set_gzip(on);
        self.pipelines.logs().set_gzip(on);
    }

    /// What was found in the spool at the start; `None` without one.
    #[must_use]
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_deref()
    }

    /// How the spool is, up to half a second ago; `None` without one.
    #[must_use]
    pub fn spool_stats(&self) -> Option<SpoolStats> {
        self.pipelines.keeper().map(KeeperHandle::stats)
    }

    /// An issuer that asks the coordinator over this client's connection: what to arm a token source with. Its tokens are
    /// for metrics and logs.
    #[must_use]
    pub fn issuer(&self) -> Arc<dyn TokenIssuer> {
        Arc::new(RemoteIssuer::new(Arc::clone(&self.transport), &SIGNALS))
    }

    /// Waits until there is a connection that the coordinator accepted, for 10 s at most. Nothing needs this, since a
    /// connection is made when there is something to send; it tells early what is wrong.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connected(&self) -> Result<(), ConnectError> {
        match &self.link {
            Some(link) => link.connected().await,
            None => Ok(()),
        }
    }

    /// The coordinator that is connected now.
    #[must_use]
    pub fn peer(&self) -> Option<CoordinatorPeer> {
        self.link.as_ref().and_then(|link| link.peer())
    }

    /// How the runner's certificate is; all absent over a foreign transport.
    #[must_use]
    pub fn certificate(&self) -> CertificateState {
        self.identity.as_ref().map(|identity| identity.state()).unwrap_or_default()
    }

    /// Shows and trusts other certificates from now on. Requests under way end on the old connection. The same certificates
    /// as before change nothing.
    ///
    /// # Errors
    /// The certificates make no TLS configuration; the old ones stay.
    pub fn set_identity(&self, credentials: &Credentials, server_roots: &Roots) -> Result<(), IdentityError> {
        let Some(identity) = &self.identity else { return Ok(()) };
        if !identity.set(credentials, server_roots)? {
            return Ok(());
        }
        self.pipelines.metrics().ask_to_hurry();
        self.pipelines.logs().ask_to_hurry();
        Ok(())
    }

    /// The account of a signal.
    #[must_use]
    pub fn tally(&self, signal: Signal) -> Tally {
        self.outbox(signal).tally()
    }

    fn outbox(&self, signal: Signal) -> &Outbox {
        match signal {
            Signal::Metrics => self.pipelines.metrics(),
            Signal::Logs => self.pipelines.logs(),
            Signal::Traces => self.pipelines.traces(),
        }
    }

    /// Adds the client's own metrics to the embedder's registry.
    pub fn register_metrics(&self, registry: &mut Registry) {
        let outboxes = self.pipelines.all().map(Arc::clone).into();
        metrics::register(registry, outboxes, self.requests.clone(), self.cuts.clone(), self.connections.clone());
        if let Some(identity) = &self.identity {
            identity.register(registry);
        }
    }

    /// Waits until all that was written before is settled, for `within` at most.
    pub async fn flush(&self, within: Duration) -> FlushReport {
        self.pipelines.flush(within).await
    }

    /// Takes no more writes, delivers what it can `within` that time, and ends delivery and connection. May be called again,
    /// also at the same time: all callers get the one report. Ends within a second or two of `within`, whatever the other
    /// side does.
    pub async fn close(&self, within: Duration) -> CloseReport {
        let report = self.pipelines.close(within).await;
        self.switch.set(None);
        if let Some(link) = &self.link {
            link.close().await;
        }
        report
    }
}

/// Why no client was built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No coordinator was named.
    #[error("no coordinator is named")]
    NoCoordinator,
    /// A coordinator's address can't be read.
    #[error("{0:?}: {1}")]
    Coordinator(String, CoordinatorError),
    /// No certificate was given.
    #[error("there is no certificate to show and none to trust")]
    NoIdentity,
    /// The certificates can't be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// There is no socket.
    #[error("no UDP socket can be bound")]
    Socket(#[source] io::Error),
    /// The client was not built in a tokio runtime.
    #[error("a client must be built in a tokio runtime")]
    NoRuntime,
    /// The spool can't be used.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The system has no thread for the spool.
    #[error("no thread can be started for the spool")]
    Thread(#[source] io::Error),
    /// Settings of a signal contradict each other.
    #[error("{0}: a batch takes 1 item or more and 512 bytes to 32 MiB; memory is at least four batches")]
    Limits(Signal),
}

/// What a client is made of. Everything but coordinator and identity has a default.
pub struct ClientBuilder {
    coordinators: Vec<String>,
    identity: Option<(Credentials, Roots)>,
    identity_store: Option<Arc<dyn IdentityStore>>,
    transport: Option<Arc<dyn Transport>>,
    tokens: Option<Arc<dyn TokenSource>>,
    dead_letters: Arc<dyn DeadLetters>,
    metrics: SignalSettings,
    logs: SignalSettings,
    traces: SignalSettings,
    trace_tokens: Option<Arc<dyn TokenSource>>,
    service: (String, Option<String>),
    policy_interval: Duration,
    retry: RetrySettings,
    spool: Option<SpoolConfig>,
    request_timeout: Duration,
    tcp_fallback: Option<TcpFallback>,
    return_interval: Duration,
    connections: ConnectionMetrics,
    clock: Arc<dyn Clock>,
    jitter: Arc<Jitter>,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            coordinators: Vec::new(),
            identity: None,
            identity_store: None,
            transport: None,
            tokens: None,
            dead_letters: Arc::new(RecentRejections::default()),
            metrics: SignalSettings::metrics(),
            logs: SignalSettings::logs(),
            traces: SignalSettings::traces(),
            trace_tokens: None,
            service: ("runner".to_owned(), None),
            policy_interval: policy::INTERVAL,
            retry: RetrySettings::default(),
            spool: None,
            request_timeout: Duration::from_secs(30),
            tcp_fallback: Some(TcpFallback::default()),
            return_interval: connection::RETURN_INTERVAL,
            connections: ConnectionMetrics::default(),
            clock: Arc::new(SystemClock),
            jitter: Arc::new(Jitter::new()),
        }
    }
}

impl ClientBuilder {
    /// Adds a coordinator, `HOST` or `HOST:PORT`. Several are added in order of preference: when one does not answer the next is
    /// tried, and when an earlier one [is back](Self::return_interval) it takes the new requests.
    #[must_use]
    pub fn coordinator(mut self, address: impl Into<String>) -> Self {
        self.coordinators.push(address.into());
        self
    }

    /// Sets the certificate to show and those to trust.
    #[must_use]
    pub fn identity(mut self, credentials: Credentials, server_roots: Roots) -> Self {
        self.identity = Some((credentials, server_roots));
        self
    }

    /// Has the certificate renewed by the coordinator at two thirds of its life, and keeps the new one and its key there, such
    /// as in [`CredentialFiles`](telemetry_certs::CredentialFiles). Without this nobody renews; an ending certificate is
    /// warned about in the log.
    #[must_use]
    pub fn renew_identity(mut self, store: Arc<dyn IdentityStore>) -> Self {
        self.identity_store = Some(store);
        self
    }

    /// Sends over something else than a connection of its own; coordinators and identity are not looked at then.
    #[must_use]
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Sets where tokens come from. The default asks the coordinator.
    #[must_use]
    pub fn token_source(mut self, tokens: Arc<dyn TokenSource>) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Sets where rejected batches of metrics and logs go; spans are counted and gone. The default remembers why the last 64
    /// were rejected.
    #[must_use]
    pub fn dead_letters(mut self, dead_letters: Arc<dyn DeadLetters>) -> Self {
        self.dead_letters = dead_letters;
        self
    }

    /// Sets batches and memory of metrics.
    #[must_use]
    pub fn metrics_settings(mut self, settings: SignalSettings) -> Self {
        self.metrics = settings;
        self
    }

    /// Sets batches and memory of logs.
    #[must_use]
    pub fn logs_settings(mut self, settings: SignalSettings) -> Self {
        self.logs = settings;
        self
    }

    /// Sets batches and memory of spans.
    #[must_use]
    pub fn traces_settings(mut self, settings: SignalSettings) -> Self {
        self.traces = settings;
        self
    }

    /// Sets where tokens come from that grant traces. The default asks the coordinator, once there are spans to send.
    #[must_use]
    pub fn trace_token_source(mut self, tokens: Arc<dyn TokenSource>) -> Self {
        self.trace_tokens = Some(tokens);
        self
    }

    /// Sets `service.name` and `service.version` of spans. `runner`, and none.
    #[must_use]
    pub fn service(mut self, name: impl Into<String>, version: Option<&str>) -> Self {
        self.service = (name.into(), version.map(str::to_owned));
        self
    }

    /// Sets how often the coordinator is asked for its policy. 5 min.
    #[must_use]
    pub const fn policy_interval(mut self, interval: Duration) -> Self {
        self.policy_interval = interval;
        self
    }

    /// Sets the pauses after failures.
    #[must_use]
    pub fn retry_settings(mut self, settings: RetrySettings) -> Self {
        self.retry = settings;
        self
    }

    /// Keeps metrics and logs in a spool on disk until they are settled: what could not be sent outlives the process, and
    /// the next client with the folder delivers it. Memory holds what is staged for the disk and a window of what was read
    /// back, whatever the size of the spool. A folder has one client at a time: close it before the next is built.
    #[must_use]
    pub fn spool(mut self, config: SpoolConfig) -> Self {
        self.spool = Some(config);
        self
    }

    /// Sets how long a request may take. 30 s.
    #[must_use]
    pub const fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets whether and when TCP is used where UDP does not get through. By default it is; `None`: never.
    #[must_use]
    pub const fn tcp_fallback(mut self, fallback: Option<TcpFallback>) -> Self {
        self.tcp_fallback = fallback;
        self
    }

    /// Sets how long a coordinator is used before those that were added before it are tried again, each time; up to a third less
    /// by chance, so that runners part. 2 min. One that has answered a request takes over; requests under way end where they
    /// began.
    #[must_use]
    pub const fn return_interval(mut self, interval: Duration) -> Self {
        self.return_interval = interval;
        self
    }

    /// Sets the time of day, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the randomness of pauses, for tests.
    #[must_use]
    pub fn jitter(mut self, jitter: Arc<Jitter>) -> Self {
        self.jitter = jitter;
        self
    }

    /// Builds the client and begins delivery on the runtime that this is called in. Opening a spool reads the disk.
    ///
    /// # Errors
    /// Something is missing or contradicts itself.
    pub fn build(mut self) -> Result<Client, BuildError> {
        tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        check(Signal::Metrics, &self.metrics)?;
        check(Signal::Logs, &self.logs)?;
        check(Signal::Traces, &self.traces)?;
        let link = if self.transport.is_none() { Some(self.link()?) } else { None };
        let transport = match (self.transport, &link) {
            (Some(transport), _) => transport,
            (None, Some(link)) => Arc::clone(link) as Arc<dyn Transport>,
            (None, None) => return Err(BuildError::NoCoordinator),
        };
        let armed = |signals: &[Signal]| -> Arc<dyn TokenSource> {
            let source = LateTokenSource::with(LateTokenSettings::default(), self.clock.clone(), self.jitter.clone());
            source.arm(Arc::new(RemoteIssuer::new(Arc::clone(&transport), signals)));
            Arc::new(source)
        };
        let tokens = self.tokens.unwrap_or_else(|| armed(&SIGNALS));
        let trace_tokens = self.trace_tokens.unwrap_or_else(|| armed(&[Signal::Traces]));
        let (policy, poller) = PolicyHandle::new();
        let switch = Arc::new(Switch::off());
        let identity = link.as_ref().zip(self.identity.as_ref()).map(|(link, (credentials, roots))| {
            Identity::new(credentials.clone(), roots.clone(), Some(Arc::clone(link)))
        });
        let renewer = identity.as_ref().map(|identity| Renewer {
            identity: Arc::clone(identity),
            transport: Arc::clone(&transport),
            store: self.identity_store,
            clock: Arc::clone(&self.clock),
            jitter: Arc::clone(&self.jitter),
        });
        let renewing = renewer.map(|renewer| AbortOnDropHandle::new(tokio::spawn(renewer.run())));
        let background = [
            AbortOnDropHandle::new(tokio::spawn(poller.run(
                Arc::clone(&transport),
                self.policy_interval,
                Arc::clone(&self.jitter),
            ))),
            AbortOnDropHandle::new(tokio::spawn(trace::follow(policy.watch(), Arc::clone(&switch)))),
        ]
        .into_iter()
        .chain(renewing);
        let requests = RequestCounter::default();
        let way = Way {
            transport: Arc::clone(&transport),
            tokens,
            dead_letters: self.dead_letters,
            clock: Arc::clone(&self.clock),
            jitter: self.jitter,
            requests: requests.clone(),
            policy: policy.clone(),
        };
        let (service, version) = &self.service;
        let spool = match self.spool {
            Some(config) => {
                (self.metrics.max_wait, self.logs.max_wait) = (config.max_age, config.max_age);
                Some(Spool::open(config, Arc::clone(&self.clock))?)
            }
            None => None,
        };
        let (spool, recovery) = spool.map_or((None, None), |(spool, recovery)| (Some(spool), Some(Arc::new(recovery))));
        let plan = Plan {
            metrics: self.metrics,
            logs: self.logs,
            traces: self.traces,
            spans_frame: trace::frame(service, version.as_deref()),
            retry: self.retry,
        };
        let pipelines = Pipelines::start(plan, &way, &trace_tokens, background, spool.zip(recovery.as_deref()))
            .map_err(BuildError::Thread)?;
        let cuts = CutCounter::default();
        let connections = self.connections;
        Ok(Client {
            pipelines,
            link,
            transport,
            identity,
            clock: self.clock,
            requests,
            cuts,
            connections,
            policy,
            switch,
            recovery,
        })
    }

    fn link(&self) -> Result<Arc<Link>, BuildError> {
        if self.coordinators.is_empty() {
            return Err(BuildError::NoCoordinator);
        }
        let parse = |text: &String| text.parse().map_err(|error| BuildError::Coordinator(text.clone(), error));
        let coordinators = self.coordinators.iter().map(parse).collect::<Result<Vec<Coordinator>, _>>()?;
        let (credentials, server_roots) = self.identity.as_ref().ok_or(BuildError::NoIdentity)?;
        let identity = connection::identity(credentials, server_roots)?;
        let (jitter, metrics) = (Arc::clone(&self.jitter), self.connections.clone());
        let (fallback, interval) = (self.tcp_fallback, self.return_interval);
        connection::start(coordinators, identity, fallback, interval, jitter, self.request_timeout, metrics)
            .map_err(BuildError::Socket)
    }
}

fn check(signal: Signal, settings: &SignalSettings) -> Result<(), BuildError> {
    let batch = &settings.batch;
    let is_sound = batch.max_items > 0
        && batch.max_bytes >= MIN_BATCH_BYTES
        && batch.max_bytes as u64 <= MAX_BODY_BYTES
        && settings.max_memory / 4 >= batch.max_bytes;
    if is_sound { Ok(()) } else { Err(BuildError::Limits(signal)) }
}
