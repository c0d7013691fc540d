//! The runner's certificate: which one is shown, and having it renewed at two thirds of its life.
//!
//! A new key is made for each attempt and never leaves this machine. Its certificate is tried out first, by a connection of its
//! own: one that the coordinator refuses is never shown again, and the old one serves for the rest of its life. One that is
//! accepted is stored, and then that connection takes over: a crash in between finds it in the files. Requests under way end
//! on the old connection.

mod ask;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use telemetry_certs::{CredentialFiles, Credentials, KeyKind, PeerIdentity, PendingKey, Roots};
use telemetry_proto::Clock;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::backoff::{Backoff, Jitter};
use crate::connection::{self, ConnectError, IdentityError, Link, Transport, TriedOut};
use ask::RenewError;

/// The share of its life after which a certificate is renewed, at the latest.
const RENEW_AT: f64 = 2.0 / 3.0;
/// How much earlier that may be, so that runners that were set up together part.
const SPREAD: f64 = 0.05;
/// The share of its life that is left when a certificate that is not renewed is warned about.
const WARN_AT: f64 = 0.25;
/// How often it is warned about.
const WARN_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest sleep: a machine may be suspended, and its clock be set.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The shortest pause after a failure.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(10 * 60);
/// How long until a coordinator that renews no certificates is asked again.
const NOT_OFFERED_PAUSE: Duration = Duration::from_secs(60 * 60);

/// Where a renewed certificate is kept, so that the next start shows it.
pub trait IdentityStore: Send + Sync + 'static {
    /// Keeps the chain and its key, both or neither. It may block.
    ///
    /// # Errors
    /// They can't be kept. What was kept before still is.
    fn save(&self, chain_pem: &str, key_pem: &str) -> io::Result<()>;
}

impl IdentityStore for CredentialFiles {
    fn save(&self, chain_pem: &str, key_pem: &str) -> io::Result<()> {
        self.replace(chain_pem, key_pem)
    }
}

/// How the runner's certificate is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateState {
    /// When it ends.
    pub ends: Option<SystemTime>,
    /// When it is to be renewed; absent where that is not this client's business.
    pub renews: Option<SystemTime>,
    /// How often it was renewed.
    pub renewed: u64,
    /// Why the last attempt failed; absent after one that did not.
    pub trouble: Option<String>,
}

/// What is shown to coordinators, and who is trusted.
pub(crate) struct Identity {
    current: watch::Sender<Arc<Current>>,
    link: Option<Arc<Link>>,
    /// What was tried out and is being stored. Whoever finds it in the files before it is shown shows it. Locked while anything
    /// changes, so that it is shown once.
    tried: Mutex<Option<(Current, Option<TriedOut>)>>,
    state: Mutex<CertificateState>,
    ends: Gauge,
    renewals: Family<[(&'static str, &'static str); 1], Counter>,
}

struct Current {
    credentials: Credentials,
    roots: Roots,
    /// Absent for a certificate that can't be read: the coordinator is the judge.
    peer: Option<PeerIdentity>,
    /// When its life began, as far as this client knows: certificates are dated back, for peers whose clocks are behind.
    since: SystemTime,
}

impl Identity {
    pub(crate) fn new(credentials: Credentials, roots: Roots, link: Option<Arc<Link>>) -> Arc<Self> {
        let current = Arc::new(Current::new(credentials, roots, None));
        let identity = Self {
            current: watch::channel(Arc::clone(&current)).0,
            link,
            tried: Mutex::default(),
            state: Mutex::default(),
            ends: Gauge::default(),
            renewals: Family::default(),
        };
        identity.note(&current);
        Arc::new(identity)
    }

    /// Shows and trusts others from now on. The same as before change nothing: the files of a renewed certificate may be
    /// read again by whoever watches them, and that costs no connection. Whether anything changed.
    pub(crate) fn set(&self, credentials: &Credentials, roots: &Roots) -> Result<bool, IdentityError> {
        self.change(Current::new(credentials.clone(), roots.clone(), None))
    }

    pub(crate) fn state(&self) -> CertificateState {
        self.state.lock().clone()
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "When the runner's certificate ends, in seconds since 1970";
        registry.register("telemetry_certificate_expiry_timestamp_seconds", help, self.ends.clone());
        let help = "Attempts to renew the runner's certificate, by outcome";
        registry.register("telemetry_certificate_renewals", help, self.renewals.clone());
    }

