//! A small coordinator: real QUIC, real certificates, scripted answers. It runs on a runtime of its own, so that it can be
//! killed like a process: without a farewell.

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test support")]

pub(crate) mod path;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use aws_lc_rs::hmac;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig, TokioRuntime};
use telemetry_certs::testing::{self, Leaf};
use telemetry_certs::{ClusterAuthority, Credentials, Crls, Issued, Roots, ServerTls, server_config};
use telemetry_h3::server::{RequestResolver, begin};
use telemetry_h3::transport::{TransportLimits, server};
use telemetry_h3::{Code, GuardLimits};
use telemetry_proto::{Route, Signal};
use telemetry_runner_client::{Client, ClientBuilder};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::timeout;

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) at: Instant,
}

impl Received {
    pub(crate) fn token(&self) -> &str {
        self.headers["miren-workload-token"].to_str().unwrap()
    }

    pub(crate) fn lines(&self) -> Vec<&str> {
        std::str::from_utf8(&self.body).unwrap().lines().collect()
    }
}

/// What to answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    /// Stop reading after the headers, and answer then.
    pub(crate) early: bool,
    /// Take the whole request and never answer.
    pub(crate) hang: bool,
}

impl Reply {
    pub(crate) fn unmarked(status: u16) -> Self {
        Self { status, headers: Vec::new(), early: false, hang: false }
    }

    pub(crate) fn verdict(status: u16, verdict: &str) -> Self {
        Self { headers: vec![("miren-telemetry-verdict", verdict.to_owned())], ..Self::unmarked(status) }
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }
}

type Play = dyn Fn(usize, &str) -> Reply + Send + Sync;

/// What outlives a restart of the coordinator.
pub(crate) struct Board {
    play: Box<Play>,
    asked: AtomicUsize,
    batches: Mutex<Vec<Received>>,
    count: watch::Sender<usize>,
    pub(crate) mints: AtomicU32,
    /// `None`: the coordinator is too old to have one.
    pub(crate) policy: Mutex<Option<String>>,
}

impl Board {
    /// Answers the batch of this number (from 0) by `play`, which is told its path.
    pub(crate) fn new(play: impl Fn(usize, &str) -> Reply + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            play: Box::new(play),
            asked: AtomicUsize::new(0),
            batches: Mutex::default(),
            count: watch::channel(0).0,
            mints: AtomicU32::new(0),
            policy: Mutex::new(None),
        })
    }

    /// Takes every batch.
    pub(crate) fn taking_all() -> Arc<Self> {
        Self::new(|_, _| Reply::verdict(204, "delivered"))
    }

    pub(crate) fn batches(&self) -> Vec<Received> {
        self.batches.lock().unwrap().clone()
    }

    /// Waits until this many batches came.
    pub(crate) async fn saw(&self, batches: usize) -> Vec<Received> {
        let mut count = self.count.subscribe();
        timeout(PATIENCE, count.wait_for(|count| *count >= batches)).await.expect("no such batch came").unwrap();
        self.batches()
    }

    /// The queries of batches that have one.
    pub(crate) fn queries(&self) -> Vec<String> {
        self.batches().into_iter().filter_map(|batch| batch.query).collect()
    }

    fn decide(&self, path: &str) -> Reply {
        (self.play)(self.asked.fetch_add(1, Ordering::SeqCst), path)
    }

    fn add(&self, received: Received) {
        self.batches.lock().unwrap().push(received);
        self.count.send_modify(|count| *count += 1);
    }

    fn mint(&self) -> String {
        let number = self.mints.fetch_add(1, Ordering::SeqCst) + 1;
        let now = time::OffsetDateTime::from(SystemTime::now());
        let rfc3339 = |at: time::OffsetDateTime| at.format(&time::format_description::well_known::Rfc3339).unwrap();
        let (ends, now) = (rfc3339(now + Duration::from_secs(3_600)), rfc3339(now));
        format!(r#"{{"token":"token-{number}","expires_at":"{ends}","server_time":"{now}"}}"#)
    }
}

/// Certificates of one cluster.
pub(crate) struct Cluster {
    pub(crate) authority: ClusterAuthority,
    pub(crate) coordinator: Issued,
    pub(crate) crls: Option<Crls>,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let authority = testing::authority();
        let coordinator = Leaf::coordinator("localhost").ip_address(Ipv4Addr::LOCALHOST.into()).issued_by(&authority);
        Self { authority, coordinator, crls: None }
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots::from_pem(self.authority.certificate_pem().as_bytes()).unwrap()
    }

    pub(crate) fn runner(&self) -> Credentials {
        Leaf::runner("r7").issued_by(&self.authority).credentials().unwrap()
    }

    /// A coordinator on a free port.
    pub(crate) fn start(&self, board: &Arc<Board>) -> Server {
        self.start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), board, None)
    }

    /// A coordinator on a port where one was killed just before, perhaps.
    pub(crate) fn start_at(&self, at: SocketAddr, board: &Arc<Board>, reset_key: Option<&[u8]>) -> Server {
        let credentials = self.coordinator.credentials().unwrap();
        let tls = server_config(ServerTls {
            credentials: &credentials,
            client_roots: &self.roots(),
            crls: self.crls.as_ref().map_or(&[][..], Crls::ders),
            alpn: &[b"h3"],
        });
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls.unwrap()).unwrap()));
        config.transport_config(Arc::new(server(&TransportLimits::default())));
        let socket = bind(at);
        let address = socket.local_addr().unwrap();
        let endpoint_config = match reset_key {
            Some(key) => {
                let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, key)));
                // The default one knows the IDs of its own process only, and to other IDs quinn says nothing, not even
                // with a stateless reset.
                config.cid_generator(|| Box::new(AnyId));
                config
            }
            None => EndpointConfig::default(),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let endpoint = {
            let _inside = runtime.enter();
            Endpoint::new(endpoint_config, Some(config), socket, Arc::new(TokioRuntime)).unwrap()
        };
        runtime.spawn(serve(endpoint.clone(), Arc::clone(board)));
        Server { address, endpoint, runtime: Some(runtime) }
    }

    /// A client of the coordinators at `servers`, with batches that are closed soon.
    pub(crate) fn client(&self, servers: &[SocketAddr]) -> ClientBuilder {
        let mut metrics = telemetry_runner_client::SignalSettings::metrics();
        metrics.batch.max_age = Duration::from_millis(20);
        let mut builder = Client::builder().identity(self.runner(), self.roots()).metrics_settings(metrics);
        for server in servers {
            builder = builder.coordinator(server.to_string());
        }
        builder
    }
}

