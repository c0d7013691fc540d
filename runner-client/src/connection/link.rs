//! The one connection that the client keeps, and the task that keeps it.
//!
//! It is made when someone first wants it, and made again when it is lost and wanted. QUIC itself notices a dead one at the
//! idle timeout only, unless the other side says so. So whoever sends watches for acknowledgements; when they fail to come
//! a fresh connection is raced against the silent one, which is given up only once the fresh one stands.
//!
//! A connection over TCP, or to a coordinator that is not the first of the list, is one for want of a better. What is preferred is
//! tried again now and then, and takes the new requests once it has answered one. Those under way end where they began, so that
//! none is lost or sent twice for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::Identity;
use super::dial::Dialer;
use super::error::{ConnectError, ConnectErrorKind, SendError};
use super::live::{Carrier, Live};
use super::quic::TICK;
use super::transport::Transport;
use crate::metrics::ConnectionMetrics;

/// How long a request waits for a connection before its sender is told that there is none.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long nobody dials after one side refused the other's certificate.
const DISTRUST_PAUSE: Duration = Duration::from_secs(30);
/// How long dialling goes on when nobody waits for it any more.
const LINGER: Duration = Duration::from_secs(5);
/// How long the farewell to the coordinator may take.
const FAREWELL: Duration = Duration::from_millis(500);

/// The client's connection to whichever coordinator answers.
pub(crate) struct Link {
    shared: Arc<Shared>,
    request_timeout: Duration,
    keeper: AbortOnDropHandle<()>,
}

/// The coordinator that is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoordinatorPeer {
    /// Its address, as it was given.
    pub coordinator: String,
    /// What the connection runs over.
    pub carrier: Carrier,
    /// The round trip to it.
    pub round_trip: Duration,
}

struct Shared {
    dialer: Dialer,
    metrics: ConnectionMetrics,
    state: watch::Sender<State>,
    /// Counts connections that the coordinator ended, and silent ones that were given up.
    losses: watch::Sender<u64>,
    /// The connection that takes over from the present one.
    successor: Mutex<Option<Live>>,
    /// How many wait for a connection.
    waiting: AtomicUsize,
    /// One more waits, or there is a successor.
    wanted: Notify,
}

/// Certificates that a coordinator accepted, and the connection that shows it.
pub(crate) struct TriedOut {
    identity: Identity,
    live: Live,
}

#[derive(Clone)]
enum State {
    Down,
    Up(Arc<Live>),
    /// One side refused the other's certificate. Dialling begins again at that time, or when ours changes.
    Distrust(ConnectError, Instant),
    Closed,
}

impl Link {
    /// Begins to keep a connection on the runtime that this is called in. Nothing is dialled yet.
    pub(super) fn start(dialer: Dialer, request_timeout: Duration, metrics: ConnectionMetrics) -> Arc<Self> {
        let shared = Arc::new(Shared {
            dialer,
            metrics,
            state: watch::channel(State::Down).0,
            losses: watch::channel(0).0,
            successor: Mutex::new(None),
            waiting: AtomicUsize::new(0),
            wanted: Notify::new(),
        });
        let keeper = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&shared).keep()));
        Arc::new(Self { shared, request_timeout, keeper })
    }

    /// Waits until there is a connection that the coordinator accepted.
    pub(crate) async fn connected(&self) -> Result<(), ConnectError> {
        self.acquire().await.map(drop)
    }

    /// The coordinator that is connected.
    pub(crate) fn peer(&self) -> Option<CoordinatorPeer> {
        match &*self.shared.state.borrow() {
            State::Up(live) if live.is_usable() => Some(CoordinatorPeer {
                coordinator: live.coordinator().to_string(),
                carrier: live.carrier(),
                round_trip: live.round_trip(),
            }),
            _ => None,
        }
    }

    /// Shows and trusts other certificates from now on: new requests go over a new connection.
    pub(crate) fn set_identity(&self, identity: Identity) {
        self.replace(identity, None);
    }

    /// Whether the coordinator accepts other certificates, and trusts us with them. Those before stay until they are
    /// [adopted](Self::adopt), and so does the connection.
    pub(crate) async fn try_out(&self, identity: Identity) -> Result<TriedOut, ConnectError> {
        let present = self.acquire().await?;
        let live = self.shared.dialer.try_out(&identity, &present).await?;
        Ok(TriedOut { identity, live })
    }

    /// Shows and trusts these from now on: new requests go over the connection that they were tried out with.
    pub(crate) fn adopt(&self, TriedOut { identity, live }: TriedOut) {
        self.replace(identity, Some(live));
    }

    fn replace(&self, identity: Identity, successor: Option<Live>) {
        *self.shared.successor.lock() = successor;
        self.shared.dialer.identity().send_replace(identity);
        if let State::Up(live) = &*self.shared.state.borrow() {
            live.retire();
        }
        self.shared.wanted.notify_one();
    }

    /// Ends the connection and dials no more. May be called again.
    pub(crate) async fn close(&self) {
        self.shared.state.send_replace(State::Closed);
        self.shared.metrics.connected(None);
        self.keeper.abort();
        self.shared.dialer.close(FAREWELL).await;
    }

    async fn acquire(&self) -> Result<Arc<Live>, ConnectError> {
        let mut state = self.shared.state.subscribe();
        let _waiting = Waiting::new(&self.shared);
        let found = state.wait_for(|state| match state {
            State::Up(live) => live.is_usable(),
            State::Distrust(..) | State::Closed => true,
            State::Down => false,
        });
        let Ok(found) = timeout(ACQUIRE_TIMEOUT, found).await else {
            return Err(self.shared.dialer.last_error().unwrap_or(ConnectError::Timeout));
        };
        match found.as_deref() {
            Ok(State::Up(live)) => Ok(Arc::clone(live)),
            Ok(State::Distrust(error, _)) => Err(error.clone()),
            _ => Err(ConnectError::Closed),
        }
    }
}

