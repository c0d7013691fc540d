//! A listener with a service of the test's choice, and clients that speak HTTP/3 well, badly, or byte by byte.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of this")]

use std::convert::Infallible;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use quinn::crypto::rustls::QuicClientConfig;
use telemetry_certs::testing::{self, Leaf};
use telemetry_certs::{ClientTls, ClusterAuthority, Issued, Roots, ServerTls, client_config, server_config};
use telemetry_h3::client::{self, SendRequest};
use telemetry_h3::transport::{self, TransportLimits};
use telemetry_h3::{Code, GuardLimits, StreamFailure};
use telemetry_relay::gate::Peer;
use telemetry_relay::listener::{Listener, ListenerConfig, ListenerHandle, RequestBody};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tower::Service;

/// The name of every coordinator here.
pub const COORDINATOR: &str = "c.example";

/// What a listener serves here.
pub trait TestService:
    Service<Request<RequestBody>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> TestService for S where
    S: Service<Request<RequestBody>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// One cluster's certificates.
pub struct Cluster {
    pub authority: ClusterAuthority,
}

impl Cluster {
    pub fn new() -> Self {
        Self { authority: testing::authority() }
    }

    pub fn roots(&self) -> Roots {
        Roots::from_pem(self.authority.certificate_pem().as_bytes()).unwrap()
    }

    /// A server's TLS configuration, with a new certificate each time.
    pub fn server_tls(&self) -> rustls::ServerConfig {
        let issued = Leaf::coordinator(COORDINATOR).issued_by(&self.authority);
        let credentials = issued.credentials().unwrap();
        let client_roots = &self.roots();
        server_config(ServerTls { credentials: &credentials, client_roots, crls: &[], alpn: &[b"h3"] }).unwrap()
    }

    pub fn runner(&self, id: &str) -> Issued {
        Leaf::runner(id).issued_by(&self.authority)
    }

    /// The TLS configuration of a client that shows this.
    pub fn client_tls(&self, issued: &Issued) -> rustls::ClientConfig {
        let credentials = issued.credentials().unwrap();
        let server_roots = &self.roots();
        client_config(ClientTls { credentials: &credentials, server_roots, alpn: &[b"h3"] }).unwrap()
    }

    /// Listens on loopback.
    pub fn listen(&self, service: impl TestService) -> ListenerHandle {
        self.listen_with(|_| (), service)
    }

    /// Listens on loopback with other settings.
    pub fn listen_with(&self, edit: impl FnOnce(&mut ListenerConfig), service: impl TestService) -> ListenerHandle {
        let mut config = loopback();
        edit(&mut config);
        Listener::bind(config, Arc::new(self.server_tls())).unwrap().serve(service)
    }

    /// Connects as this runner.
    pub async fn connect(&self, to: &ListenerHandle, runner: &str) -> Client {
        self.connect_at(to.local_addr(), runner).await
    }

    /// Connects as this runner to this address.
    pub async fn connect_at(&self, address: SocketAddr, runner: &str) -> Client {
        let tls = self.client_tls(&self.runner(runner));
        within(Client::dial(address, tls, TransportLimits::default())).await.unwrap()
    }
}

pub fn loopback() -> ListenerConfig {
    ListenerConfig::new("127.0.0.1:0".parse().unwrap())
}

/// Answers with the body that came, after all of it; with 400 if that was not all.
pub async fn echo(request: Request<RequestBody>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(match request.into_body().collect().await {
        Ok(body) => Response::new(Full::new(body.to_bytes())),
        Err(_) => Response::builder().status(StatusCode::BAD_REQUEST).body(Full::default()).unwrap(),
    })
}

/// Answers with the runner's name, and reads nothing.
pub async fn name(request: Request<RequestBody>) -> Result<Response<Full<Bytes>>, Infallible> {
    let runner = request.extensions().get::<Peer>().unwrap().author().to_string();
    Ok(Response::new(Full::new(runner.into())))
}

/// A QUIC connection to a listener, on which nothing was said yet.
pub struct Client {
    pub quic: quinn::Connection,
    endpoint: quinn::Endpoint,
    /// h3 closes a connection when nobody can send requests any more.
    requests: Mutex<Option<SendRequest>>,
}

impl Client {
    pub async fn dial(
        address: SocketAddr,
        tls: rustls::ClientConfig,
        limits: TransportLimits,
    ) -> Result<Self, quinn::ConnectionError> {
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let quic = endpoint.connect_with(quic_config(tls, &limits), address, COORDINATOR).unwrap().await?;
        Ok(Self { quic, endpoint, requests: Mutex::default() })
    }

    /// Begins HTTP/3 properly.
    pub async fn http(&self) -> SendRequest {
        let (mut driver, requests, monitor) =
            within(client::begin(self.quic.clone(), GuardLimits::default())).await.unwrap();
        tokio::spawn(async move { driver.wait_idle().await });
        within(monitor.settings()).await;
        *self.requests.lock().unwrap() = Some(requests.clone());
        requests
    }

    /// Does what HTTP/3 asks of a client at the start, and from then on sends what a test wants.
    pub async fn raw(&self) -> RawClient {
        let mut control = self.quic.open_uni().await.unwrap();
        control.write_all(&[0, SETTINGS, 0]).await.unwrap();
        RawClient { quic: self.quic.clone(), control }
    }

    /// How the listener closed the connection.
    pub async fn close_code(&self) -> Code {
        match within(self.quic.closed()).await {
            quinn::ConnectionError::ApplicationClosed(close) => Code::from(close.error_code.into_inner()),
            other => panic!("closed otherwise: {other}"),
        }
    }

