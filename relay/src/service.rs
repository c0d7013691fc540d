//! The way of a batch through the relay. [`Relay::write`] reads like the list in the architecture document; each step is
//! a room of its own.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use prometheus_client::registry::Registry;
use telemetry_certs::MAX_CERTIFICATE_REQUEST_BYTES;
use telemetry_proto::mint::MintRequest;
use telemetry_proto::policy::{Policy, PolicyLimits, TracesPolicy};
use telemetry_proto::{Clock, MatchError, Reason, Route, Signal, limits, renew};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use crate::accepted::Accepted;
use crate::admission::{BodyBudget, BodyReservation, BudgetLimits, Caller, Permit, Sender};
use crate::forward::{Backend, Outgoing};
use crate::gate::{Author, Peer, Principal, RunnerRegistry, TokenVerifier, Writers, workload_token};
use crate::hand_over::Marked;
use crate::intake::{HeadRules, WholeBody, WriteHead, read_whole};
use crate::issuer::Issuer;
use crate::metrics::RelayMetrics;
use crate::once::{BatchIdError, BatchIdFile, Claim, Lease, Once};
use crate::operational::{OperationalSinks, OperationalStream, Source};
use crate::prepare::Prepared;
use crate::refusal::{Refusal, ResponseBody};
use crate::refusal_log::{RecentRefusal, RefusalLog};
use crate::renewal::{self, CertificateIssuer};
use crate::rules::WriteRules;
use crate::tenancy::{Tenancy, Tenant};
use crate::to_the_end::ToTheEnd;
use crate::workers::Workers;

/// How long the body of a token request or a certificate request may take.
const CONTROL_BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The relay as a [`tower::Service`]. Every request must carry its [`Peer`] as an extension; the listener sees to that,
/// and so must an embedder's own. Cheap to clone.
#[derive(Clone)]
pub struct RelayService {
    relay: Arc<Relay>,
}

/// What the service is made of. Built by [`RelayBuilder`](crate::RelayBuilder).
pub(crate) struct Relay {
    pub(crate) verifier: Arc<dyn TokenVerifier>,
    pub(crate) registry: Arc<dyn RunnerRegistry>,
    pub(crate) writers: Arc<Writers>,
    pub(crate) issuer: ArcSwapOption<Issuer>,
    pub(crate) certificates: Arc<CertificateIssuer>,
    pub(crate) backends: Backends,
    pub(crate) tenancy: Arc<Tenancy>,
    pub(crate) budget: BodyBudget,
    pub(crate) once: Arc<Once>,
    /// Where the IDs of acknowledged batches outlive a stop, if anywhere.
    pub(crate) batch_ids: Option<BatchIdFile>,
    pub(crate) forwarding: TaskTracker,
    pub(crate) rules: ArcSwap<WriteRules>,
    pub(crate) workers: Workers,
    pub(crate) operational: OperationalStream,
    pub(crate) metrics: RelayMetrics,
    pub(crate) refusals: RefusalLog,
    pub(crate) clock: Arc<dyn Clock>,
    /// Set before `draining`, for those who ask whether the relay is ready.
    pub(crate) leaving: AtomicBool,
    pub(crate) draining: AtomicBool,
}

/// The stores, by signal. A signal without a store is one that this coordinator does not take.
#[derive(Debug, Default)]
pub(crate) struct Backends {
    pub(crate) metrics: Option<Backend>,
    pub(crate) logs: Option<Backend>,
    pub(crate) traces: Option<Backend>,
}

impl Backends {
    const fn get(&self, signal: Signal) -> Option<&Backend> {
        match signal {
            Signal::Metrics => self.metrics.as_ref(),
            Signal::Logs => self.logs.as_ref(),
            Signal::Traces => self.traces.as_ref(),
        }
    }

    fn signals(&self) -> Vec<Signal> {
        Signal::ALL.into_iter().filter(|signal| self.get(*signal).is_some()).collect()
    }
}

/// A whole batch that may go to its store, with all that it holds until it has been there.
struct Batch {
    signal: Signal,
    tenant: Arc<Tenant>,
    principal: Principal,
    head: WriteHead,
    body: WholeBody,
    rewritten: Option<Prepared>,
    lease: Option<Lease>,
    permit: Permit,
    started: Instant,
}

impl RelayService {
    pub(crate) fn new(relay: Relay) -> Self {
        Self { relay: Arc::new(relay) }
    }

