//! Dialling: who next, at which address, over what, and whether we and they trust each other.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use telemetry_h3::udp::{WANTED_BUFFER_BYTES, bind_udp};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::coordinator::Coordinator;
use super::error::{ConnectError, ConnectErrorKind};
use super::fallback::TcpFallback;
use super::live::{Carrier, Live};
use super::quic::QuicConnection;
use super::tcp::TcpConnection;
use super::{Identity, schedule};
use crate::backoff::Jitter;

/// How long QUIC may still take once TCP stands: it may be that the coordinator has just come back, and TCP was first by
/// chance.
const QUIC_GRACE: Duration = Duration::from_millis(300);
/// How long an attempt may take that is made beside a connection that stands, with the answer that proves it.
pub(super) const ASIDE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long TCP is left alone when a stranger answers there: it may be another program on the same number.
const STRANGER_PAUSE: Duration = Duration::from_secs(30);

/// Dials the coordinators of a list, beginning with the one that answered last.
pub(super) struct Dialer {
    endpoint: Endpoint,
    /// In order of preference.
    pub(super) coordinators: Vec<Coordinator>,
    /// The index of the one that answered last.
    current: AtomicUsize,
    /// What certificates to show and to trust.
    identity: watch::Sender<Identity>,
    /// `None`: QUIC or nothing.
    pub(super) fallback: Option<TcpFallback>,
    /// How long a coordinator is used before those before it are tried again.
    pub(super) return_interval: Duration,
    /// The last connection was over TCP.
    was_tcp: AtomicBool,
    /// A connection over QUIC fell silent, and none has answered since. Some networks let handshakes through and nothing after
    /// them.
    doubts_quic: AtomicBool,
    /// The last connection ended with a goodbye.
    after_goodbye: AtomicBool,
    pub(super) jitter: Arc<Jitter>,
    last_error: Mutex<Option<ConnectError>>,
}

impl Dialer {
    /// Binds a socket on the runtime that this is called in.
    pub(super) fn new(
        coordinators: Vec<Coordinator>,
        identity: Identity,
        fallback: Option<TcpFallback>,
        return_interval: Duration,
        jitter: Arc<Jitter>,
    ) -> io::Result<Self> {
        Ok(Self {
            endpoint: bind()?,
            coordinators,
            current: AtomicUsize::new(0),
            identity: watch::channel(identity).0,
            fallback,
            return_interval,
            was_tcp: AtomicBool::new(false),
            doubts_quic: AtomicBool::new(false),
            after_goodbye: AtomicBool::new(false),
            jitter,
            last_error: Mutex::new(None),
        })
    }

    pub(super) const fn identity(&self) -> &watch::Sender<Identity> {
        &self.identity
    }

    /// Why the last attempt failed. Distrust counts more than silence: where UDP is blocked, only TCP can tell of it.
    pub(super) fn last_error(&self) -> Option<ConnectError> {
        self.last_error.lock().clone()
    }

    /// The last connection ended with a goodbye: who said it is perhaps only started again.
    pub(super) fn note_goodbye(&self) {
        self.after_goodbye.store(true, Ordering::Relaxed);
    }

    /// A connection over QUIC fell silent: the next one has to answer a request before it counts as one, where there is TCP
    /// instead. That it stands says too little.
    pub(super) fn doubt_quic(&self) {
        self.doubts_quic.store(true, Ordering::Relaxed);
    }

    /// QUIC gets through after all.
    pub(super) fn trust_quic(&self) {
        self.doubts_quic.store(false, Ordering::Relaxed);
    }

    /// Ends every connection and waits a moment until the other side knows.
    pub(super) async fn close(&self, within: Duration) {
        self.endpoint.close(quinn::VarInt::from_u32(0x100), b"");
        let _ = timeout(within, self.endpoint.wait_idle()).await;
    }

