//! The same over TCP: HTTP/2 and HTTP/1.1, with real clients and with bytes by hand.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use telemetry_certs::testing::{self, Leaf, Usage};
use telemetry_certs::{CertificateRefusal, Issued};
use telemetry_relay::gate::Peer;
use telemetry_relay::listener::{Listener, ListenerConfig, ListenerHandle, RequestBody, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::service_fn;

use crate::harness::*;

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(3600);

const BOTH: [&[u8]; 2] = [b"h2", b"http/1.1"];

fn listen(cluster: &Cluster, service: impl TestService) -> ListenerHandle {
    listen_with(cluster, |_| (), service)
}

fn listen_with(cluster: &Cluster, edit: impl FnOnce(&mut ListenerConfig), service: impl TestService) -> ListenerHandle {
    cluster.listen_with(
        |config| {
            config.tcp = true;
            edit(config);
        },
        service,
    )
}

async fn dial(
    address: SocketAddr,
    mut tls: rustls::ClientConfig,
    alpn: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    tls.alpn_protocols = if alpn.is_empty() { vec![] } else { vec![alpn.to_vec()] };
    let stream = TcpStream::connect(address).await?;
    within(TlsConnector::from(Arc::new(tls)).connect(ServerName::try_from(COORDINATOR).unwrap(), stream)).await
}

async fn connect(cluster: &Cluster, to: &ListenerHandle, runner: &str, alpn: &[u8]) -> TlsStream<TcpStream> {
    dial(to.local_addr(), cluster.client_tls(&cluster.runner(runner)), alpn).await.unwrap()
}

/// A client of hyper's.
enum Client {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    async fn connect(cluster: &Cluster, to: &ListenerHandle, runner: &str, alpn: &[u8]) -> Self {
        let io = TokioIo::new(connect(cluster, to, runner, alpn).await);
        if alpn == b"h2" {
            let (requests, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            Self::Http2(requests)
        } else {
            let (requests, connection) = http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            Self::Http1(requests)
        }
    }

    async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> hyper::Result<(StatusCode, Bytes)> {
        let request = Request::post(format!("https://{COORDINATOR}{path}")).header("host", COORDINATOR);
        let request = request.body(Full::new(body.into())).unwrap();
        within(async {
            let response = match self {
                Self::Http1(requests) => requests.send_request(request).await?,
                Self::Http2(requests) => requests.send_request(request).await?,
            };
            let status = response.status();
            Ok((status, response.into_body().collect().await?.to_bytes()))
        })
        .await
    }
}

async fn write(stream: &mut TlsStream<TcpStream>, bytes: Vec<u8>) {
    within(stream.write_all(&bytes)).await.unwrap();
    within(stream.flush()).await.unwrap();
}

/// Reads until the other side ends it, in whatever way.
async fn read_to_end(stream: &mut TlsStream<TcpStream>) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = within(stream.read_to_end(&mut all)).await;
    all
}

const HTTP1_POST: &str = "POST / HTTP/1.1\r\nhost: c\r\n";

/// Bytes of HTTP/2 by hand.
mod h2 {
    pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const CONTINUATION: u8 = 9;
    pub(super) const END_STREAM: u8 = 1;
    pub(super) const END_HEADERS: u8 = 4;
    /// `POST https://c/`, with HPACK's static table.
    pub(super) const POST: &[u8] = &[0x83, 0x87, 0x84, 0x01, 1, b'c'];

    pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[a, b, c, kind, flags][..], &stream.to_be_bytes(), payload].concat()
    }

    /// What a client begins with.
    pub(super) fn hello(settings: &[u8]) -> Vec<u8> {
        [PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()
    }
}

async fn gone(listener: &ListenerHandle) {
    eventually("nobody is connected", || listener.metrics().active_connections() == 0).await;
    eventually("nothing runs", || listener.metrics().running_requests() == 0).await;
}

