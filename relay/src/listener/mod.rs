//! Where runners connect: QUIC, mutual TLS, HTTP/3, everything that a peer can make grow bounded; and where UDP does not get
//! through, the same over TCP.
//!
//! The listener hands a service an [`http::Request`] that carries its [`Peer`](crate::gate::Peer) as an extension, and knows nothing of what the
//! request is about.

mod accept;
mod body;
mod config;
mod connection;
mod handshakes;
mod metrics;
mod mount;
mod peers;
mod quic;
mod request;
mod shared;
mod tcp;
mod tls;
mod transport;
mod view;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::future::OptionFuture;
use http::{Request, Response};
use http_body::Body;
use quinn::Endpoint;
use telemetry_h3::Code;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::{BoxError, Service};

use accept::Acceptance;
pub use body::{BodyError, RequestBody};
pub use config::{ListenError, ListenerConfig};
pub use metrics::ListenerMetrics;
pub use mount::MountError;
use mount::{Mounts, Routed};
use peers::Peers;
pub use peers::{Connected, PeerChain};
use shared::Shared;
use tcp::TcpAcceptance;
use tls::Tls;
pub use transport::Transport;
use transport::varint;
pub use view::ListenerView;

use crate::gate::Writers;

/// What a peer is told when the listener ends.
const GOODBYE: &[u8] = b"the relay stops";

/// How long that may take, at least and at most. A peer that does not hear it learns of the end when it hears nothing more.
const GOODBYE_TIME: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// What telling one more peer takes of a slow machine.
const GOODBYE_EACH: Duration = Duration::from_micros(500);
/// Round trips after which nobody is expected to ask again who has not been heard: three probe timeouts of QUIC.
const GOODBYE_ROUND_TRIPS: u32 = 6;

/// Bound sockets that do not serve yet.
pub struct Listener {
    endpoint: Endpoint,
    tcp: Option<TcpListener>,
    address: SocketAddr,
    config: Arc<ListenerConfig>,
    tls: Arc<ArcSwap<Tls>>,
    metrics: ListenerMetrics,
    mounts: Mounts,
    writers: Arc<Writers>,
}

impl Listener {
    /// Binds the address, for UDP and, if the configuration says so, for TCP. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// [`ListenError`]
    pub fn bind(config: ListenerConfig, tls: Arc<rustls::ServerConfig>) -> Result<Self, ListenError> {
        let tls = Tls::new(&config, tls)?;
        let (endpoint, tcp) = if config.tcp {
            let (endpoint, tcp) = tcp::bind_both(&config, &tls.quic())?;
            (endpoint, Some(tcp))
        } else {
            (quic::bind(&config, &tls.quic())?, None)
        };
        let address = endpoint.local_addr().map_err(|source| ListenError::Bind { address: config.address, source })?;
        let tls = Arc::new(ArcSwap::from_pointee(tls));
        let (metrics, mounts, writers) = (ListenerMetrics::default(), Mounts::default(), Arc::default());
        Ok(Self { endpoint, tcp, address, config: Arc::new(config), tls, metrics, mounts, writers })
    }

    /// Where it listens, with the port that the system chose if it was asked to.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Counts into these metrics.
    #[must_use]
    pub fn with_metrics(mut self, metrics: ListenerMetrics) -> Self {
        self.metrics = metrics;
        self
    }

    /// Lets these in, beside runners. Which writers there are may change while it serves; the connections of those that are none
    /// any more are [`close_peers`](ListenerHandle::close_peers)'s business.
    #[must_use]
    pub fn with_writers(mut self, writers: Arc<Writers>) -> Self {
        self.writers = writers;
        self
    }

    /// Serves another service at `prefix` and everything below it. It gets requests as the main service does: with their
    /// [`Peer`](crate::gate::Peer), and with a body whose length nobody has compared.
    ///
    /// # Errors
    /// [`MountError`]: the prefix is none, overlaps another, or would take a path from the relay.
    pub fn mount<M, B>(mut self, prefix: &str, service: M) -> Result<Self, MountError>
    where
        M: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
        M::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.mounts.add(prefix, service)?;
        Ok(self)
    }

    /// Serves until the handle is [drained](ListenerHandle::drain) or dropped.
    pub fn serve<S, B>(self, service: S) -> ListenerHandle
    where
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Send,
    {
        let (drain, draining) = watch::channel(false);
        let shared = Shared::new(self.config, Arc::clone(&self.tls), &self.metrics, self.writers, draining);
        let peers = shared.peers.clone();
        let service = Routed::new(service, self.mounts);
        let tcp = self.tcp.map(|tcp| TcpAcceptance::new(tcp, shared.over_tcp(&self.metrics)).run(service.clone()));
        let quic = Acceptance::new(self.endpoint.clone(), shared).run(service);
        let has_tcp = tcp.is_some();
        let accepting = tokio::spawn(async move {
            tokio::join!(quic, OptionFuture::from(tcp));
        });
        ListenerHandle {
            endpoint: self.endpoint,
            address: self.address,
            has_tcp,
            tls: self.tls,
            metrics: self.metrics,
            peers,
            drain,
            accepting,
        }
    }
}