    fn change(&self, next: Current) -> Result<bool, IdentityError> {
        let mut tried = self.tried.lock();
        if self.current.borrow().is_same(&next) {
            return Ok(false);
        }
        match tried.take_if(|(tried, _)| tried.is_same(&next)) {
            Some((next, way)) => self.show(next, way)?,
            None => self.show(next, None)?,
        }
        Ok(true)
    }

    /// Shows what was tried out, unless that has been done.
    fn adopt(&self) -> Result<(), IdentityError> {
        let mut tried = self.tried.lock();
        tried.take().map_or(Ok(()), |(next, way)| self.show(next, way))
    }

    /// Over the connection of the trial, if there was one.
    fn show(&self, next: Current, tried: Option<TriedOut>) -> Result<(), IdentityError> {
        match (&self.link, tried) {
            (Some(link), Some(tried)) => link.adopt(tried),
            (Some(link), None) => link.set_identity(next.tls()?),
            (None, _) => {}
        }
        self.note(&next);
        self.current.send_replace(Arc::new(next));
        Ok(())
    }

    fn note(&self, current: &Current) {
        let ends = current.peer.as_ref().map(|peer| peer.not_after);
        let unix = ends.and_then(|ends| ends.duration_since(SystemTime::UNIX_EPOCH).ok()).unwrap_or_default();
        self.ends.set(i64::try_from(unix.as_secs()).unwrap_or(i64::MAX));
        let mut state = self.state.lock();
        (state.ends, state.renews, state.trouble) = (ends, None, None);
    }

    fn count(&self, outcome: &'static str, trouble: Option<String>) {
        self.renewals.get_or_create(&[("outcome", outcome)]).inc();
        let mut state = self.state.lock();
        state.renewed += u64::from(trouble.is_none());
        state.trouble = trouble;
    }
}

impl Current {
    fn new(credentials: Credentials, roots: Roots, since: Option<SystemTime>) -> Self {
        let peer = PeerIdentity::from_leaf(credentials.leaf()).ok();
        let dated = peer.as_ref().map_or(SystemTime::UNIX_EPOCH, |peer| peer.not_before);
        Self { credentials, roots, peer, since: since.unwrap_or(dated) }
    }

    fn tls(&self) -> Result<connection::Identity, IdentityError> {
        connection::identity(&self.credentials, &self.roots)
    }

    fn is_same(&self, other: &Self) -> bool {
        self.credentials.chain() == other.credentials.chain() && self.roots.certificates() == other.roots.certificates()
    }

    /// The moment at which this share of its life is over; `None` for what can't be read.
    fn after(&self, share: f64) -> Option<SystemTime> {
        let ends = self.peer.as_ref()?.not_after;
        let life = ends.duration_since(self.since).unwrap_or_default();
        Some(self.since + life.mul_f64(share))
    }
}

/// The task that keeps the certificate fresh, or at least warns.
pub(crate) struct Renewer {
    pub(crate) identity: Arc<Identity>,
    pub(crate) transport: Arc<dyn Transport>,
    /// Absent where someone else renews.
    pub(crate) store: Option<Arc<dyn IdentityStore>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) jitter: Arc<Jitter>,
}

impl Renewer {
    /// Runs for ever.
    pub(crate) async fn run(self) {
        let mut changes = self.identity.current.subscribe();
        loop {
            let current = changes.borrow_and_update().clone();
            let minding = async {
                self.mind(&current).await;
                std::future::pending::<()>().await
            };
            tokio::select! {
                changed = changes.changed() => if changed.is_err() {
                    return;
                },
                () = minding => {}
            }
        }
    }

    /// Minds one certificate, until another is shown.
    async fn mind(&self, current: &Current) {
        match (&self.store, &current.peer) {
            (Some(store), Some(peer)) => self.renew(store, current, peer).await,
            (None, Some(_)) => self.warn(current).await,
            // Nobody knows when it ends.
            (_, None) => std::future::pending().await,
        }
    }