/// Connection IDs that this process need not have chosen.
struct AnyId;

impl ConnectionIdGenerator for AnyId {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; 8];
        aws_lc_rs::rand::fill(&mut id).unwrap();
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        8
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Waits for what no event tells of.
pub(crate) async fn until(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < PATIENCE, "it did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The port of a server that was killed is free a moment later.
fn bind(at: SocketAddr) -> UdpSocket {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match UdpSocket::bind(at) {
            Ok(socket) => return socket,
            Err(error) if Instant::now() > deadline => panic!("{at}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// A running coordinator.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    endpoint: Endpoint,
    runtime: Option<Runtime>,
}

impl Server {
    /// Ends it as a crash would: nobody is told.
    pub(crate) fn kill(self) -> SocketAddr {
        let address = self.address;
        drop(self);
        // Dead is who has left the port.
        drop(bind(address));
        address
    }

    /// Ends it with a farewell to every client.
    pub(crate) async fn stop(self) -> SocketAddr {
        self.endpoint.close(quinn::VarInt::from_u32(0x100), b"");
        timeout(PATIENCE, self.endpoint.wait_idle()).await.unwrap();
        self.address
    }

    pub(crate) fn connections(&self) -> usize {
        self.endpoint.open_connections()
    }

    /// All that there ever were.
    pub(crate) fn handshakes(&self) -> u64 {
        self.endpoint.stats().accepted_handshakes
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(endpoint: Endpoint, board: Arc<Board>) {
    while let Some(incoming) = endpoint.accept().await {
        let board = Arc::clone(&board);
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else { return };
            let Ok((mut acceptor, _)) = begin(connection, GuardLimits::default()).await else { return };
            while let Ok(Some(resolver)) = acceptor.accept().await {
                tokio::spawn(handle(resolver, Arc::clone(&board)));
            }
        });
    }
}

async fn handle(resolver: RequestResolver, board: Arc<Board>) {
    let Ok((request, mut stream)) = resolver.resolve_request().await else { return };
    let (head, ()) = request.into_parts();
    let path = head.uri.path().to_owned();
    if path == Route::Policy.path() {
        return tell_policy(stream, &board).await;
    }
    let is_mint = path == Route::MintToken.path();
    let reply = if is_mint { Reply::unmarked(200) } else { board.decide(&path) };
    let mut body = BytesMut::new();
    if !reply.early {
        loop {
            match stream.recv_data().await {
                Ok(Some(mut chunk)) => body.put(chunk.copy_to_bytes(chunk.remaining())),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert_eq!(head.headers["content-length"], body.len().to_string());
    }
    let mut response = Response::builder().status(StatusCode::from_u16(reply.status).unwrap());
    for (name, value) in &reply.headers {
        response = response.header(*name, value);
    }
    if !is_mint {
        let query = head.uri.query().map(str::to_owned);
        board.add(Received { path, query, headers: head.headers, body: body.freeze(), at: Instant::now() });
    }
    if reply.hang {
        std::future::pending::<()>().await;
    }
    if reply.early {
        // The order that is harder to bear: the upload fails, and only then comes the answer that says why.
        stream.stop_sending(Code::H3_NO_ERROR);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    if stream.send_response(response.body(()).unwrap()).await.is_err() {
        return;
    }
    if is_mint {
        let _ = stream.send_data(board.mint().into()).await;
    }
    let _ = stream.finish().await;
}

async fn tell_policy(mut stream: telemetry_h3::server::RequestStream, board: &Board) {
    let policy = board.policy.lock().unwrap().clone();
    let status = if policy.is_some() { 200 } else { 404 };
    let response = Response::builder().status(status).body(()).unwrap();
    if stream.send_response(response).await.is_ok() {
        let _ = stream.send_data(policy.unwrap_or_default().into()).await;
        let _ = stream.finish().await;
    }
}

/// The batches of one signal.
pub(crate) fn of(batches: &[Received], signal: Signal) -> Vec<Received> {
    batches.iter().filter(|batch| batch.path == signal.write_path()).cloned().collect()
}
