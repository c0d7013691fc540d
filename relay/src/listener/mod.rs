//! Where runners connect: QUIC, mutual TLS, HTTP/3, everything that a peer can make grow bounded.
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
mod view;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use quinn::{Endpoint, VarInt};
use telemetry_h3::Code;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::{BoxError, Service};

use accept::Acceptance;
pub use body::{BodyError, RequestBody};
pub use config::{ListenError, ListenerConfig};
use connection::Shared;
pub use metrics::ListenerMetrics;
pub use mount::MountError;
use mount::{Mounts, Routed};
use peers::Peers;
pub use peers::{Connected, PeerChain};
pub use view::ListenerView;

/// What a peer is told when the listener ends.
const GOODBYE: &[u8] = b"the relay stops";

/// How long that may take.
const GOODBYE_TIME: Duration = Duration::from_secs(1);

/// A bound socket that does not serve yet.
pub struct Listener {
    endpoint: Endpoint,
    address: SocketAddr,
    config: Arc<ListenerConfig>,
    tls: Arc<ArcSwap<quinn::ServerConfig>>,
    metrics: ListenerMetrics,
    mounts: Mounts,
}

impl Listener {
    /// Binds the address. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// [`ListenError`]
    pub fn bind(config: ListenerConfig, tls: Arc<rustls::ServerConfig>) -> Result<Self, ListenError> {
        let server = quic::server_config(&config, tls)?;
        let endpoint = quic::bind(&config, server.clone())?;
        let address = endpoint.local_addr().map_err(|source| ListenError::Bind { address: config.address, source })?;
        let tls = Arc::new(ArcSwap::from_pointee(server));
        let (metrics, mounts) = (ListenerMetrics::default(), Mounts::default());
        Ok(Self { endpoint, address, config: Arc::new(config), tls, metrics, mounts })
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
        let peers = Peers::default();
        let shared = Shared {
            config: self.config,
            tls: Arc::clone(&self.tls),
            metrics: self.metrics.clone(),
            peers: peers.clone(),
            draining,
        };
        let service = Routed::new(service, self.mounts);
        let accepting = tokio::spawn(Acceptance::new(self.endpoint.clone(), shared).run(service));
        ListenerHandle {
            endpoint: self.endpoint,
            address: self.address,
            tls: self.tls,
            metrics: self.metrics,
            peers,
            drain,
            accepting,
        }
    }
}

/// A listener that serves. Dropped, it ends at once, and so do its connections.
pub struct ListenerHandle {
    endpoint: Endpoint,
    address: SocketAddr,
    tls: Arc<ArcSwap<quinn::ServerConfig>>,
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
        let config = quic::with_tls(&self.tls.load(), tls)?;
        self.tls.store(Arc::new(config));
        Ok(())
    }

    /// Closes the connections for which `which` holds, at once. Returns how many those were.
    pub fn close_peers(&self, which: impl Fn(&Connected) -> bool, why: &str) -> usize {
        self.peers.close(which, why)
    }

    /// Stops: no new connections and requests, running requests finish within `grace`, the rest ends. Completes when
    /// everything has ended.
    pub async fn drain(mut self, grace: Duration) {
        self.drain.send_replace(true);
        if timeout(grace, &mut self.accepting).await.is_err() {
            tracing::warn!("requests were still running when the grace period ended");
            self.accepting.abort();
            let _ = (&mut self.accepting).await;
        }
        self.endpoint.close(varint(Code::H3_NO_ERROR), GOODBYE);
        let _ = timeout(GOODBYE_TIME, self.endpoint.wait_idle()).await;
    }
}

impl Drop for ListenerHandle {
    fn drop(&mut self) {
        // Either is without effect after a drain.
        self.accepting.abort();
        self.endpoint.close(varint(Code::H3_NO_ERROR), GOODBYE);
    }
}

/// HTTP/3 error codes fit a QUIC variable-length integer.
fn varint(code: Code) -> VarInt {
    VarInt::from_u64(code.value()).unwrap_or(VarInt::MAX)
}
