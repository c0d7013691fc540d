//! The listener for operators: HTTP/1.1 on loopback.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::observer::Observer;
use super::page::PAGE;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 64;
/// How long the head of a request may take.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may last: nobody here needs more, and whoever does connects again.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// Where operators look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminConfig {
    /// The TCP address.
    pub address: SocketAddr,
    /// Allows an address that other machines can reach. Whoever reaches it sees who is connected.
    pub allow_remote: bool,
    /// While no more runners than this are connected, `/metrics` has series of each; with more, of none.
    pub runner_series: usize,
}

/// The listener for operators can't be had.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address is not loopback.
    #[error("{0} can be reached by other machines; choose a loopback address, or set allow_remote = true")]
    Remote(SocketAddr),
    /// The address can't be bound.
    #[error("can't listen on TCP {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// A bound listener for operators.
pub struct AdminServer {
    listener: TcpListener,
    address: SocketAddr,
    runner_series: usize,
}

impl AdminServer {
    /// Binds the address.
    ///
    /// # Errors
    /// [`AdminError`]
    pub async fn bind(config: AdminConfig) -> Result<Self, AdminError> {
        if !config.allow_remote && !config.address.ip().is_loopback() {
            return Err(AdminError::Remote(config.address));
        }
        let failed = |source| AdminError::Bind { address: config.address, source };
        let listener = TcpListener::bind(config.address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, runner_series: config.runner_series })
    }

    /// Where it listens, with the port that the system chose if it was asked to.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Shows what `observer` sees, until the handle is dropped.
    #[must_use]
    pub fn serve(self, observer: Arc<Observer>) -> AdminHandle {
        let watching = tokio::spawn(Arc::clone(&observer).watch());
        let serving = tokio::spawn(accept(self.listener, observer, self.runner_series));
        AdminHandle { address: self.address, tasks: [watching, serving] }
    }
}

/// A listener for operators that serves. Dropped, it ends.
pub struct AdminHandle {
    address: SocketAddr,
    tasks: [JoinHandle<()>; 2],
}

impl AdminHandle {
    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for AdminHandle {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn accept(listener: TcpListener, observer: Arc<Observer>, runner_series: usize) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let observer = Arc::clone(&observer);
                connections.spawn(async move {
                    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, serve(stream, observer, runner_series)).await;
                    drop(place);
                });
            }
            // Most likely there are no descriptors left: to ask at once would spin.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn serve(stream: TcpStream, observer: Arc<Observer>, runner_series: usize) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer(&observer, runner_series, request.method(), request.uri());
        async move { Ok::<_, Infallible>(response) }
    });
    let mut connection = http1::Builder::new();
    connection.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    // A connection that fails is the operator's own trouble.
    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
}

fn answer(observer: &Observer, runner_series: usize, method: &Method, uri: &Uri) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match uri.path() {
        "/" => page(),
        "/metrics" => match observer.metrics(runner_series) {
            Some(metrics) => {
                respond(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", metrics)
            }
            None => text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics can't be written\n"),
        },
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => match observer.obstacles() {
            obstacles if obstacles.is_empty() => text(StatusCode::OK, "ready\n"),
            obstacles => text(StatusCode::SERVICE_UNAVAILABLE, obstacles.join("\n") + "\n"),
        },
        "/status" => match serde_json::to_vec(&observer.status_with(&wanted(uri))) {
            Ok(json) => respond(StatusCode::OK, "application/json", json),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the status can't be written\n"),
        },
        _ => text(StatusCode::NOT_FOUND, "try /, /status, /metrics, /healthz or /readyz\n"),
    }
}

/// What `find` asks for; nothing means everything.
fn wanted(uri: &Uri) -> String {
    let mut pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    pairs.find(|(name, _)| name == "find").map(|(_, value)| value.into_owned()).unwrap_or_default()
}

fn page() -> Response<Full<Bytes>> {
    let mut response = respond(StatusCode::OK, "text/html; charset=utf-8", PAGE);
    // Nothing from elsewhere, whatever a runner's ID or reason may be.
    let policy =
        "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:";
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", body)
}

fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
