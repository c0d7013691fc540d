//! The listener for programs on this machine: HTTP/1.1 on loopback and on a Unix socket.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, ORIGIN, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use telemetry_daemon::ProcessCollector;
use telemetry_proto::protobuf::Writer;
use telemetry_runner_client::{Client, DropReason, NotTaken, RawBatch, Signal};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use crate::config::Answer;
use crate::intake::{Checked, Head, MAX_BYTES, Refusal, Write, now_ms};
use crate::levels::Levels;
use crate::spans;
use crate::status::Observer;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 256;
/// Memory of bodies that are being received, in KiB.
const BODIES_KIB: u32 = 128 * 1024;
/// How long the head of a request may take.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Bodies up to this are checked where they are received; others would hold up the thread.
const INLINE_BYTES: usize = 64 * 1024;
/// Bodies that are decoded at a time. Each takes up to 32 MiB, whatever its size was.
const MAX_DECODING: usize = 4;
const BUSY: Refusal = (StatusCode::TOO_MANY_REQUESTS, "too many bodies are on their way; come back later");
/// What a sender that is told to come back later waits, in seconds.
const COME_BACK: u32 = 5;

/// What requests are answered from.
pub(crate) struct Service {
    client: Client,
    answer: Answer,
    observer: Observer,
    levels: Levels,
    registry: Registry,
    places: Arc<Semaphore>,
    bodies: Semaphore,
    decoding: Semaphore,
    ignored: IgnoredCounter,
}

/// Counts what comes with points and is kept nowhere.
#[derive(Debug, Clone, Default)]
struct IgnoredCounter(Family<[(&'static str, &'static str); 1], Counter>);

