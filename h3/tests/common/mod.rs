//! Two QUIC endpoints on loopback, a client that speaks HTTP/3 byte by byte, and servers with and without the guard.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses its part")]

use std::any::Any;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, Bytes};
use h3::error::{Code, StreamError};
use h3::quic;
use http::Request;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::pki_types::PrivateKeyDer;
use telemetry_h3::transport::{self, TransportLimits};
use telemetry_h3::{GuardLimits, guard};

/// Both ends of one QUIC connection.
pub struct Pair {
    pub client: quinn::Connection,
    pub server: quinn::Connection,
    endpoints: [quinn::Endpoint; 2],
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl Pair {
    pub async fn new() -> Self {
        Self::with(&TransportLimits::default()).await
    }

    pub async fn with(limits: &TransportLimits) -> Self {
        let key = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let versions = [&rustls::version::TLS13];
        let mut roots = rustls::RootCertStore::empty();
        roots.add(key.cert.der().clone()).unwrap();
        let mut tls = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![key.cert.der().clone()],
                PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into()),
            )
            .unwrap();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let crypto = QuicServerConfig::try_from(tls).unwrap();
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        config.transport_config(Arc::new(transport::server(limits)));
        let server = quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();

        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        config.transport_config(Arc::new(transport::client(limits)));
        let client = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();

        let connecting = client.connect_with(config, server.local_addr().unwrap(), "localhost").unwrap();
        let (connected, accepted) = tokio::join!(connecting, async { server.accept().await.unwrap().await });
        Self {
            client: connected.unwrap(),
            server: accepted.unwrap(),
            endpoints: [client, server],
            kept: Mutex::default(),
        }
    }

    /// Keeps something alive that would otherwise end with the function that made it.
    pub fn keep(&self, thing: impl Any + Send) {
        self.kept.lock().unwrap().push(Box::new(thing));
    }

    /// An h3 server without the guard.
    pub async fn bare(&self) -> h3::server::Connection<h3_quinn::Connection, Bytes> {
        h3::server::builder().build(h3_quinn::Connection::new(self.server.clone())).await.unwrap()
    }

    /// An h3 server with the guard, and all else as without.
    pub async fn guarded(&self) -> (h3::server::Connection<guard::Connection, Bytes>, guard::Monitor) {
        self.guarded_with(GuardLimits::default()).await
    }

    pub async fn guarded_with(
        &self,
        limits: GuardLimits,
    ) -> (h3::server::Connection<guard::Connection, Bytes>, guard::Monitor) {
        let guarded = guard::Connection::new(self.server.clone(), limits);
        let monitor = guarded.monitor();
        (h3::server::builder().build(guarded).await.unwrap(), monitor)
    }

    /// A client that has done what HTTP/3 asks of it at the start, and from then on sends what a test wants.
    pub async fn raw_client(&self) -> RawClient {
        let mut control = self.client.open_uni().await.unwrap();
        control.write_all(&[0, SETTINGS, 0]).await.unwrap();
        RawClient { connection: self.client.clone(), control }
    }

    /// How the server closed the connection.
    pub async fn close_code(&self) -> Code {
        match within(self.client.closed()).await {
            quinn::ConnectionError::ApplicationClosed(close) => Code::from(close.error_code.into_inner()),
            other => panic!("closed otherwise: {other}"),
        }
    }
}

pub struct RawClient {
    pub connection: quinn::Connection,
    pub control: quinn::SendStream,
}

impl RawClient {
    /// Opens a request stream and sends the headers of a POST.
    pub async fn post(&self) -> (quinn::SendStream, quinn::RecvStream) {
        let (mut send, recv) = self.connection.open_bi().await.unwrap();
        send.write_all(&frame(HEADERS, POST)).await.unwrap();
        (send, recv)
    }

    /// Opens a unidirectional stream of this type.
    pub async fn uni(&self, kind: u8) -> quinn::SendStream {
        let mut stream = self.connection.open_uni().await.unwrap();
        stream.write_all(&[kind]).await.unwrap();
        stream
    }
}

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const SETTINGS: u8 = 4;
pub const GOAWAY: u8 = 7;
pub const MAX_PUSH_ID: u8 = 0xd;
pub const GREASE: u8 = 0x21;

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

/// Bounds a wait for something that is to happen.
pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("in time")
}

/// Gives something that must not happen the time to happen.
pub async fn stays_pending<F: Future>(future: F) -> bool {
    tokio::time::timeout(Duration::from_millis(200), future).await.is_err()
}

/// The next request on a server that is driven by nobody else.
pub async fn accept<C>(
    server: &mut h3::server::Connection<C, Bytes>,
) -> Result<(Request<()>, h3::server::RequestStream<C::BidiStream, Bytes>), StreamError>
where
    C: quic::Connection<Bytes>,
{
    within(within(server.accept()).await.unwrap().expect("a request").resolve_request()).await
}

/// Drives a server that gets no more requests, in the background: what it finds wrong on streams closes the connection.
pub fn drive<C>(mut server: h3::server::Connection<C, Bytes>) -> tokio::task::JoinHandle<()>
where
    C: quic::Connection<Bytes> + Send + 'static,
    C::BidiStream: Send,
    C::SendStream: Send,
    C::RecvStream: Send,
{
    tokio::spawn(async move { while let Ok(Some(_)) = server.accept().await {} })
}

/// Reads a body to its end.
pub async fn read_body<S>(stream: &mut h3::server::RequestStream<S, Bytes>) -> Result<Vec<u8>, (Vec<u8>, StreamError)>
where
    S: quic::RecvStream,
{
    let mut body = Vec::new();
    loop {
        match within(stream.recv_data()).await {
            Ok(Some(mut data)) => body.extend_from_slice(&data.copy_to_bytes(data.remaining())),
            Ok(None) => return Ok(body),
            Err(error) => return Err((body, error)),
        }
    }
}