    /// From now on the relay is not ready any more, and still serves: for those who send it traffic by its readiness, and
    /// need a moment to notice.
    pub fn announce_draining(&self) {
        self.relay.leaving.store(true, Ordering::Release);
    }

    /// From now on every request is refused with `draining`, a `retry`. Requests that are running go on.
    pub fn start_draining(&self) {
        self.announce_draining();
        self.relay.draining.store(true, Ordering::Release);
    }

    /// For the end: waits until every batch that is on its way to a store has been there, and every operational sink has
    /// been given what waits for it. Stores and sinks have a bounded time for each, so this ends; to bound it more tightly
    /// is the caller's choice.
    pub async fn forwarded(&self) {
        self.relay.forwarding.close();
        self.relay.forwarding.wait().await;
        self.relay.operational.sinks().close().await;
    }

    /// For the end, after [`forwarded`](Self::forwarded): writes the IDs of acknowledged batches to the
    /// [state folder](crate::RelayBuilder::state_folder), for the next relay. Takes a few seconds at most. Returns how many
    /// they are; `None` without such a folder.
    ///
    /// # Errors
    /// [`BatchIdError`]: what was acknowledged shortly before and comes again may be stored twice.
    pub async fn write_batch_ids(&self) -> Result<Option<usize>, BatchIdError> {
        match &self.relay.batch_ids {
            Some(file) => self.relay.once.write_to(file, self.relay.clock.now()).await.map(Some),
            None => Ok(None),
        }
    }

    /// What the service counts.
    #[must_use]
    pub fn metrics(&self) -> &RelayMetrics {
        &self.relay.metrics
    }

    /// The signals that are taken: those with a store.
    #[must_use]
    pub fn signals(&self) -> Vec<Signal> {
        self.relay.backends.signals()
    }

    /// The stores.
    pub(crate) fn backends(&self) -> impl Iterator<Item = (Signal, &Backend)> {
        Signal::ALL.into_iter().filter_map(|signal| Some((signal, self.relay.backends.get(signal)?)))
    }

    /// Whether the relay is shutting down, even if it still serves.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.relay.leaving.load(Ordering::Acquire)
    }

    /// The last refusals, the youngest first: one entry per runner and reason in ten seconds.
    #[must_use]
    pub fn recent_refusals(&self) -> Vec<RecentRefusal> {
        self.relay.refusals.recent()
    }

    /// Registers everything that the service counts under `telemetry_relay_`, the tenants' series included.
    pub fn register(&self, registry: &mut Registry) {
        self.relay.metrics.register(registry);
        let tenants = Box::new(Arc::clone(&self.relay.tenancy));
        registry.sub_registry_with_prefix("telemetry_relay").register_collector(tenants);
    }

    /// The tenants: to [publish](Tenancy::publish) others, and to look at those that are in force.
    #[must_use]
    pub fn tenancy(&self) -> &Arc<Tenancy> {
        &self.relay.tenancy
    }

    /// The writers that are no runners.
    #[must_use]
    pub fn writers(&self) -> &Arc<Writers> {
        &self.relay.writers
    }

    /// Who renews runners' certificates: to [publish](CertificateIssuer::publish) an authority for it.
    #[must_use]
    pub fn certificates(&self) -> &Arc<CertificateIssuer> {
        &self.relay.certificates
    }

    /// Who mints tokens, if anyone does.
    #[must_use]
    pub fn issuer(&self) -> Option<Arc<Issuer>> {
        self.relay.issuer.load_full()
    }

    /// Mints by this issuer from now on, or not at all. What it signs must be accepted already.
    pub fn publish_issuer(&self, issuer: Option<Arc<Issuer>>) {
        self.relay.issuer.store(issuer);
    }

    /// Puts other rules for writes in force, and another budget for their bodies, for every request from now on. What is
    /// reserved stays reserved: where the budget shrank, requests wait until as much was given back.
    pub fn publish_rules(&self, rules: WriteRules, budget: BudgetLimits) {
        self.relay.rules.store(Arc::new(rules));
        self.relay.budget.publish(budget);
    }

    /// The sinks of the operational stream. There are none until some are attached; keep a clone to attach them late.
    #[must_use]
    pub fn operational_sinks(&self) -> &OperationalSinks {
        self.relay.operational.sinks()
    }

    /// The memory that bodies under way hold now, in bytes.
    #[must_use]
    pub fn reserved_body_bytes(&self) -> u64 {
        self.relay.budget.reserved_bytes()
    }
}