#[tokio::test]
async fn requests_come_over_http2_and_http1_with_their_peer_and_their_bodies() {
    let cluster = Cluster::new();
    let listener = listen(
        &cluster,
        service_fn(|request: Request<RequestBody>| async move {
            let runner = request.extensions().get::<Peer>().unwrap().runner().unwrap().to_string();
            let mut response = echo(request).await?;
            response.headers_mut().insert("runner", runner.parse().unwrap());
            Ok(response)
        }),
    );
    let body = Bytes::from(vec![7; 3 * 1024 * 1024]);
    for alpn in [&b"h2"[..], b"http/1.1", b""] {
        let mut client = Client::connect(&cluster, &listener, "r7", alpn).await;
        for _ in 0..3 {
            assert_eq!(client.post("/", body.clone()).await.unwrap(), (StatusCode::OK, body.clone()));
        }
        assert_eq!(listener.connected()[0].transport(), Transport::Tcp);
        assert_eq!(listener.connected()[0].peer.runner().unwrap().as_str(), "r7");
        drop(client);
        gone(&listener).await;
    }
    assert_eq!(listener.metrics().requests_over(Transport::Tcp), 9);
    let mut requests = cluster.connect(&listener, "r7").await.http().await;
    assert_eq!(post(&mut requests, "beside").await.unwrap().1, "beside");
    assert_eq!(listener.metrics().requests_over(Transport::Quic), 1);
    assert_eq!(listener.metrics().active_over(Transport::Quic), 1);
}

#[tokio::test]
async fn nothing_listens_on_tcp_unless_told() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(name));
    assert!(TcpStream::connect(listener.local_addr()).await.is_err());
    assert!(!listener.view().has_tcp());
}