/// A TLS configuration that is found good and not in force yet.
pub(crate) struct NextTls(Tls);

/// A listener that serves. Dropped, it ends at once, and so do its connections.
pub struct ListenerHandle {
    endpoint: Endpoint,
    address: SocketAddr,
    has_tcp: bool,
    tls: Arc<ArcSwap<Tls>>,
    metrics: ListenerMetrics,
    peers: Peers,
    drain: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl ListenerHandle {
    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// What it counts.
    #[must_use]
    pub const fn metrics(&self) -> &ListenerMetrics {
        &self.metrics
    }

    /// Who is connected.
    #[must_use]
    pub fn connected(&self) -> Vec<Connected> {
        self.peers.all()
    }

    /// A view of who is connected, for those who only watch. Cheap to clone.
    #[must_use]
    pub fn view(&self) -> ListenerView {
        ListenerView {
            address: self.address,
            has_tcp: self.has_tcp,
            peers: self.peers.clone(),
            metrics: self.metrics.clone(),
            accepting: self.accepting.abort_handle(),
        }
    }

    /// Uses another TLS configuration for new connections. Those that are open stay; to end those that would not get in any
    /// more is [`close_peers`](Self::close_peers)'s business, afterwards. A handshake that is under way is in vain: its
    /// client has to try again.
    ///
    /// # Errors
    /// [`ListenError`] when the configuration is of no use, and the old one stays.
    pub fn reload(&self, tls: Arc<rustls::ServerConfig>) -> Result<(), ListenError> {
        self.publish(self.prepare(tls)?);
        Ok(())
    }

    /// The first half of [`reload`](Self::reload), the one that may fail: for those who change more than this, and all of it
    /// or nothing.
    pub(crate) fn prepare(&self, tls: Arc<rustls::ServerConfig>) -> Result<NextTls, ListenError> {
        self.tls.load().renewed(tls).map(NextTls)
    }

    /// The second half.
    pub(crate) fn publish(&self, NextTls(tls): NextTls) {
        self.tls.store(Arc::new(tls));
    }

    /// Closes the connections for which `which` holds, at once. Returns how many those were.
    pub fn close_peers(&self, which: impl Fn(&Connected) -> bool, why: &str) -> usize {
        self.peers.close(which, why)
    }

    /// Stops: no new connections and requests, running requests finish within `grace`, the rest ends. Completes when
    /// everything has ended.
    pub async fn drain(mut self, grace: Duration) {
        let goodbye = self.goodbye_time();
        self.drain.send_replace(true);
        if timeout(grace, &mut self.accepting).await.is_err() {
            tracing::warn!("requests were still running when the grace period ended");
            self.accepting.abort();
            let _ = (&mut self.accepting).await;
        }
        self.endpoint.close(varint(Code::H3_NO_ERROR), GOODBYE);
        let _ = timeout(goodbye, self.endpoint.wait_idle()).await;
    }

    /// Long enough for everyone who is connected now. Whoever has vanished is remembered by QUIC for some seconds more, and
    /// is not waited for.
    fn goodbye_time(&self) -> Duration {
        let connected = self.peers.all();
        let slowest = connected.iter().filter_map(Connected::round_trip).max().unwrap_or_default();
        let each = GOODBYE_EACH * u32::try_from(connected.len()).unwrap_or(u32::MAX);
        let (shortest, longest) = GOODBYE_TIME;
        (shortest + each + GOODBYE_ROUND_TRIPS * slowest).min(longest)
    }
}

impl Drop for ListenerHandle {
    fn drop(&mut self) {
        // Either is without effect after a drain.
        self.accepting.abort();
        self.endpoint.close(varint(Code::H3_NO_ERROR), GOODBYE);
    }
}