impl<B> tower::Service<Request<B>> for RelayService
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let relay = Arc::clone(&self.relay);
        Box::pin(async move { Ok(relay.serve(request).await) })
    }
}

impl Relay {
    async fn serve<B>(self: Arc<Self>, request: Request<B>) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Send,
    {
        let _running = self.metrics.running();
        let (parts, body) = request.into_parts();
        let Some(peer) = parts.extensions.get::<Peer>().cloned() else {
            tracing::error!("a request came without its peer; the listener must add one");
            return Refusal::new(Reason::InternalError).into_response();
        };
        let route = Route::find(&parts.method, parts.uri.path());
        let outcome = match self.check_peer(&peer) {
            Err(refusal) => Err(refusal),
            Ok(()) => match route {
                Ok(Route::Write(signal)) => self.write(signal, &peer, &parts, body).await,
                Ok(Route::Policy) => self.policy(&peer),
                Ok(Route::MintToken) => self.mint(&peer, body).await,
                Ok(Route::RenewCertificate) => self.renew(&peer, &parts, body).await,
                Err(MatchError::NoSuchPath) => Err(Reason::RouteUnknown.into()),
                Err(MatchError::MethodNotAllowed { allow }) => {
                    Err(Refusal::new(Reason::MethodNotAllowed).with_allow(allow))
                }
            },
        };
        self.account(&peer, route_label(route.ok()), outcome)
    }

    /// Whose batch is it?
    async fn write<B>(
        self: &Arc<Self>,
        signal: Signal,
        peer: &Peer,
        parts: &Parts,
        body: B,
    ) -> Result<Accepted, Refusal>
    where
        B: Body<Data = Bytes>,
    {
        let principal = self.check_token(peer, parts, signal)?;
        let tenant = self.tenancy.resolve(&principal)?;
        let outcome = self.write_for(&tenant, signal, principal, parts, body).await;
        tenant.meter().ended(signal, outcome.as_ref().map(Accepted::verdict).map_err(Refusal::reason));
        outcome
    }

    /// The way of a batch, from its head to the store's acknowledgement.
    async fn write_for<B>(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
        signal: Signal,
        principal: Principal,
        parts: &Parts,
        body: B,
    ) -> Result<Accepted, Refusal>
    where
        B: Body<Data = Bytes>,
    {
        let started = Instant::now();
        if self.backends.get(signal).is_none() || !tenant.writes(signal) {
            return Err(Reason::SignalDisabled.into());
        }
        let rules = self.rules.load_full();
        let head = WriteHead::parse(signal, parts, self.head_rules(&rules, signal))?;
        let caller = Caller { author: principal.author().clone(), batch: head.batch_id };
        let sender = tenant.allowance().sender(caller)?;
        sender.admit(head.content_length.unwrap_or(0))?;
        let reservation = self.reserve(&rules, &sender, &head).await?;
        let look_for_marker = signal == Signal::Metrics;
        let body = sender.counted(body);
        let body = read_whole(body, &head, rules.body, look_for_marker, reservation, &self.workers).await?;
        sender.settle();
        self.metrics.received(signal, body.len());
        tenant.meter().received(signal, body.len());
        let lease = match self.claim(&principal, signal, &head).await? {
            None => None,
            Some(Claim::First(lease)) => Some(lease),
            Some(Claim::Duplicate) => return Ok(Accepted::duplicate()),
        };
        if head.operational
            && let Some(source) = Source::of(&principal)
            && let Some(sinks) = self.operational.attached()
        {
            let working = self.budget.reserve_work(&sender, OperationalStream::working_bytes(&body)).await?;
            let tenant = Arc::clone(tenant);
            let batch = Marked { tenant, source, encoding: head.encoding, body, sinks, lease, working };
            return self.to_the_end(Arc::clone(self).hand_over(batch)).await;
        }
        let (body, rewritten) = self.prepare(&rules, signal, &sender, &head, body).await?;
        let permit = wait_for_permit(tenant, &sender).await?;
        let tenant = Arc::clone(tenant);
        let batch = Batch { signal, tenant, principal, head, body, rewritten, lease, permit, started };
        self.to_the_end(Arc::clone(self).forward(batch)).await
    }

    /// From here on a batch goes its way to the end, even if its sender goes away: only so is it known whether a repeat is
    /// one.
    fn to_the_end<F>(&self, way: F) -> ToTheEnd<Result<Accepted, Refusal>>
    where
        F: Future<Output = Result<Accepted, Refusal>> + Send + 'static,
    {
        ToTheEnd::new(self.forwarding.track_future(way))
    }

