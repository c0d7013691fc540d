//! Dialling: who next, at which address, and whether we and they trust each other.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use telemetry_h3::udp::{WANTED_BUFFER_BYTES, bind_udp};
use tokio::sync::watch;
use tokio::time::timeout;

use super::coordinator::Coordinator;
use super::error::{ConnectError, ConnectErrorKind};
use super::live::Live;
use super::schedule;
use crate::backoff::Jitter;

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
        let first = self.current.load(Ordering::Relaxed);
        let mut distrust = HashSet::new();
        let attempt = |number, limit| self.attempt(first, number, limit);
        schedule::race(&self.jitter, attempt, |(index, error): &(usize, ConnectError)| {
            tracing::debug!(coordinator = %self.coordinators[*index], %error, "an attempt to connect failed");
            *self.last_error.lock() = Some(error.clone());
            if error.kind() == ConnectErrorKind::Identity {
                distrust.insert(*index);
            }
            distrust.len() == self.coordinators.len()
        })
        .await
        .map_err(|(_, error)| error)
    }

    /// The attempt of this number, round the list from `first`. Each round takes another of a coordinator's addresses.
    async fn attempt(&self, first: usize, number: usize, limit: Duration) -> Result<Live, (usize, ConnectError)> {
        let index = (first + number) % self.coordinators.len();
        let round = number / self.coordinators.len();
        let coordinator = &self.coordinators[index];
        let attempt = async {
            let address = resolve(coordinator, round).await?;
            let identity = self.identity.borrow().clone();
            let connecting = self.endpoint.connect_with(identity, address, coordinator.host());
            let connection = connecting.map_err(|error| ConnectError::Unreachable(Arc::new(error)))?.await?;
            Live::begin(connection, coordinator.clone()).await
        };
        let live =
            timeout(limit, attempt).await.unwrap_or(Err(ConnectError::Timeout)).map_err(|error| (index, error))?;
        self.current.store(index, Ordering::Relaxed);
        Ok(live)
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