    /// Dials until one answers; whoever no longer wants that drops the future. It ends in an error only when every
    /// coordinator distrusts us or we distrust it, so that dialling again makes no sense.
    pub(super) async fn dial(&self) -> Result<Live, ConnectError> {
        self.forget_error();
        let dialled = self.dial_either().await;
        if let Ok(live) = &dialled {
            self.note_taken(live);
        }
        dialled
    }

    /// From now on this is the last connection.
    pub(super) fn note_taken(&self, live: &Live) {
        self.current.store(self.position(live.coordinator()), Ordering::Relaxed);
        self.was_tcp.store(live.carrier() == Carrier::Tcp, Ordering::Relaxed);
    }

    /// Where in the list a coordinator is.
    pub(super) fn position(&self, coordinator: &Coordinator) -> usize {
        self.coordinators.iter().position(|other| other == coordinator).unwrap_or_default()
    }

    /// Over QUIC, and a little later over TCP as well.
    async fn dial_either(&self) -> Result<Live, ConnectError> {
        let after_goodbye = self.after_goodbye.swap(false, Ordering::Relaxed);
        let Some(fallback) = self.fallback else { return self.race(Carrier::Quic, after_goodbye).await };
        let was_tcp = self.was_tcp.load(Ordering::Relaxed);
        let head_start = if was_tcp { Duration::ZERO } else { fallback.head_start };
        let mut quic = std::pin::pin!(self.race(Carrier::Quic, after_goodbye));
        let tcp = async {
            sleep(head_start).await;
            self.dial_tcp().await
        };
        tokio::select! {
            biased;
            dialled = &mut quic => dialled,
            dialled = tcp => match dialled {
                Ok(live) => Ok(self.give_quic_a_chance(live, quic).await),
                Err(error) => Err(error),
            },
        }
    }

    /// Connects to where `live` leads, over the same, but shows and trusts other certificates.
    pub(super) async fn try_out(&self, identity: &Identity, live: &Live) -> Result<Live, ConnectError> {
        let attempt = self.connect_as(identity.clone(), live.carrier(), live.coordinator(), live.remote());
        timeout(ASIDE_TIMEOUT, attempt).await.unwrap_or(Err(ConnectError::Timeout))
    }

    /// Waits a moment for QUIC, with a packet that is sent now: those of attempts under way may be a second old.
    async fn give_quic_a_chance(&self, tcp: Live, under_way: impl Future<Output = Result<Live, ConnectError>>) -> Live {
        let grace = QUIC_GRACE.max(4 * tcp.round_trip());
        let quic = async {
            let fresh = self.connect(Carrier::Quic, tcp.coordinator(), tcp.remote());
            tokio::select! {
                Ok(live) = under_way => Some(live),
                Ok(live) = fresh => Some(live),
                else => None,
            }
        };
        match timeout(grace, quic).await {
            Ok(Some(quic)) => {
                tcp.close();
                quic
            }
            Ok(None) | Err(_) => tcp,
        }
    }

    /// Dials over TCP until one answers. Only a coordinator that we trust can end this by its distrust: behind a number that
    /// is the coordinator's on UDP, another program may listen on TCP.
    async fn dial_tcp(&self) -> Result<Live, ConnectError> {
        loop {
            match self.race(Carrier::Tcp, false).await {
                Err(ConnectError::UntrustedServer(_)) => sleep(STRANGER_PAUSE).await,
                dialled => return dialled,
            }
        }
    }

    async fn race(&self, carrier: Carrier, after_goodbye: bool) -> Result<Live, ConnectError> {
        let first = self.current.load(Ordering::Relaxed);
        let mut distrust = HashSet::new();
        let attempt = |number, limit| self.attempt(carrier, first, number, limit);
        schedule::race(&self.jitter, after_goodbye, attempt, |(index, error): &(usize, ConnectError)| {
            tracing::debug!(coordinator = %self.coordinators[*index], %carrier, %error, "an attempt to connect failed");
            self.note(error);
            if error.kind() == ConnectErrorKind::Identity {
                distrust.insert(*index);
            }
            distrust.len() == self.coordinators.len()
        })
        .await
        .map_err(|(_, error)| error)
    }