    /// The last part of the way: to the store and back.
    async fn forward(self: Arc<Self>, batch: Batch) -> Result<Accepted, Refusal> {
        let Batch { signal, tenant, principal, head, body, rewritten, lease, permit, started } = batch;
        let backend = self.backends.get(signal).ok_or(Reason::SignalDisabled)?;
        let len = body.len();
        let before_store = Instant::now();
        let outgoing = Outgoing {
            tenant: tenant.pin(),
            author: principal.author(),
            log_fields: &head.log_fields,
            encoding: head.encoding,
            body,
            rewritten: rewritten.as_ref().map(|prepared| prepared.bytes.clone()),
        };
        let answer = backend.send(outgoing).await;
        drop(permit);
        self.metrics.took(signal, before_store - started, before_store.elapsed());
        let status = answer?.into_status()?;
        if let Some(lease) = lease {
            lease.acknowledge();
        }
        self.metrics.forwarded(signal, len);
        principal.peer().activity().count_forwarded(len);
        tenant.meter().forwarded(signal, len);
        Ok(Accepted::delivered(status))
    }

    /// The handshake's answer ages: connections are long.
    fn check_peer(&self, peer: &Peer) -> Result<(), Refusal> {
        peer.check_alive(self.clock.now())?;
        match peer.author() {
            Author::Runner(runner) if !self.registry.is_registered(runner) => return Err(Reason::RunnerRemoved.into()),
            Author::Writer(_) if !self.writers.is_current(peer) => return Err(Reason::WriterUnknown.into()),
            Author::Runner(_) | Author::Writer(_) => {}
        }
        if self.draining.load(Ordering::Acquire) {
            return Err(Refusal::new(Reason::Draining).with_retry_after(Duration::from_secs(1)));
        }
        Ok(())
    }

    /// The token narrows what the certificate's holder may do; both must name the same runner, or be the same writer's.
    fn check_token(&self, peer: &Peer, parts: &Parts, signal: Signal) -> Result<Principal, Refusal> {
        let token = workload_token(&parts.headers)?;
        if peer.runner().is_none() {
            return Ok(self.writers.bind(peer, token, signal)?);
        }
        let claims = self.verifier.verify(token)?;
        peer.activity().note_token(claims.expires_at);
        Ok(Principal::bind(peer, claims, signal)?)
    }

    fn head_rules(&self, rules: &WriteRules, signal: Signal) -> HeadRules {
        HeadRules {
            max_body_bytes: rules.body.max_body_bytes,
            allow_zstd: self.backends.get(signal).is_some_and(|backend| backend.settings().zstd),
            allow_unknown_length: rules.allow_unknown_length,
        }
    }

    /// Memory comes before the first byte of the body: until it is there, flow control holds the sender.
    async fn reserve(
        &self,
        rules: &WriteRules,
        sender: &Sender<'_>,
        head: &WriteHead,
    ) -> Result<BodyReservation, Refusal> {
        let bytes = head.content_length.unwrap_or(rules.body.max_body_bytes);
        self.budget.reserve(sender, bytes).await
    }

    /// A batch with an ID is stored once: a repeat of one that is under way waits for it.
    async fn claim(&self, principal: &Principal, signal: Signal, head: &WriteHead) -> Result<Option<Claim>, Refusal> {
        match head.batch_id {
            Some(id) => self.once.claim(principal.author(), signal, id).await.map(Some),
            None => Ok(None),
        }
    }

    /// What this peer should do. Its certificate says who asks; a token does not come with it.
    fn policy(&self, peer: &Peer) -> Result<Accepted, Refusal> {
        let rules = self.rules.load();
        let mut signals = self.backends.signals();
        signals.retain(|signal| self.tenancy.may_write(peer, *signal) && self.writers.may_write(peer, *signal));
        let makes_spans = signals.contains(&Signal::Traces);
        let stores = [&self.backends.metrics, &self.backends.logs, &self.backends.traces];
        let zstd = stores.into_iter().flatten().all(|b| b.settings().zstd);
        let encodings = ["identity", "gzip"].into_iter().chain(zstd.then_some("zstd"));
        Accepted::json(&Policy {
            signals,
            encodings: encodings.map(str::to_owned).collect(),
            limits: PolicyLimits {
                max_body_bytes: rules.body.max_body_bytes,
                max_decoded_bytes: rules.body.max_decoded_bytes,
            },
            traces: makes_spans.then_some(TracesPolicy { sample_ratio: rules.traces.sample_ratio }),
            server_time: self.clock.now().into(),
        })
    }