impl Transport for Link {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, SendError>> {
        async move {
            let deadline = Instant::now() + self.request_timeout;
            let live = self.acquire().await.map_err(SendError::NotSent)?;
            tokio::select! {
                result = timeout_at(deadline, live.exchange(request)) => result.unwrap_or_else(|_| {
                    // It acknowledges and does not answer. Perhaps another one does.
                    live.retire();
                    Err(SendError::Timeout)
                }),
                never = live.mind_silence() => match never {},
            }
        }
        .boxed()
    }

    fn losses(&self) -> Option<watch::Receiver<u64>> {
        Some(self.shared.losses.subscribe())
    }
}

/// Someone who waits for a connection.
struct Waiting<'a>(&'a Shared);

impl<'a> Waiting<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.waiting.fetch_add(1, Ordering::SeqCst);
        shared.wanted.notify_one();
        Self(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    async fn keep(self: Arc<Self>) {
        let mut identity = self.dialer.identity().subscribe();
        loop {
            let state = self.state.borrow().clone();
            let next = match state {
                State::Down => self.dial_when_wanted(&mut identity).await,
                State::Up(live) => self.mind(live).await,
                State::Distrust(_, until) => self.sit_out(until, &mut identity).await,
                State::Closed => return,
            };
            self.metrics.connected(match &next {
                State::Up(live) => Some(live.carrier()),
                _ => None,
            });
            self.state.send_if_modified(|state| {
                let is_open = !matches!(state, State::Closed);
                if is_open {
                    // Whoever changes the certificates looks at the state after that, so that one of both sees the other.
                    if let State::Up(live) = &next
                        && identity.has_changed().unwrap_or(false)
                    {
                        live.retire();
                    }
                    *state = next;
                }
                is_open
            });
        }
    }

    /// From now on, a change of the certificates concerns the connection that this yields.
    async fn dial_when_wanted(&self, identity: &mut watch::Receiver<Identity>) -> State {
        identity.mark_unchanged();
        if let Some(live) = self.successor.lock().take().filter(Live::is_usable) {
            return after_dialling(Ok(live));
        }
        while self.waiting.load(Ordering::SeqCst) == 0 {
            self.wanted.notified().await;
        }
        identity.mark_unchanged();
        tokio::select! {
            dialled = self.dialer.dial() => after_dialling(dialled),
            () = self.is_unwanted() => State::Down,
        }
    }

    /// Resolves when nobody has waited for a connection for some time.
    async fn is_unwanted(&self) {
        let mut wanted_at = Instant::now();
        while wanted_at.elapsed() < LINGER {
            sleep(LINGER / 5).await;
            if self.waiting.load(Ordering::SeqCst) > 0 {
                wanted_at = Instant::now();
            }
        }
    }

    /// Keeps a connection for as long as it is good.
    async fn mind(&self, live: Arc<Live>) -> State {
        let mut better = std::pin::pin!(self.dialer.better_than(&live));
        loop {
            tokio::select! {
                error = live.closed() => return self.after_loss(&live, error),
                () = self.wanted.notified() => if !live.is_usable() {
                    if live.is_going_away() {
                        self.dialer.note_goodbye();
                        self.count_loss();
                    }
                    return State::Down;
                },
                () = live.suspected() => if let Some(next) = self.race(&live).await {
                    return next;
                },
                better = &mut better => {
                    live.retire();
                    return after_dialling(Ok(better));
                }
            }
        }
    }

    /// Dials beside a connection that is silent. `None`: it spoke again.
    async fn race(&self, live: &Live) -> Option<State> {
        if live.carrier() == Carrier::Quic {
            self.dialer.doubt_quic();
        }
        let speaks_again = async {
            while !live.spoke_since_suspicion() {
                sleep(TICK).await;
            }
        };
        tokio::select! {
            () = speaks_again => {
                self.dialer.trust_quic();
                None
            }
            error = live.closed() => Some(self.after_loss(live, error)),
            dialled = self.dialer.dial() => {
                if !live.spoke_since_suspicion() {
                    tracing::info!(coordinator = %live.coordinator(), "a silent connection is given up");
                    live.close();
                    self.count_loss();
                }
                Some(after_dialling(dialled))
            }
        }
    }

    fn after_loss(&self, live: &Live, error: ConnectError) -> State {
        match &error {
            _ if error.kind() == ConnectErrorKind::Identity => return distrust(error),
            ConnectError::GoingAway => self.dialer.note_goodbye(),
            _ => {}
        }
        tracing::info!(coordinator = %live.coordinator(), %error, "the connection is lost");
        self.count_loss();
        State::Down
    }

    fn count_loss(&self) {
        self.losses.send_modify(|losses| *losses += 1);
    }

    async fn sit_out(&self, until: Instant, identity: &mut watch::Receiver<Identity>) -> State {
        tokio::select! {
            () = sleep_until(until) => {}
            _ = identity.changed() => {}
        }
        State::Down
    }
}

fn after_dialling(dialled: Result<Live, ConnectError>) -> State {
    match dialled {
        Ok(live) => {
            tracing::info!(coordinator = %live.coordinator(), carrier = %live.carrier(), "connected");
            State::Up(Arc::new(live))
        }
        Err(error) => distrust(error),
    }
}

fn distrust(error: ConnectError) -> State {
    tracing::warn!(%error, "no connection until certificates or addresses change");
    State::Distrust(error, Instant::now() + DISTRUST_PAUSE)
}