    /// The attempt of this number, round the list from `first`. Each round takes another of a coordinator's addresses.
    async fn attempt(
        &self,
        carrier: Carrier,
        first: usize,
        number: usize,
        limit: Duration,
    ) -> Result<Live, (usize, ConnectError)> {
        let index = (first + number) % self.coordinators.len();
        let round = number / self.coordinators.len();
        let coordinator = &self.coordinators[index];
        let attempt = async {
            let address = resolve(coordinator, round).await?;
            self.connect(carrier, coordinator, address).await
        };
        timeout(limit, attempt).await.unwrap_or(Err(ConnectError::Timeout)).map_err(|error| (index, error))
    }

    async fn connect(
        &self,
        carrier: Carrier,
        coordinator: &Coordinator,
        address: SocketAddr,
    ) -> Result<Live, ConnectError> {
        if carrier == Carrier::Quic && self.fallback.is_some() && self.doubts_quic.load(Ordering::Relaxed) {
            return self.connect_proved(carrier, coordinator, address).await;
        }
        let identity = self.identity.borrow().clone();
        self.connect_as(identity, carrier, coordinator, address).await
    }

    /// Connects, and waits for an answer to a request.
    pub(super) async fn connect_proved(
        &self,
        carrier: Carrier,
        coordinator: &Coordinator,
        address: SocketAddr,
    ) -> Result<Live, ConnectError> {
        let identity = self.identity.borrow().clone();
        let live = self.connect_as(identity, carrier, coordinator, address).await?;
        live.prove().await?;
        if carrier == Carrier::Quic {
            self.trust_quic();
        }
        Ok(live)
    }

    async fn connect_as(
        &self,
        identity: Identity,
        carrier: Carrier,
        coordinator: &Coordinator,
        address: SocketAddr,
    ) -> Result<Live, ConnectError> {
        match carrier {
            Carrier::Quic => {
                let connecting = self.endpoint.connect_with(identity.quic, address, coordinator.host());
                let connection = connecting.map_err(|error| ConnectError::Unreachable(Arc::new(error)))?.await?;
                Ok(Live::quic(QuicConnection::begin(connection).await?, coordinator.clone()))
            }
            Carrier::Tcp => {
                let connection = TcpConnection::connect(address, coordinator.host(), identity.tcp).await?;
                Ok(Live::tcp(connection, coordinator.clone()))
            }
        }
    }

    fn forget_error(&self) {
        *self.last_error.lock() = None;
    }

    fn note(&self, error: &ConnectError) {
        let mut last = self.last_error.lock();
        let is_distrust = |error: &ConnectError| error.kind() == ConnectErrorKind::Identity;
        if !last.as_ref().is_some_and(is_distrust) || is_distrust(error) {
            *last = Some(error.clone());
        }
    }
}

pub(super) async fn resolve(coordinator: &Coordinator, round: usize) -> Result<SocketAddr, ConnectError> {
    let found = tokio::net::lookup_host((coordinator.host(), coordinator.port())).await;
    let addresses: Vec<SocketAddr> = found.map_err(|error| ConnectError::Unresolvable(Arc::new(error)))?.collect();
    let none = || ConnectError::Unresolvable(Arc::new(io::Error::new(io::ErrorKind::NotFound, "no address")));
    addresses.get(round.checked_rem(addresses.len()).unwrap_or_default()).copied().ok_or_else(none)
}

/// A socket for IPv6 and IPv4, or for IPv4 where there is no IPv6.
fn bind() -> io::Result<Endpoint> {
    let any = |ip: IpAddr| bind_udp(SocketAddr::new(ip, 0), WANTED_BUFFER_BYTES);
    let (socket, granted) = any(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| any(Ipv4Addr::UNSPECIFIED.into()))?;
    tracing::debug!(receive = granted.receive, send = granted.send, "the client's socket is bound");
    Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime))
}