    async fn mint<B>(&self, peer: &Peer, body: B) -> Result<Accepted, Refusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Send,
    {
        let issuer = self.issuer.load_full().ok_or_else(|| {
            Refusal::new(Reason::RouteUnknown).with_detail("this relay has no issuer; tokens are minted elsewhere")
        })?;
        let runner = peer.runner().ok_or(Reason::MintNotAllowed)?;
        let request: MintRequest = read_json(body).await?;
        let response = issuer.mint(&request, peer).map_err(|reason| match reason {
            Reason::MintRateLimited => Refusal::new(reason).with_retry_after(issuer.retry_after(runner)),
            other => Refusal::new(other),
        })?;
        self.metrics.minted();
        Accepted::json(&response)
    }

    async fn renew<B>(&self, peer: &Peer, parts: &Parts, body: B) -> Result<Accepted, Refusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Send,
    {
        self.certificates.admit(peer)?;
        check_content_type(parts, renew::CONTENT_TYPE)?;
        let request = read_control(body, MAX_CERTIFICATE_REQUEST_BYTES, renewal::too_large).await?;
        // Who was removed while its request trickled in gets nothing to come back with.
        self.check_peer(peer)?;
        let response = self.certificates.renew(&request, peer)?;
        self.metrics.renewed();
        Accepted::json(&response)
    }

    /// Counts the outcome, logs a refusal, and makes the response of it.
    fn account(&self, peer: &Peer, route: &'static str, outcome: Result<Accepted, Refusal>) -> Response<ResponseBody> {
        match outcome {
            Ok(accepted) => {
                peer.activity().count_request();
                self.metrics.count(route, accepted.verdict(), None);
                accepted.into_response()
            }
            Err(refusal) => {
                let reason = refusal.reason();
                peer.activity().count_request();
                peer.activity().count_refusal(self.clock.now(), reason);
                self.metrics.count(route, reason.verdict(), Some(reason));
                self.refusals.note(peer, route, reason, self.clock.now());
                refusal.into_response()
            }
        }
    }
}

/// No permit is held while a body trickles in: this comes after it.
async fn wait_for_permit(tenant: &Tenant, sender: &Sender<'_>) -> Result<Permit, Refusal> {
    let before = Instant::now();
    let permit = sender.permit().await;
    tenant.meter().waited(before.elapsed());
    permit
}

/// The label of a route in metrics and logs.
const fn route_label(route: Option<Route>) -> &'static str {
    match route {
        Some(Route::Write(signal)) => signal.as_str(),
        Some(Route::Policy) => "policy",
        Some(Route::MintToken) => "token",
        Some(Route::RenewCertificate) => "certificate",
        None => "none",
    }
}

async fn read_json<T, B>(body: B) -> Result<T, Refusal>
where
    T: serde::de::DeserializeOwned,
    B: Body<Data = Bytes> + Send,
    B::Error: Send,
{
    let max = usize::try_from(limits::MAX_CONTROL_BODY_BYTES).unwrap_or(usize::MAX);
    let body = read_control(body, max, || Reason::BodyTooLarge.into()).await?;
    serde_json::from_slice(&body).map_err(|_| Reason::BodyMalformed.into())
}

/// The value of `Content-Type` without its parameters must be this one.
fn check_content_type(parts: &Parts, expected: &str) -> Result<(), Refusal> {
    let value = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = value.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case(expected) { Ok(()) } else { Err(Reason::ContentTypeUnsupported.into()) }
}

/// Reads a small body whole, within a bounded time.
async fn read_control<B>(body: B, max: usize, too_large: impl FnOnce() -> Refusal) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Send,
{
    let body = BodyExt::map_err(body, |_| BodyBroke);
    match timeout(CONTROL_BODY_TIMEOUT, Limited::new(body, max).collect()).await {
        Err(_) => Err(Reason::BodyTooSlow.into()),
        Ok(Err(error)) if error.is::<BodyBroke>() => Err(Reason::BodyIncomplete.into()),
        Ok(Err(_)) => Err(too_large()),
        Ok(Ok(body)) => Ok(body.to_bytes()),
    }
}

/// The body broke off; why is the listener's business.
#[derive(Debug, thiserror::Error)]
#[error("the body broke off")]
struct BodyBroke;