impl IgnoredCounter {
    fn count(&self, ignored: &[(&'static str, u64)]) {
        for (what, times) in ignored.iter().filter(|(_, times)| *times > 0) {
            self.0.get_or_create(&[("what", what)]).inc_by(*times);
        }
    }
}

impl Service {
    pub(crate) fn new(client: Client, answer: Answer, observer: Observer) -> Arc<Self> {
        let mut registry = Registry::default();
        client.register_metrics(&mut registry);
        let levels = Levels::register(&mut registry, client.spool_stats().is_some());
        registry.register_collector(Box::new(ProcessCollector));
        observer.register_metrics(&mut registry);
        let ignored = IgnoredCounter::default();
        let help = "What came with points of remote write and is kept nowhere";
        registry.register("telemetry_agent_ignored", help, ignored.0.clone());
        Arc::new(Self {
            client,
            answer,
            observer,
            levels,
            registry,
            places: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            bodies: Semaphore::new(BODIES_KIB as usize),
            decoding: Semaphore::new(MAX_DECODING),
            ignored,
        })
    }

    /// Serves TCP for ever.
    pub(crate) async fn serve_tcp(self: Arc<Self>, listener: TcpListener) {
        loop {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Arc::clone(&self).begin(accepted).await;
        }
    }

    /// Serves a Unix socket for ever.
    pub(crate) async fn serve_unix(self: Arc<Self>, listener: UnixListener) {
        loop {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Arc::clone(&self).begin(accepted).await;
        }
    }

    async fn begin<S>(self: Arc<Self>, accepted: std::io::Result<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok(stream) = accepted else {
            // Most likely there are no descriptors left: to ask at once would spin.
            return tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return };
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let this = Arc::clone(&self);
                async move { Ok::<_, Infallible>(this.respond(request).await) }
            });
            let mut connection = http1::Builder::new();
            connection.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
            let _ = connection.serve_connection(TokioIo::new(stream), service).await;
            drop(place);
        });
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        // A web page in a browser of this machine could write in the runner's name. It can't do without this header.
        if request.headers().contains_key(ORIGIN) {
            return text(StatusCode::FORBIDDEN, "no requests of web pages");
        }
        let path = request.uri().path();
        let write = match path {
            "/api/v1/import/prometheus" => Write::Plain(Signal::Metrics),
            "/api/v1/write" => Write::RemoteWrite,
            "/insert/jsonline" => Write::Plain(Signal::Logs),
            "/insert/opentelemetry/v1/traces" | "/v1/traces" => Write::Plain(Signal::Traces),
            "/v1/metrics" | "/v1/logs" => {
                return text(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "OTLP is taken for traces only; write metrics to /api/v1/import/prometheus or /api/v1/write, and logs to /insert/jsonline",
                );
            }
            "/metrics" | "/healthz" | "/status" => return self.show(request.method(), path).await,
            _ => return text(StatusCode::NOT_FOUND, "nothing is here; see /status and the agent's documentation"),
        };
        if request.method() != Method::POST {
            return only("POST");
        }
        self.take(write, request).await.unwrap_or_else(|(status, why)| text(status, why))
    }

    async fn take(&self, write: Write, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Refusal> {
        let (parts, body) = request.into_parts();
        let head = Head::parse(write, &parts)?;
        let signal = write.signal();
        if signal == Signal::Traces {
            let policy = self.client.policy();
            match policy.current() {
                Some(told) if told.takes(Signal::Traces) => {}
                None if policy.is_awaited() => return Ok(not_heard_yet()),
                _ => return Err((StatusCode::NOT_FOUND, "the coordinator does not take traces now")),
            }
        }
        let expected = body.size_hint().upper().unwrap_or(MAX_BYTES as u64);
        let kib = u32::try_from(expected / 1024 + 1).unwrap_or(BODIES_KIB);
        let Ok(_memory) = self.bodies.try_acquire_many(kib) else {
            return Err(BUSY);
        };
        let collected = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, MAX_BYTES).collect());
        let body = match collected.await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                return Err((StatusCode::PAYLOAD_TOO_LARGE, "a body has at most 32 MiB, decoded or not"));
            }
            Ok(Err(_)) => return Err((StatusCode::BAD_REQUEST, "the body ended early")),
            Err(_) => return Err((StatusCode::REQUEST_TIMEOUT, "the body came too slowly")),
        };
        // Until the batch is in the spool: a small body may be a large one.
        let _turn = match head.is_encoded() {
            true => tokio::time::timeout(BODY_TIMEOUT, self.decoding.acquire()).await.map_err(|_| BUSY)?.ok(),
            false => None,
        };
        let checked = if body.len() > INLINE_BYTES {
            let checking = tokio::task::spawn_blocking(move || head.check(body, now_ms()));
            checking.await.unwrap_or(Err((StatusCode::INTERNAL_SERVER_ERROR, "the body could not be checked")))
        } else {
            head.check(body, now_ms())
        };
        let Checked { batch, left_out, ignored, .. } = checked?;
        let submitted = match batch {
            None => Ok(0),
            Some(batch) => self.submit(batch).await,
        };
        match submitted {
            Ok(rejected) => {
                // Not before: what is not taken comes again.
                left_out.into_iter().for_each(|(reason, items)| self.client.count_dropped(signal, reason, items));
                self.ignored.count(&ignored);
                if rejected > 0 {
                    self.client.count_dropped(signal, DropReason::QueueFull, rejected);
                    return Ok(partly_taken(rejected));
                }
                Ok(taken(signal))
            }
            Err(NotTaken::Closed) => Err((StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping")),
            Err(NotTaken::Oversize) => {
                Err((StatusCode::PAYLOAD_TOO_LARGE, "the batch is larger than any that is taken"))
            }
            Err(_) => Err((StatusCode::TOO_MANY_REQUESTS, "there is no room for the batch now; come back later")),
        }
    }

    /// Hands a batch over; of spans as many as may wait. Returns how many may not.
    async fn submit(&self, mut batch: RawBatch) -> Result<u64, NotTaken> {
        let mut rejected = 0;
        loop {
            let submitted = match self.answer {
                Answer::Stored => self.client.submit(batch.clone()).await,
                Answer::Memory => self.client.submit_unconfirmed(batch.clone()).await,
            };
            let Err(NotTaken::TooMany { room }) = submitted else { return submitted.map(|()| rejected) };
            // There may be less room by then; it never takes more rounds than there are spans.
            let body = batch.body;
            let part = tokio::task::spawn_blocking(move || spans::part(&body, 0..room)).await;
            let Ok(Some(body)) = part else { return Err(NotTaken::Full) };
            rejected += batch.items - room;
            batch = RawBatch { body: body.into(), items: room, ..batch };
        }
    }

    async fn show(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return only("GET, HEAD");
        }
        match path {
            "/healthz" => text(StatusCode::OK, "ok"),
            "/metrics" => {
                self.levels.set(&self.client, self.client.certificate().ends);
                let mut metrics = String::new();
                match prometheus_client::encoding::text::encode(&mut metrics, &self.registry) {
                    Ok(()) => respond("application/openmetrics-text; version=1.0.0; charset=utf-8", metrics),
                    Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics can't be written"),
                }
            }
            _ => match serde_json::to_vec(&self.observer.look(&self.client).await) {
                Ok(json) => respond("application/json", json),
                Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the status can't be written"),
            },
        }
    }
}

/// OTLP wants 200 with an (empty) message; the stores answer 204.
fn taken(signal: Signal) -> Response<Full<Bytes>> {
    match signal {
        Signal::Traces => respond("application/x-protobuf", Bytes::new()),
        Signal::Metrics | Signal::Logs => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
    }
}

/// OTLP's word for it: `ExportTraceServiceResponse` with `partial_success` (1), in it `rejected_spans` (1) and `error_message` (2).
/// Senders must not send such a request again.
fn partly_taken(rejected: u64) -> Response<Full<Bytes>> {
    let mut message = Writer::default();
    let partial_success = message.open(1);
    message.varint(1, rejected);
    message.bytes(2, b"2048 spans wait already, and the newest are dropped");
    message.close(partial_success);
    respond("application/x-protobuf", message.into_bytes())
}

fn only(methods: &'static str) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "another method is needed here");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    response
}

fn text(status: StatusCode, what: &'static str) -> Response<Full<Bytes>> {
    let mut response = respond("text/plain; charset=utf-8", format!("{what}\n"));
    *response.status_mut() = status;
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        response.headers_mut().insert(RETRY_AFTER, COME_BACK.into());
    }
    response
}

/// An exporter does not try again after a 404, and loses what a program did first.
fn not_heard_yet() -> Response<Full<Bytes>> {
    let mut response =
        text(StatusCode::SERVICE_UNAVAILABLE, "the coordinator was not heard yet; come back in a second");
    response.headers_mut().insert(RETRY_AFTER, 1.into());
    response
}

fn respond(content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