    /// Waits until it is time, and asks until there is a new one.
    async fn renew(&self, store: &Arc<dyn IdentityStore>, current: &Current, peer: &PeerIdentity) {
        let share = RENEW_AT - SPREAD * self.jitter.share();
        let Some(due) = current.after(share) else { return };
        self.identity.state.lock().renews = Some(due);
        self.until(due).await;
        let mut backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE, Arc::clone(&self.jitter));
        loop {
            let pause = match self.attempt(store, current, peer).await {
                Ok(()) => return,
                Err(error) => {
                    let left = peer.not_after.duration_since(self.clock.now()).unwrap_or_default();
                    self.tell(&error, current, left);
                    // However little life is left, some attempts fall into it.
                    let pause = backoff.next().min((left / 6).max(SHORTEST_PAUSE));
                    if error.is_not_offered() { NOT_OFFERED_PAUSE } else { pause.max(error.retry_after()) }
                }
            };
            sleep(pause).await;
        }
    }

    async fn attempt(
        &self,
        store: &Arc<dyn IdentityStore>,
        current: &Current,
        peer: &PeerIdentity,
    ) -> Result<(), RenewError> {
        let pending = Arc::new(PendingKey::generate(KeyKind::P256, &peer.runner)?);
        let response = ask::ask(&*self.transport, pending.request()).await?;
        let credentials = pending.with_chain(&response.certificate_chain)?;
        let renewed = PeerIdentity::from_leaf(credentials.leaf()).map_err(|_| RenewError::Unusable)?;
        let now = self.clock.now();
        if renewed.runner != peer.runner || renewed.not_after <= now {
            return Err(RenewError::Unusable);
        }
        let next = Current::new(credentials, current.roots.clone(), Some(now));
        let tried = self.try_out(&next, peer.not_after).await?;
        *self.identity.tried.lock() = Some((next, tried));
        self.save(store, response.certificate_chain, pending).await;
        let ends = OffsetDateTime::from(renewed.not_after);
        self.identity.adopt()?;
        self.identity.count("renewed", None);
        tracing::info!(%ends, serial = renewed.serial, "the runner's certificate was renewed");
        Ok(())
    }

    /// Waits until the coordinator has accepted the next one. If it is away until the old one ends, nothing is lost by showing
    /// the next one untried.
    async fn try_out(&self, next: &Current, old_ends: SystemTime) -> Result<Option<TriedOut>, RenewError> {
        let Some(link) = &self.identity.link else { return Ok(None) };
        let mut backoff = Backoff::new(SHORTEST_PAUSE, LOOK_EVERY, Arc::clone(&self.jitter));
        while let Ok(left) = old_ends.duration_since(self.clock.now()) {
            match link.try_out(next.tls()?).await {
                Ok(tried) => return Ok(Some(tried)),
                Err(ConnectError::Refused(refusal)) => return Err(RenewError::NotAccepted(refusal)),
                Err(error) => tracing::debug!(%error, "the renewed certificate can't be tried out now"),
            }
            sleep(backoff.next().min(left)).await;
        }
        Ok(None)
    }

    /// A certificate that can't be stored is shown all the same: it is better than one that ends.
    async fn save(&self, store: &Arc<dyn IdentityStore>, chain: String, pending: Arc<PendingKey>) {
        let store = Arc::clone(store);
        let saved = tokio::task::spawn_blocking(move || store.save(&chain, &pending.key_pem())).await;
        if let Err(error) = saved.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            self.identity.renewals.get_or_create(&[("outcome", "not_stored")]).inc();
            tracing::error!(%error, "the renewed certificate can't be stored, so a restart will show the old one");
        }
    }

    fn tell(&self, error: &RenewError, current: &Current, left: Duration) {
        let is_new = self.identity.state.lock().trouble.is_none();
        self.identity.count(error.outcome(), Some(error.to_string()));
        let seconds_left = left.as_secs();
        // Where the operator issues certificates there is time until the last quarter.
        let is_late = current.after(1.0 - WARN_AT).is_some_and(|late| late <= self.clock.now());
        if error.is_not_offered() && !is_late {
            if is_new {
                tracing::info!(
                    seconds_left,
                    "the coordinator does not renew the runner's certificate; the operator must"
                );
            }
        } else {
            tracing::warn!(%error, seconds_left, "the runner's certificate could not be renewed");
        }
    }

    /// Says daily that a certificate ends that someone else must renew.
    async fn warn(&self, current: &Current) {
        let Some(late) = current.after(1.0 - WARN_AT) else { return };
        self.until(late).await;
        loop {
            let ends = current.after(1.0).map(OffsetDateTime::from);
            tracing::warn!(ends = ends.map(|ends| ends.to_string()), "the runner's certificate ends soon");
            sleep(WARN_EVERY).await;
        }
    }

    async fn until(&self, due: SystemTime) {
        while let Ok(left) = due.duration_since(self.clock.now())
            && !left.is_zero()
        {
            sleep(left.min(LOOK_EVERY)).await;
        }
    }
}
