//! Dialling: who next, how soon, and whether they may.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use telemetry_h3::udp::{WANTED_BUFFER_BYTES, bind_udp};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::coordinator::Coordinator;
use super::error::{ConnectError, ConnectErrorKind};
use super::live::Live;
use crate::backoff::{Backoff, Jitter};

/// How long one attempt may take, most of them.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long one attempt of [`PATIENT_EVERY`] may take: there are paths so slow that a handshake takes seconds.
const PATIENT_TIMEOUT: Duration = Duration::from_secs(12);
const PATIENT_EVERY: usize = 3;
/// How long an attempt is waited for before the next one starts beside it. A packet to a coordinator that is away is
/// repeated at growing intervals only, so that a fresh attempt finds one that is back sooner.
const HEAD_START: Duration = Duration::from_secs(1);
/// Attempts under way at the same time, at most.
const MAX_PARALLEL: usize = 3;
/// Pauses after attempts that fail at once.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How far runners that lost the same coordinator at the same moment part.
const SPREAD: Duration = Duration::from_millis(100);

/// Dials the coordinators of a list, beginning with the one that answered last.
pub(super) struct Dialer {
    endpoint: Endpoint,
    coordinators: Vec<Coordinator>,
    /// The index of the one that answered last.
    current: AtomicUsize,
    /// What certificates to show and to trust.
    identity: watch::Sender<quinn::ClientConfig>,
    jitter: Arc<Jitter>,
    last_error: Mutex<Option<ConnectError>>,
}

impl Dialer {
    /// Binds a socket on the runtime that this is called in.
    pub(super) fn new(
        coordinators: Vec<Coordinator>,
        identity: quinn::ClientConfig,
        jitter: Arc<Jitter>,
    ) -> io::Result<Self> {
        Ok(Self {
            endpoint: bind()?,
            coordinators,
            current: AtomicUsize::new(0),
            identity: watch::channel(identity).0,
            jitter,
            last_error: Mutex::new(None),
        })
    }

    pub(super) const fn identity(&self) -> &watch::Sender<quinn::ClientConfig> {
        &self.identity
    }

    /// Why the last attempt failed.
    pub(super) fn last_error(&self) -> Option<ConnectError> {
        self.last_error.lock().clone()
    }

    /// Ends every connection and waits a moment until the other side knows.
    pub(super) async fn close(&self, within: Duration) {
        self.endpoint.close(quinn::VarInt::from_u32(0x100), b"");
        let _ = timeout(within, self.endpoint.wait_idle()).await;
    }

    /// Dials until one answers; whoever no longer wants that drops the future. It ends in an error only when every
    /// coordinator distrusts us or we distrust it, so that dialling again makes no sense.
    pub(super) async fn dial(&self) -> Result<Live, ConnectError> {
        let mut pauses = Backoff::new(PAUSES.0, PAUSES.1, Arc::clone(&self.jitter));
        let mut attempts = FuturesUnordered::new();
        let mut distrust = HashSet::new();
        let first = self.current.load(Ordering::Relaxed);
        let mut started = 0;
        let mut next_start = Instant::now() + self.jitter.between(Duration::ZERO, SPREAD);
        loop {
            tokio::select! {
                () = sleep_until(next_start), if attempts.len() < MAX_PARALLEL => {
                    attempts.push(self.attempt(first, started));
                    started += 1;
                    next_start = Instant::now() + self.jitter.between(HEAD_START / 2, HEAD_START);
                }
                Some((index, result)) = attempts.next(), if !attempts.is_empty() => {
                    let error = match result {
                        Ok(live) => {
                            self.current.store(index, Ordering::Relaxed);
                            return Ok(live);
                        }
                        Err(error) => error,
                    };
                    tracing::debug!(coordinator = %self.coordinators[index], %error, "an attempt to connect failed");
                    *self.last_error.lock() = Some(error.clone());
                    if error.kind() == ConnectErrorKind::Identity {
                        distrust.insert(index);
                        if distrust.len() == self.coordinators.len() {
                            return Err(error);
                        }
                    }
                    next_start = next_start.min(Instant::now() + pauses.next());
                }
            }
        }
    }

    /// The attempt of this number, round the list from `first`. Each round takes another of a coordinator's addresses.
    async fn attempt(&self, first: usize, number: usize) -> (usize, Result<Live, ConnectError>) {
        let index = (first + number) % self.coordinators.len();
        let round = number / self.coordinators.len();
        let is_patient = number % PATIENT_EVERY == PATIENT_EVERY - 1;
        let limit = if is_patient { PATIENT_TIMEOUT } else { ATTEMPT_TIMEOUT };
        let coordinator = &self.coordinators[index];
        let attempt = async {
            let address = resolve(coordinator, round).await?;
            let identity = self.identity.borrow().clone();
            let connecting = self.endpoint.connect_with(identity, address, coordinator.host());
            let connection = connecting.map_err(|error| ConnectError::Unreachable(Arc::new(error)))?.await?;
            Live::begin(connection, coordinator.clone()).await
        };
        (index, timeout(limit, attempt).await.unwrap_or(Err(ConnectError::Timeout)))
    }
}

async fn resolve(coordinator: &Coordinator, round: usize) -> Result<SocketAddr, ConnectError> {
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