/// Sends a request as early as a client can, and says why the connection ended.
async fn try_a_request(to: &ListenerHandle, tls: rustls::ClientConfig, alpn: &[u8]) -> std::io::Error {
    let mut stream = match dial(to.local_addr(), tls, alpn).await {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    let request = match alpn {
        b"h2" => [h2::hello(&[]), h2::frame(h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, 1, h2::POST)].concat(),
        _ => format!("{HTTP1_POST}content-length: 0\r\n\r\n").into_bytes(),
    };
    let _ = stream.write_all(&request).await;
    let mut answer = Vec::new();
    match within(stream.read_to_end(&mut answer)).await {
        Ok(_) => panic!("a good end after {answer:?}"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn no_request_of_a_peer_without_an_acceptable_certificate_reaches_the_service() {
    let cluster = Cluster::new();
    let stranger = testing::authority();
    let reached = Arc::new(AtomicUsize::new(0));
    let listener = listen(&cluster, {
        let reached = Arc::clone(&reached);
        service_fn(move |_: Request<RequestBody>| {
            reached.fetch_add(1, Ordering::SeqCst);
            async { Ok(Response::new(Full::default())) }
        })
    });
    let runner = || Leaf::runner("r7");
    let tls = |issued: &Issued| cluster.client_tls(issued);
    let none = {
        let mut none = tls(&cluster.runner("r7"));
        none.client_auth_cert_resolver = Arc::new(crate::identity::Nothing);
        none
    };
    let cases = [
        ("no-certificate", none, CertificateRefusal::NoCertificate),
        ("unknown-ca", tls(&runner().issued_by(&stranger)), CertificateRefusal::UnknownCa),
        ("certificate-expired", tls(&runner().expired().issued_by(&cluster.authority)), CertificateRefusal::Expired),
        (
            "certificate-wrong-usage",
            tls(&runner().usages(&[Usage::Server]).issued_by(&cluster.authority)),
            CertificateRefusal::WrongUsage,
        ),
    ];
    for (kind, tls, expected) in cases {
        for alpn in BOTH {
            let error = try_a_request(&listener, tls.clone(), alpn).await;
            let refusal = error.get_ref().and_then(|e| e.downcast_ref()).and_then(CertificateRefusal::from_rustls);
            assert_eq!(refusal, Some(expected), "{kind}: {error}");
        }
        eventually(kind, || listener.metrics().refused(kind) == 2).await;
    }
    let nobody = Leaf::blank().common_name("someone").usages(&[Usage::Client]).issued_by(&cluster.authority);
    let mut stream = dial(listener.local_addr(), tls(&nobody), b"http/1.1").await.unwrap();
    let _ = stream.write_all(HTTP1_POST.as_bytes()).await;
    assert!(read_to_end(&mut stream).await.is_empty());
    assert_eq!(listener.metrics().refused("no-runner"), 1);
    assert_eq!(reached.load(Ordering::SeqCst), 0);
    gone(&listener).await;
    Client::connect(&cluster, &listener, "r7", b"h2").await.post("/", "x").await.unwrap();
    assert_eq!(reached.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_configuration_that_asks_for_no_certificate_lets_nobody_in_over_tcp() {
    let cluster = Cluster::new();
    let config = ListenerConfig { tcp: true, ..loopback() };
    let listener = Listener::bind(config, Arc::new(crate::identity::lax(&cluster))).unwrap().serve(service_fn(name));
    let tls = cluster.client_tls(&cluster.runner("r7"));
    let mut stream = dial(listener.local_addr(), tls, b"http/1.1").await.unwrap();
    let _ = stream.write_all(format!("{HTTP1_POST}content-length: 0\r\n\r\n").as_bytes()).await;
    assert!(read_to_end(&mut stream).await.is_empty());
    assert_eq!(listener.metrics().refused("no-certificate"), 1);
}

#[tokio::test]
async fn a_client_with_another_protocol_or_an_older_tls_gets_no_connection() {
    let cluster = Cluster::new();
    let listener = listen(&cluster, service_fn(name));
    let tls = cluster.client_tls(&cluster.runner("r7"));
    for alpn in [&b"h3"[..], b"http/1.0", b"spdy/3"] {
        assert!(dial(listener.local_addr(), tls.clone(), alpn).await.is_err());
    }
    eventually("they are counted", || listener.metrics().refused("handshake") == 3).await;
}

#[tokio::test]
async fn connections_of_both_transports_share_their_limits() {
    let cluster = Cluster::new();
    let edit = |config: &mut ListenerConfig| {
        config.max_connections = 3;
        config.max_connections_per_runner = 2;
    };
    let listener = listen_with(&cluster, edit, service_fn(name));
    let quic = cluster.connect(&listener, "r7").await;
    quic.http().await;
    let mut tcp = Client::connect(&cluster, &listener, "r7", b"h2").await;
    tcp.post("/", "x").await.unwrap();
    let mut newest = Client::connect(&cluster, &listener, "r7", b"http/1.1").await;
    newest.post("/", "x").await.unwrap();
    quic.close_code().await;
    eventually("two are left", || listener.metrics().active_connections() == 2).await;
    let mut last = Client::connect(&cluster, &listener, "r7", b"h2").await;
    last.post("/", "x").await.unwrap();
    eventually("the oldest is gone", || listener.metrics().active_connections() == 2).await;
    assert!(tcp.post("/", "x").await.is_err());

    let mut other = Client::connect(&cluster, &listener, "r8", b"h2").await;
    other.post("/", "x").await.unwrap();
    let tls = cluster.client_tls(&cluster.runner("r9"));
    assert!(dial(listener.local_addr(), tls.clone(), b"h2").await.is_err());
    let limits = telemetry_h3::transport::TransportLimits::default();
    assert!(crate::harness::Client::dial(listener.local_addr(), tls, limits).await.is_err());
    assert_eq!(listener.metrics().refused("too-many-connections"), 2);
}

#[tokio::test]
async fn handshakes_are_bounded_in_number_and_in_time() {
    let cluster = Cluster::new();
    let edit = |config: &mut ListenerConfig| {
        config.max_handshakes = 4;
        config.handshake_timeout = Duration::from_millis(500);
    };
    let listener = listen_with(&cluster, edit, service_fn(name));
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(listener.local_addr()).await.unwrap());
    }
    eventually("the others are turned away", || listener.metrics().refused("too-many-handshakes") >= 40).await;
    // Who comes over QUIC does not notice.
    let mut requests = cluster.connect(&listener, "r7").await.http().await;
    assert_eq!(post(&mut requests, "x").await.unwrap().1, "r7");
    eventually("they time out", || listener.metrics().refused("handshake-timeout") >= 4).await;
    let mut client = Client::connect(&cluster, &listener, "r7", b"h2").await;
    assert_eq!(client.post("/", "x").await.unwrap().1, "r7");
}

#[tokio::test]
async fn headers_that_trickle_in_end_the_connection() {
    let cluster = Cluster::new();
    let edit = |config: &mut ListenerConfig| config.header_timeout = Duration::from_millis(300);
    let listener = listen_with(&cluster, edit, service_fn(name));
    let long = [h2::POST, &[0, 1, b'x', 100], &[b'y'; 100]].concat();
    let long = h2::frame(h2::HEADERS, h2::END_HEADERS, 1, &long);
    let open = [h2::hello(&[]), h2::frame(h2::HEADERS, 0, 1, h2::POST)].concat();
    // What comes at once, and what comes bit by bit.
    let cases = [
        (&b"http/1.1"[..], HTTP1_POST.as_bytes().to_vec(), vec![b"x".to_vec(); 100]),
        (b"h2", h2::PREFACE[..2].into(), h2::PREFACE[2..].chunks(1).map(<[u8]>::to_vec).collect()),
        (b"h2", [&h2::hello(&[]), &long[..12]].concat(), long[12..].chunks(1).map(<[u8]>::to_vec).collect()),
        (b"h2", open, vec![h2::frame(h2::CONTINUATION, 0, 1, &[0, 1, b'x', 1, b'y']); 100]),
    ];
    for (ended, (alpn, at_once, bits)) in (1..).zip(cases) {
        let mut stream = connect(&cluster, &listener, "r7", alpn).await;
        stream.write_all(&at_once).await.unwrap();
        let (mut read, mut write) = tokio::io::split(stream);
        let trickle = async {
            for bit in bits {
                if write.write_all(&bit).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let mut rest = Vec::new();
        tokio::select! {
            () = trickle => {}
            _ = within(read.read_to_end(&mut rest)) => {}
        }
        eventually("it is counted", || listener.metrics().ended("slow-headers") == ended).await;
    }
    gone(&listener).await;
}

#[tokio::test]
async fn a_peer_that_is_silent_is_forgotten_and_one_that_pings_is_not() {
    let cluster = Cluster::new();
    let edit = |config: &mut ListenerConfig| config.transport.idle_timeout = Duration::from_millis(600);
    let listener = listen_with(&cluster, edit, service_fn(name));
    let mut pinging = connect(&cluster, &listener, "r8", b"h2").await;
    pinging.write_all(&h2::hello(&[])).await.unwrap();
    let mut silent = connect(&cluster, &listener, "r7", b"http/1.1").await;
    let pings = async {
        loop {
            pinging.write_all(&h2::frame(h2::PING, 0, 0, &[0; 8])).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = pings => {}
        rest = read_to_end(&mut silent) => assert!(rest.is_empty()),
    }
    assert_eq!((listener.metrics().ended("idle"), listener.connected().len()), (1, 1));
    assert_eq!(listener.connected()[0].peer.runner().unwrap().as_str(), "r8");
}

#[tokio::test]
async fn a_response_that_nobody_takes_ends_the_connection() {
    let cluster = Cluster::new();
    let large = service_fn(|_: Request<RequestBody>| async {
        Ok(Response::new(Full::new(Bytes::from(vec![7; 64 * 1024 * 1024]))))
    });
    let edit = |config: &mut ListenerConfig| config.write_timeout = Duration::from_millis(400);
    let listener = listen_with(&cluster, edit, large);
    let mut http1 = connect(&cluster, &listener, "r7", b"http/1.1").await;
    http1.write_all(format!("{HTTP1_POST}content-length: 0\r\n\r\n").as_bytes()).await.unwrap();
    eventually("nothing of it goes", || listener.metrics().ended("response-not-taken") == 1).await;
    // No window at all (SETTINGS_INITIAL_WINDOW_SIZE = 0), while other frames are read and written.
    let mut http2 = connect(&cluster, &listener, "r7", b"h2").await;
    let request = h2::frame(h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, 1, h2::POST);
    http2.write_all(&[h2::hello(&[0, 4, 0, 0, 0, 0]), request].concat()).await.unwrap();
    read_to_end(&mut http2).await;
    assert_eq!(listener.metrics().ended("response-not-taken"), 2);
    gone(&listener).await;
}

/// Rapid reset (CVE-2023-44487).
#[tokio::test]
async fn a_peer_that_gives_up_too_many_requests_loses_its_connection() {
    let cluster = Cluster::new();
    let edit = |config: &mut ListenerConfig| config.guard.max_unanswered_streams = 50;
    let listener = listen_with(&cluster, edit, service_fn(|_| pending::<Result<Response<Full<Bytes>>, Infallible>>()));
    let mut connection = connect(&cluster, &listener, "r7", b"h2").await;
    write(&mut connection, h2::hello(&[])).await;
    // Each runs by the time that it is given up: h2's own limit is for those that nobody has looked at.
    let reset = |stream| h2::frame(h2::RST_STREAM, 0, stream, &[0, 0, 0, 8]);
    for stream in (1..).step_by(2).take(50) {
        write(&mut connection, h2::frame(h2::HEADERS, h2::END_HEADERS, stream, h2::POST)).await;
        eventually("it runs", || listener.metrics().running_requests() == 1).await;
        write(&mut connection, reset(stream)).await;
        eventually("it is given up", || listener.metrics().running_requests() == 0).await;
    }
    assert_eq!(listener.metrics().ended("too-many-unanswered"), 0);
    write(&mut connection, h2::frame(h2::HEADERS, h2::END_HEADERS, 101, h2::POST)).await;
    eventually("it runs", || listener.metrics().running_requests() == 1).await;
    write(&mut connection, reset(101)).await;
    read_to_end(&mut connection).await;
    eventually("it is counted", || listener.metrics().ended("too-many-unanswered") == 1).await;
    gone(&listener).await;
}

#[tokio::test]
async fn a_peer_that_sends_frames_without_effect_loses_its_connection() {
    let cluster = Cluster::new();
    let listener = listen(&cluster, service_fn(echo));
    let floods = [
        h2::frame(h2::PING, 0, 0, &[0; 8]),
        h2::frame(h2::SETTINGS, 0, 0, &[]),
        h2::frame(h2::DATA, 0, 1, &[]),
        h2::frame(8, 0, 0, &[0, 0, 0, 1]),
    ];
    // hyper itself ends some, when they are many at once.
    let ended = || listener.metrics().ended("too-many-useless-frames") + listener.metrics().ended("protocol");
    for (before, flood) in (0..).zip(floods) {
        let mut stream = connect(&cluster, &listener, "r7", b"h2").await;
        let begin = h2::frame(h2::HEADERS, h2::END_HEADERS, 1, h2::POST);
        stream.write_all(&[h2::hello(&[]), begin].concat()).await.unwrap();
        let (mut read, mut write) = tokio::io::split(stream);
        let many = flood.repeat(100);
        let attack = async { while write.write_all(&many).await.is_ok() {} };
        let mut rest = Vec::new();
        within(async { tokio::join!(attack, read.read_to_end(&mut rest)) }).await.1.ok();
        eventually("it is counted", || ended() == before + 1).await;
    }
    gone(&listener).await;
}

#[tokio::test]
async fn headers_that_are_too_large_are_431_or_end_the_connection() {
    let cluster = Cluster::new();
    let listener = listen(&cluster, service_fn(name));
    for alpn in BOTH {
        let mut client = Client::connect(&cluster, &listener, "r7", alpn).await;
        assert_eq!(client.post(&format!("/{}", "x".repeat(8_000)), "").await.unwrap().1, "r7");
        let too_large = client.post(&format!("/{}", "x".repeat(20_000)), "").await;
        assert!(
            too_large.as_ref().is_err()
                || too_large.as_ref().is_ok_and(|(status, _)| *status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
            "{too_large:?}"
        );
    }
}

/// RFC 9112 sections 3.2, 6.1 and 6.3.
#[tokio::test]
async fn a_request_that_two_readers_may_cut_differently_is_the_last_of_its_connection() {
    let cluster = Cluster::new();
    let reached = Arc::new(AtomicUsize::new(0));
    let listener = listen(&cluster, {
        let reached = Arc::clone(&reached);
        service_fn(move |request: Request<RequestBody>| {
            reached.fetch_add(1, Ordering::SeqCst);
            echo(request)
        })
    });
    let smuggled = "POST /smuggled HTTP/1.1\r\nhost: c\r\ncontent-length: 0\r\n\r\n";
    let chunked = "transfer-encoding: chunked\r\n";
    let cases = [
        ("two lengths", format!("{HTTP1_POST}content-length: 0\r\ncontent-length: 5\r\n\r\n"), 400, 0),
        ("a list of lengths", format!("{HTTP1_POST}content-length: 0, 0\r\n\r\n"), 400, 0),
        ("a signed length", format!("{HTTP1_POST}content-length: +0\r\n\r\n"), 400, 0),
        ("a hexadecimal length", format!("{HTTP1_POST}content-length: 0x0\r\n\r\n"), 400, 0),
        ("both framings", format!("{HTTP1_POST}content-length: 5\r\n{chunked}\r\n0\r\n\r\n"), 200, 1),
        ("both framings, reversed", format!("{HTTP1_POST}{chunked}content-length: 5\r\n\r\n0\r\n\r\n"), 200, 1),
        ("chunked is not last", format!("{HTTP1_POST}transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n"), 400, 0),
        ("an unknown coding", format!("{HTTP1_POST}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n"), 400, 0),
        ("a space before the colon", format!("{HTTP1_POST}content-length : 0\r\n\r\n"), 400, 0),
        ("a folded line", format!("{HTTP1_POST}x: y\r\n content-length: 0\r\n\r\n"), 400, 0),
        ("a bare CR", format!("{HTTP1_POST}x: y\rcontent-length: 5\r\n\r\n"), 400, 0),
        ("no host", "POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n".to_owned(), 400, 0),
        ("two hosts", format!("{HTTP1_POST}host: d\r\ncontent-length: 0\r\n\r\n"), 400, 0),
    ];
    for (what, request, status, reaches) in cases {
        let before = reached.load(Ordering::SeqCst);
        let mut stream = connect(&cluster, &listener, "r7", b"http/1.1").await;
        stream.write_all(format!("{request}{smuggled}").as_bytes()).await.unwrap();
        let answer = String::from_utf8(read_to_end(&mut stream).await).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{what}: {answer}");
        assert_eq!(reached.load(Ordering::SeqCst) - before, reaches, "{what}");
    }
    gone(&listener).await;
}

#[tokio::test]
async fn a_body_is_asked_for_only_when_it_is_wanted() {
    let cluster = Cluster::new();
    let listener = listen(
        &cluster,
        service_fn(|request: Request<RequestBody>| async move {
            if request.uri().path() == "/wanted" { echo(request).await } else { name(request).await }
        }),
    );
    let head =
        |path: &str| format!("POST {path} HTTP/1.1\r\nhost: c\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n");
    let mut stream = connect(&cluster, &listener, "r7", b"http/1.1").await;
    stream.write_all(head("/wanted").as_bytes()).await.unwrap();
    let mut answer = [0; 25];
    within(stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"body").await.unwrap();
    let mut answer = vec![0; 17];
    within(stream.read_exact(&mut answer)).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{answer:?}");
    drop(stream);
    let mut stream = connect(&cluster, &listener, "r7", b"http/1.1").await;
    stream.write_all(head("/unwanted").as_bytes()).await.unwrap();
    let answer = String::from_utf8(read_to_end(&mut stream).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("r7"), "{answer}");
}

/// The answer to a body that nobody reads must not be lost with the connection.
#[tokio::test]
async fn an_early_answer_arrives_although_the_body_is_still_on_its_way() {
    let cluster = Cluster::new();
    let listener = listen(&cluster, service_fn(name));
    for alpn in BOTH {
        let mut client = Client::connect(&cluster, &listener, "r7", alpn).await;
        let answer = client.post("/", vec![7; 16 * 1024 * 1024]).await;
        assert_eq!(answer.unwrap().1, "r7", "{alpn:?}");
    }
}

#[tokio::test]
async fn what_is_still_on_its_way_after_an_early_answer_does_not_reset_the_connection_at_once() {
    let cluster = Cluster::new();
    let listener = listen(&cluster, service_fn(name));
    let mut stream = connect(&cluster, &listener, "r7", b"http/1.1").await;
    let head = format!("{HTTP1_POST}content-length: 100000000\r\n\r\n");
    write(&mut stream, [head.as_bytes(), &[7; 256 * 1024]].concat()).await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"r7") {
        let mut some = [0; 1024];
        let len = within(stream.read(&mut some)).await.unwrap();
        answer.extend_from_slice(&some[..len]);
    }
    // A reset would be there by the second time.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        write(&mut stream, vec![7; 64 * 1024]).await;
    }
    drop(stream);
    gone(&listener).await;
}

#[tokio::test]
async fn a_service_that_panics_ends_its_request_and_no_other() {
    let cluster = Cluster::new();
    let listener = listen(
        &cluster,
        service_fn(|request: Request<RequestBody>| async move {
            assert!(request.uri().path() != "/panic", "on purpose");
            name(request).await
        }),
    );
    for (panics, alpn) in (1..).zip(BOTH) {
        let mut client = Client::connect(&cluster, &listener, "r7", alpn).await;
        let mut other = Client::connect(&cluster, &listener, "r8", alpn).await;
        assert!(client.post("/panic", "").await.is_err());
        assert_eq!(listener.metrics().failed("panicked"), panics);
        assert_eq!(other.post("/", "").await.unwrap().1, "r8");
        if alpn == b"h2" {
            assert_eq!(client.post("/", "").await.unwrap().1, "r7");
        }
    }
}

/// Answers when there is a permit.
fn on_permit(permits: Arc<Semaphore>) -> impl TestService {
    service_fn(move |request: Request<RequestBody>| {
        let permits = Arc::clone(&permits);
        async move {
            permits.acquire().await.unwrap().forget();
            echo(request).await
        }
    })
}

#[tokio::test]
async fn at_the_end_what_runs_is_finished_and_what_comes_is_turned_away() {
    let cluster = Cluster::new();
    for alpn in BOTH {
        let permits = Arc::new(Semaphore::new(0));
        let listener = listen(&cluster, on_permit(Arc::clone(&permits)));
        let address = listener.local_addr();
        let mut idle = Client::connect(&cluster, &listener, "r8", alpn).await;
        let mut client = Client::connect(&cluster, &listener, "r7", alpn).await;
        let running = tokio::spawn(async move { (client.post("/", "whole").await, client) });
        eventually("it runs", || listener.metrics().running_requests() == 1).await;
        let metrics = listener.metrics().clone();
        let draining = tokio::spawn(listener.drain(LONG));
        eventually("the idle one is gone", || metrics.active_connections() == 1).await;
        assert!(idle.post("/", "late").await.is_err());
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
        assert!(!draining.is_finished());
        permits.add_permits(1);
        let (answer, mut client) = within(running).await.unwrap();
        assert_eq!(answer.unwrap().1, "whole");
        within(draining).await.unwrap();
        assert!(client.post("/", "too late").await.is_err());
        assert_eq!((metrics.running_requests(), metrics.active_connections()), (0, 0));
    }
}

#[tokio::test]
async fn what_takes_longer_than_the_grace_period_is_cut_off_and_so_is_all_when_the_handle_is_dropped() {
    let cluster = Cluster::new();
    for (alpn, dropped) in [(BOTH[0], false), (BOTH[1], false), (BOTH[0], true), (BOTH[1], true)] {
        let listener = listen(&cluster, service_fn(|_| pending::<Result<Response<Full<Bytes>>, Infallible>>()));
        let mut client = Client::connect(&cluster, &listener, "r7", alpn).await;
        let running = tokio::spawn(async move { client.post("/", "x").await });
        eventually("it runs", || listener.metrics().running_requests() == 1).await;
        let metrics = listener.metrics().clone();
        if dropped {
            drop(listener);
        } else {
            within(listener.drain(Duration::from_millis(200))).await;
        }
        assert!(within(running).await.unwrap().is_err());
        eventually("all has ended", || (metrics.running_requests(), metrics.active_connections()) == (0, 0)).await;
    }
}

#[tokio::test]
async fn the_connections_of_a_removed_runner_end_at_once_with_what_runs_on_them() {
    let cluster = Cluster::new();
    let permits = Arc::new(Semaphore::new(1));
    let listener = listen(&cluster, on_permit(Arc::clone(&permits)));
    let mut other = Client::connect(&cluster, &listener, "r8", b"h2").await;
    other.post("/", "x").await.unwrap();
    for alpn in BOTH {
        let mut removed = Client::connect(&cluster, &listener, "r7", alpn).await;
        let running = tokio::spawn(async move { removed.post("/", "x").await });
        eventually("it runs", || listener.metrics().running_requests() == 1).await;
        let closed = listener.close_peers(
            |connected| connected.peer.runner().is_some_and(|runner| runner.as_str() == "r7"),
            "r7 was removed",
        );
        assert_eq!(closed, 1);
        assert!(within(running).await.unwrap().is_err());
        eventually("it is gone", || listener.connected().len() == 1 && listener.metrics().running_requests() == 0)
            .await;
    }
    permits.add_permits(1);
    assert_eq!(other.post("/", "stays").await.unwrap().1, "stays");
}

#[tokio::test]
async fn a_reload_holds_for_both_transports_and_a_handshake_under_way_is_in_vain() {
    let cluster = Cluster::new();
    let listener = listen(&cluster, service_fn(name));
    let shown =
        async || connect(&cluster, &listener, "r7", b"h2").await.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let before = shown().await;
    let half = TcpStream::connect(listener.local_addr()).await.unwrap();
    // Another connection is accepted after it, so that it is accepted by now.
    assert_eq!(shown().await, before);
    listener.reload(Arc::new(cluster.server_tls())).unwrap();
    assert_ne!(shown().await, before);
    let mut tls = cluster.client_tls(&cluster.runner("r7"));
    tls.alpn_protocols.clear();
    let tls = Arc::new(tls);
    let mut stream =
        within(TlsConnector::from(tls).connect(ServerName::try_from(COORDINATOR).unwrap(), half)).await.unwrap();
    assert!(read_to_end(&mut stream).await.is_empty());
    assert!(listener.metrics().ended("reloaded") >= 1);
}

#[tokio::test]
async fn a_mounted_service_is_served_over_tcp_too() {
    let cluster = Cluster::new();
    let config = ListenerConfig { tcp: true, ..loopback() };
    let listener = Listener::bind(config, Arc::new(cluster.server_tls())).unwrap();
    let handle = listener.mount("/rpc", service_fn(echo)).unwrap().serve(service_fn(name));
    for alpn in BOTH {
        let mut client = Client::connect(&cluster, &handle, "r7", alpn).await;
        assert_eq!(client.post("/rpc/jobs", "mounted").await.unwrap().1, "mounted");
        assert_eq!(client.post("/rpc2", "mounted").await.unwrap().1, "r7");
    }
}