    /// The certificate that the listener showed.
    pub fn server_certificate(&self) -> Vec<u8> {
        let chain = self.quic.peer_identity().unwrap();
        chain.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().unwrap()[0].to_vec()
    }
}

pub fn quic_config(tls: rustls::ClientConfig, limits: &TransportLimits) -> quinn::ClientConfig {
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    config.transport_config(Arc::new(transport::client(limits)));
    config
}

/// Sends a whole request and reads the whole response.
pub async fn post(requests: &mut SendRequest, body: impl Into<Bytes>) -> Result<(Response<()>, Bytes), StreamFailure> {
    let request = Request::post(format!("https://{COORDINATOR}/")).body(()).unwrap();
    within(async {
        let (mut upload, mut download) = requests.send_request(request).await?.split();
        let body = body.into();
        let up = async {
            // The response counts, even if the listener did not want all of the body.
            if upload.send_data(body).await.is_ok() {
                let _ = upload.finish().await;
            }
        };
        let down = async {
            let head = download.recv_response().await?;
            let mut body = Vec::new();
            while let Some(mut data) = download.recv_data().await? {
                body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
            }
            Ok((head, Bytes::from(body)))
        };
        tokio::join!(up, down).1
    })
    .await
}

/// A client that sends what a test wants.
pub struct RawClient {
    pub quic: quinn::Connection,
    pub control: quinn::SendStream,
}

impl RawClient {
    /// Opens a request stream and sends the headers of a POST.
    pub async fn post(&self) -> (quinn::SendStream, quinn::RecvStream) {
        let (mut send, recv) = within(self.quic.open_bi()).await.unwrap();
        send.write_all(&frame(HEADERS, POST)).await.unwrap();
        (send, recv)
    }
}

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const SETTINGS: u8 = 4;
pub const GOAWAY: u8 = 7;

/// The field section of `POST https://a/`, with the static table of QPACK.
pub const POST: &[u8] = &[0, 0, 0xd4, 0xd7, 0xc1, 0x50, 1, b'a'];

pub fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    announced(kind, payload.len(), payload)
}

/// A frame that announces `len` bytes, whatever it has.
pub fn announced(kind: u8, len: usize, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(len).unwrap() | 0x8000_0000;
    [&[kind], len.to_be_bytes().as_slice(), payload].concat()
}

pub const CANCELLED: quinn::VarInt = quinn::VarInt::from_u32(0x10c);

/// How the other side ended a stream that is read.
pub async fn reset_code(recv: &mut quinn::RecvStream) -> Code {
    loop {
        match within(recv.read_chunk(usize::MAX, true)).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a clean end"),
            Err(quinn::ReadError::Reset(code)) => break Code::from(code.into_inner()),
            Err(error) => panic!("{error}"),
        }
    }
}

/// How the other side stopped a stream that is written.
pub async fn stop_code(send: &quinn::SendStream) -> Code {
    Code::from(within(send.stopped()).await.unwrap().expect("it was stopped").into_inner())
}

/// Bounds a wait for something that is to happen.
pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("in time")
}

/// Waits until something is so that nothing tells of.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(30), waiting).await.is_ok(), "{what}");
}

/// What becomes of the packets on a [`Path`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Conditions {
    /// How long each takes, either way.
    pub delay: Duration,
    /// Those to the listener are lost.
    pub lose_up: bool,
    /// Those to the listener are lost from its first answer on.
    pub lose_up_after_answer: bool,
    /// Those from the listener are lost.
    pub lose_down: bool,
}

/// A way to a listener for one client, on which packets meet what a test wants.
pub struct Path {
    /// Where to dial.
    pub address: SocketAddr,
    conditions: watch::Sender<Conditions>,
    answered: watch::Receiver<bool>,
}

impl Path {
    /// A path that arrives at the listener from this address.
    pub async fn from_to(from: Ipv4Addr, to: SocketAddr, conditions: Conditions) -> Self {
        let entrance = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let exit = Arc::new(UdpSocket::bind((from, 0)).await.unwrap());
        let address = entrance.local_addr().unwrap();
        let (conditions, now) = watch::channel(conditions);
        let (answered, has_answered) = watch::channel(false);
        tokio::spawn(async move {
            let (mut up, mut down) = ([0; 2048], [0; 2048]);
            let mut client = None;
            loop {
                let (len, from_client) = tokio::select! {
                    Ok((len, from)) = entrance.recv_from(&mut up) => {
                        client = Some(from);
                        (len, true)
                    }
                    Ok((len, _)) = exit.recv_from(&mut down) => (len, false),
                };
                let now = *now.borrow();
                let lost = if from_client {
                    now.lose_up || now.lose_up_after_answer && *answered.borrow()
                } else {
                    answered.send_replace(true);
                    now.lose_down
                };
                if lost {
                    continue;
                }
                let (socket, packet, target) = if from_client {
                    (exit.clone(), up[..len].to_vec(), to)
                } else {
                    (entrance.clone(), down[..len].to_vec(), client.unwrap())
                };
                let send = async move {
                    tokio::time::sleep(now.delay).await;
                    let _ = socket.send_to(&packet, target).await;
                };
                if now.delay.is_zero() {
                    send.await;
                } else {
                    tokio::spawn(send);
                }
            }
        });
        Self { address, conditions, answered: has_answered }
    }

    pub async fn to(to: SocketAddr, conditions: Conditions) -> Self {
        Self::from_to(Ipv4Addr::LOCALHOST, to, conditions).await
    }

    pub fn change(&self, conditions: Conditions) {
        self.conditions.send_replace(conditions);
    }

    /// Completes when the listener has sent something.
    pub async fn answered(&mut self) {
        within(self.answered.wait_for(|answered| *answered)).await.unwrap();
    }
}
