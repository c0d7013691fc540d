//! A store that acknowledges everything, in its own time, and records it.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use telemetry_relay::forward::BackendSettings;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::within;

/// A request as it reached the store.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Recorded {
    /// All values of a header, whatever the case of its name.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }
}

/// The store. It ends when it is dropped.
pub(crate) struct Store {
    address: SocketAddr,
    inner: Arc<Inner>,
    _task: JoinSet<()>,
}

struct Inner {
    recorded: Mutex<Vec<Recorded>>,
    arrived: watch::Sender<usize>,
    /// A request is answered when it gets one of these.
    answers: Semaphore,
}

impl Store {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answers = Semaphore::new(Semaphore::MAX_PERMITS);
        let inner = Arc::new(Inner { recorded: Mutex::default(), arrived: watch::Sender::new(0), answers });
        let mut task = JoinSet::new();
        task.spawn(accept(listener, Arc::clone(&inner)));
        Self { address, inner, _task: task }
    }

    pub(crate) fn settings(&self) -> BackendSettings {
        BackendSettings::new(self.address.into())
    }

    /// From now on nothing is answered until it is [released](Self::release).
    pub(crate) fn hold(&self) {
        self.inner.answers.forget_permits(Semaphore::MAX_PERMITS);
    }

    /// Answers so many of those who wait, or will.
    pub(crate) fn release(&self, n: usize) {
        self.inner.answers.add_permits(n);
    }

    /// Waits until so many requests have arrived, from the beginning.
    pub(crate) async fn arrived(&self, n: usize) {
        within(self.inner.arrived.subscribe().wait_for(|arrived| *arrived >= n)).await.unwrap();
    }

    /// What has arrived, from the beginning.
    pub(crate) fn recorded(&self) -> Vec<Recorded> {
        self.inner.recorded.lock().clone()
    }

    /// What has arrived since this was last asked.
    pub(crate) fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut *self.inner.recorded.lock())
    }
}

async fn accept(listener: TcpListener, inner: Arc<Inner>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let inner = Arc::clone(&inner);
        let service = service_fn(move |request| answer(Arc::clone(&inner), request));
        connections.spawn(async move {
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(inner: Arc<Inner>, request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let recorded = Recorded {
        method: parts.method,
        target: parts.uri.to_string(),
        headers: parts.headers,
        body: body.collect().await?.to_bytes(),
    };
    inner.recorded.lock().push(recorded);
    inner.arrived.send_modify(|arrived| *arrived += 1);
    let permit = inner.answers.acquire().await;
    permit.expect("the semaphore is never closed").forget();
    let mut response = Response::new(Empty::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}
