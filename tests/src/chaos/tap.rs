//! A tap on the way from the relay to a store: passes everything on unchanged, and notes what passed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use telemetry_proto::Signal;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::timeline::Lives;
use super::witness::{self, Answer, Sighting, Witness};
use crate::net::{free_address, listen_tcp};

/// How long an answer is held back where the relay is to be killed before it has it.
const HOLD: Duration = Duration::from_millis(250);
/// How long requests under way may take when the store is gone.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// The store as the relay sees it.
pub(super) struct Tap {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: Mutex<Option<(watch::Sender<bool>, JoinHandle<()>)>>,
}

struct Shared {
    signal: Signal,
    store: SocketAddr,
    store_lives: Arc<Lives>,
    relay_lives: Arc<Lives>,
    witness: Arc<Witness>,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// There is no answer to pass on.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error("the request broke off: {0}")]
    Request(#[from] hyper::Error),
    #[error("the store gave no answer: {0}")]
    Store(#[from] hyper_util::client::legacy::Error),
    #[error("the task that asks the store is gone")]
    Gone,
}

impl Tap {
    pub(super) async fn open(
        signal: Signal,
        store: SocketAddr,
        store_lives: Arc<Lives>,
        relay_lives: Arc<Lives>,
        witness: Arc<Witness>,
    ) -> io::Result<Self> {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let shared = Arc::new(Shared { signal, store, store_lives, relay_lives, witness, client });
        let tap = Self { address: free_address()?, shared, server: Mutex::new(None) };
        tap.reopen().await?;
        Ok(tap)
    }

    /// Where the relay finds the store.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the port: the store is gone. Answers that it gave before still reach the relay.
    pub(super) async fn close(&self) {
        let server = self.server.lock().take();
        if let Some((closing, mut server)) = server {
            closing.send_replace(true);
            if timeout(CLOSE_WITHIN, &mut server).await.is_err() {
                server.abort();
            }
        }
    }

    /// The store is back.
    pub(super) async fn reopen(&self) -> io::Result<()> {
        let listener = listen_tcp(self.address).await?;
        let (closing, closed) = watch::channel(false);
        let server = tokio::spawn(serve(listener, Arc::clone(&self.shared), closed));
        *self.server.lock() = Some((closing, server));
        Ok(())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if let Some((_, server)) = self.server.lock().take() {
            server.abort();
        }
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, closed: watch::Receiver<bool>) {
    let mut closing = closed.clone();
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(serve_connection(stream, Arc::clone(&shared), closed.clone()))),
                Err(_) => sleep(Duration::from_millis(10)).await,
            },
            () = ended(&mut closing) => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve_connection(stream: TcpStream, shared: Arc<Shared>, mut closed: watch::Receiver<bool>) {
    let service = service_fn(move |request| pass(request, Arc::clone(&shared)));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // A connection that breaks is the relay's affair, or the store's.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = ended(&mut closed) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Whoever dropped the sender closed it as well.
async fn ended(closed: &mut watch::Receiver<bool>) {
    let _ = closed.wait_for(|closed| *closed).await;
}

async fn pass(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Full<Bytes>>, NoAnswer> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    // A task of its own: the whole body is on its way to the store, whether the relay lives on or not.
    tokio::spawn(async move { shared.ask(head, body).await }).await.unwrap_or(Err(NoAnswer::Gone))
}

impl Shared {
    async fn ask(&self, head: Parts, body: Bytes) -> Result<Response<Full<Bytes>>, NoAnswer> {
        let place = self.note(&head, &body);
        let answer = self.forward(head, body).await;
        if let Some(place) = place {
            let noted = match &answer {
                Ok(response) if response.status().is_success() => Answer::Stored(Instant::now()),
                Ok(_) => Answer::Refused,
                Err(_) => Answer::None,
            };
            self.witness.end(&place, noted);
            if self.witness.holds_answers() {
                sleep(HOLD).await;
            }
        }
        answer
    }

    fn note(&self, head: &Parts, body: &Bytes) -> Option<witness::Place> {
        let is_gzip = head.headers.get(header::CONTENT_ENCODING).is_some_and(|value| value == "gzip");
        let (stream, runs) =
            (head.method == Method::POST).then(|| witness::read(self.signal, is_gzip, body)).flatten()?;
        let sighting = Sighting {
            runs,
            relay_life: self.relay_lives.current(),
            store_life: self.store_lives.current(),
            begun: Instant::now(),
            answer: Answer::None,
        };
        Some(self.witness.begin(stream, sighting))
    }

    async fn forward(&self, head: Parts, body: Bytes) -> Result<Response<Full<Bytes>>, NoAnswer> {
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = head.method;
        *request.uri_mut() = format!("http://{}{path}", self.store).parse().unwrap_or_else(|_| Uri::from_static("/"));
        *request.headers_mut() = head.headers;
        if let Ok(host) = HeaderValue::from_str(&self.store.to_string()) {
            request.headers_mut().insert(header::HOST, host);
        }
        let (head, body) = self.client.request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Response::from_parts(head, Full::new(body)))
    }
}
