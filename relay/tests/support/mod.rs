//! A relay's service with real tokens, in front of a store that records what reaches it.

#![allow(dead_code, reason = "each test program uses its own part")]

mod store;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use telemetry_certs::{IdentitySource, PeerIdentity};
use telemetry_proto::claims::Expectations;
use telemetry_proto::mint::MintRequest;
use telemetry_proto::{RunnerId, Signal, SystemClock, header};
use telemetry_relay::gate::{AllRegistered, JwtVerifier, Peer, SignatureAlgorithm};
use telemetry_relay::issuer::{Issuer, IssuerConfig, KeyRing, SigningKey};
use telemetry_relay::{RelayBuilder, RelayService};
use tokio::sync::mpsc;
use tower::ServiceExt;

pub(crate) use store::Store;

/// Nothing that a test waits for takes longer than this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

const ISSUER: &str = "https://coordinator.test";

/// Tokens of one coordinator.
pub(crate) struct Tokens {
    key: SigningKey,
}

impl Tokens {
    pub(crate) fn new() -> Self {
        Self { key: SigningKey::generate(SignatureAlgorithm::EdDsa).unwrap() }
    }

    /// A builder whose verifier knows these tokens.
    pub(crate) fn relay(&self) -> RelayBuilder {
        let keys = self.ring().public_keys();
        RelayBuilder::new(Arc::new(JwtVerifier::new(keys, Expectations::new(ISSUER), Arc::new(SystemClock))))
    }

    /// A runner with a certificate of `certificate_organization` and a token of `token_organization`; empty for none.
    pub(crate) fn runner(&self, id: &str, certificate_organization: &str, token_organization: &str) -> Runner {
        let mut config = IssuerConfig::new(ISSUER);
        config.organization = given(token_organization);
        let issuer = Issuer::new(config, self.ring(), Arc::new(SystemClock), Arc::new(AllRegistered)).unwrap();
        let runner = RunnerId::new(id).unwrap();
        let token = issuer.mint_for(&MintRequest::telemetry_writer(&Signal::ALL), &runner).unwrap().token;
        Runner { peer: peer(runner, given(certificate_organization)), token }
    }

    fn ring(&self) -> KeyRing {
        let key = SigningKey::from_pem(self.key.to_pem().unwrap().as_bytes()).unwrap();
        KeyRing::new(key, &Default::default()).unwrap()
    }
}

fn given(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn peer(runner: RunnerId, organization: Option<String>) -> Peer {
    let now = SystemTime::now();
    let identity = PeerIdentity {
        runner,
        source: IdentitySource::SanUri,
        organization,
        not_before: now - Duration::from_secs(3_600),
        not_after: now + Duration::from_secs(3_600),
        serial: "01".to_owned(),
        fingerprint: [0; 32],
    };
    Peer::new(identity, SocketAddr::from(([127, 0, 0, 1], 4433)))
}

/// A runner that writes.
#[derive(Clone)]
pub(crate) struct Runner {
    peer: Peer,
    token: String,
}

impl Runner {
    /// The head of a good write of `signal`, but for its length.
    pub(crate) fn head(&self, signal: Signal) -> http::request::Builder {
        Request::post(signal.write_path())
            .header(CONTENT_TYPE, signal.content_type())
            .header(header::WORKLOAD_TOKEN, &self.token)
            .extension(self.peer.clone())
    }

    /// A good write of `signal`.
    pub(crate) fn write(&self, signal: Signal) -> Request<Full<Bytes>> {
        self.write_of(signal, body_of(signal))
    }

    /// A write of `signal` with this body.
    pub(crate) fn write_of(&self, signal: Signal, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        let body = body.into();
        self.head(signal).header(CONTENT_LENGTH, body.len()).body(Full::new(body)).unwrap()
    }

    /// A write whose body comes as the other half sends it.
    pub(crate) fn trickle(&self, signal: Signal, length: usize) -> (Trickle, Request<TrickleBody>) {
        let (send, receive) = mpsc::channel(1);
        let frames: Frames = Box::pin(futures_util::stream::unfold(receive, |mut receive| async move {
            let piece: Bytes = receive.recv().await?;
            Some((Ok(Frame::data(piece)), receive))
        }));
        let request = self.head(signal).header(CONTENT_LENGTH, length).body(StreamBody::new(frames)).unwrap();
        (Trickle(send), request)
    }
}

/// A small good body.
pub(crate) fn body_of(signal: Signal) -> &'static [u8] {
    match signal {
        Signal::Metrics => b"up 1\n",
        Signal::Logs => b"{\"_msg\":\"hello\"}\n",
        Signal::Traces => b"",
    }
}

type Frames = std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>;
pub(crate) type TrickleBody = StreamBody<Frames>;

/// The sending half of a body that trickles.
pub(crate) struct Trickle(mpsc::Sender<Bytes>);

impl Trickle {
    /// Sends a piece; returns when the relay has taken the one before.
    pub(crate) async fn send(&self, piece: &'static [u8]) {
        within(self.0.send(Bytes::from_static(piece))).await.unwrap();
    }
}

/// What a runner sees.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Seen {
    /// Status and reason: `"429 tenant-busy"`, or the status alone.
    pub(crate) fn brief(&self) -> String {
        let reason = self.headers.get(header::REASON).map_or("", |reason| reason.to_str().unwrap());
        format!("{} {reason}", self.status.as_u16()).trim_end().to_owned()
    }

    pub(crate) fn retry_after(&self) -> u64 {
        self.headers[RETRY_AFTER].to_str().unwrap().parse().unwrap()
    }
}

/// Sends a request and waits for the whole response.
pub(crate) async fn send<B>(service: &RelayService, request: Request<B>) -> Seen
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    let (parts, body) = within(service.clone().oneshot(request)).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Seen { status: parts.status, headers: parts.headers, text: String::from_utf8(body.to_vec()).unwrap() }
}

/// Sends a request from a task of its own.
pub(crate) fn spawn<B>(service: &RelayService, request: Request<B>) -> tokio::task::JoinHandle<Seen>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    let service = service.clone();
    tokio::spawn(async move { send(&service, request).await })
}

/// Waits for something, but not for ever.
pub(crate) async fn within<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(PATIENCE, what).await.expect("what the test waits for does not happen")
}

/// Waits until a condition holds that no event tells of.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    within(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
