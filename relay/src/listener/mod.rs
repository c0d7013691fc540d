//! Where runners connect: QUIC, mutual TLS, HTTP/3, everything that a peer can make grow bounded.
//!
//! The listener hands a service an [`http::Request`] that carries its [`Peer`](crate::gate::Peer) as an extension, and knows nothing of what the
//! request is about.

mod accept;
mod body;
mod config;
mod connection;
mod metrics;
mod peers;
mod request;
mod view;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::hmac;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, EndpointConfig, TokioRuntime, VarInt};
use quinn_proto::HashedConnectionIdGenerator;
use telemetry_h3::{Code, transport, udp};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::Service;

use accept::Acceptance;
pub use body::{BodyError, RequestBody};
pub use config::{ListenError, ListenerConfig};
use connection::Shared;
pub use metrics::ListenerMetrics;
use peers::Peers;
pub use peers::{Connected, PeerChain};
pub use view::ListenerView;

/// How much may wait for the accept loop: connection attempts, and the bytes of one and of all of them.
const MAX_INCOMING: usize = 1_024;
const INCOMING_BYTES: u64 = 64 * 1024;
const INCOMING_BYTES_TOTAL: u64 = 16 * 1024 * 1024;

/// How long closed connections get to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// A bound socket that does not serve yet.
pub struct Listener {
    endpoint: Endpoint,
    address: SocketAddr,
    config: Arc<ListenerConfig>,
    tls: Arc<ArcSwap<quinn::ServerConfig>>,
    metrics: ListenerMetrics,
}

impl Listener {
    /// Binds the address. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// [`ListenError`]
    pub fn bind(config: ListenerConfig, tls: Arc<rustls::ServerConfig>) -> Result<Self, ListenError> {
        let server = server_config(&config, tls)?;
        let bind_failed = |source| ListenError::Bind { address: config.address, source };
        let (socket, granted) = udp::bind_udp(config.address, config.udp_buffer_bytes).map_err(bind_failed)?;
        if granted.receive < config.udp_buffer_bytes {
            tracing::warn!(
                wanted_bytes = config.udp_buffer_bytes,
                granted_bytes = granted.receive,
                "the UDP receive buffer is smaller than wanted; raise net.core.rmem_max"
            );
        }
        let runtime = Arc::new(TokioRuntime);
        let endpoint =
            Endpoint::new(endpoint_config(&config), Some(server.clone()), socket, runtime).map_err(bind_failed)?;
        let address = endpoint.local_addr().map_err(bind_failed)?;
        let tls = Arc::new(ArcSwap::from_pointee(server));
        Ok(Self { endpoint, address, config: Arc::new(config), tls, metrics: ListenerMetrics::default() })
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

    /// Serves until the handle is [drained](ListenerHandle::drain) or dropped.
    pub fn serve<S, B>(self, service: S) -> ListenerHandle
    where
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Send,
    {
        let (drain, draining) = watch::channel(false);
        let peers = Peers::default();
        let shared =
            Shared { config: Arc::clone(&self.config), metrics: self.metrics.clone(), peers: peers.clone(), draining };
        let acceptance = Acceptance::new(self.endpoint.clone(), Arc::clone(&self.tls), shared);
        let accepting = tokio::spawn(acceptance.run(service));
        ListenerHandle {
            endpoint: self.endpoint,
            address: self.address,
            tls: self.tls,
            metrics: self.metrics,
            peers,
            drain,
            accepting: Some(accepting),
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
    accepting: Option<JoinHandle<()>>,
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
        ListenerView { address: self.address, peers: self.peers.clone(), metrics: self.metrics.clone() }
    }

    /// Uses another TLS configuration for new connections. Those that are open stay; to end those that would not get in any
    /// more is [`close_peers`](Self::close_peers)'s business.
    ///
    /// # Errors
    /// [`ListenError::Tls`], and the old configuration stays.
    pub fn reload(&self, tls: Arc<rustls::ServerConfig>) -> Result<(), ListenError> {
        let crypto = QuicServerConfig::try_from(tls).map_err(|_| ListenError::Tls)?;
        // Only the cryptography changes: another token key would break the Retry tokens that are out.
        let mut config = quinn::ServerConfig::clone(&self.tls.load());
        config.crypto = Arc::new(crypto);
        self.endpoint.set_server_config(Some(config.clone()));
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
        if let Some(mut accepting) = self.accepting.take()
            && timeout(grace, &mut accepting).await.is_err()
        {
            tracing::warn!("requests were still running when the grace period ended");
            accepting.abort();
        }
        self.endpoint.close(varint(Code::H3_NO_ERROR), b"the relay stops");
        let _ = timeout(GOODBYE, self.endpoint.wait_idle()).await;
    }
}

impl Drop for ListenerHandle {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
            self.endpoint.close(varint(Code::H3_NO_ERROR), b"the relay stops");
        }
    }
}

fn server_config(config: &ListenerConfig, tls: Arc<rustls::ServerConfig>) -> Result<quinn::ServerConfig, ListenError> {
    // `QuicServerConfig::new` and `with_single_cert` would allow early data.
    let crypto = QuicServerConfig::try_from(tls).map_err(|_| ListenError::Tls)?;
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    server
        .transport_config(Arc::new(transport::server(&config.transport)))
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES_TOTAL);
    Ok(server)
}

fn endpoint_config(config: &ListenerConfig) -> EndpointConfig {
    let Some(key) = &config.reset_key else { return EndpointConfig::default() };
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    // quinn answers only to connection IDs that it may have given out, which it tells by another key; with a new one after
    // a restart, it would meet every old connection with silence.
    let mut id_key = [0; size_of::<u64>()];
    id_key.copy_from_slice(&hmac::sign(&key, b"connection IDs").as_ref()[..size_of::<u64>()]);
    let id_key = u64::from_le_bytes(id_key);
    let mut endpoint = EndpointConfig::new(Arc::new(key));
    endpoint.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(id_key)));
    endpoint
}

/// HTTP/3 error codes fit a QUIC variable-length integer.
fn varint(code: Code) -> VarInt {
    VarInt::from_u64(code.value()).unwrap_or(VarInt::MAX)
}
