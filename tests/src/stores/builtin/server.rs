//! The server's side of the wire.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, spawn_blocking};

use super::fault::{BudgetedStream, Cut, Fault, WriteBudget};
use super::ingest::Batch;
use super::{State, jaeger, own_metrics};

type Answer = Response<UnsyncBoxBody<Bytes, Close>>;

/// The connection is to be closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("closed on purpose")]
pub(super) struct Close;

/// Serves until it is aborted, and its connections with it.
pub(super) async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, for example: do not spin.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        state.lock().connections += 1;
        connections.spawn(serve_connection(stream, Arc::clone(&state)));
    }
}

async fn serve_connection(stream: TcpStream, state: Arc<Mutex<State>>) {
    let budget = WriteBudget::unlimited();
    let stream = TokioIo::new(BudgetedStream::new(stream, budget.clone()));
    let service = service_fn(move |request| answer(request, Arc::clone(&state), budget.clone()));
    let connection =
        hyper::server::conn::http1::Builder::new().timer(TokioTimer::new()).serve_connection(stream, service);
    // A connection that breaks is a peer's affair, or a fault of ours.
    let _ = connection.await;
}

async fn answer(request: Request<Incoming>, state: Arc<Mutex<State>>, budget: WriteBudget) -> Result<Answer, Close> {
    if request.method() == Method::GET {
        return Ok(match request.uri().path() {
            "/health" => plain(StatusCode::OK, "OK"),
            "/metrics" => plain(StatusCode::OK, own_metrics(&state.lock())),
            path => match path.strip_prefix(jaeger::TRACES) {
                Some(id) => plain(StatusCode::OK, state.lock().trace(id)),
                None => plain(StatusCode::NOT_FOUND, ""),
            },
        });
    }
    let (head, body) = request.into_parts();
    let (index, fault) = state.lock().begin(&head);
    match fault {
        Some(Fault::CloseAtOnce) => return Err(Close),
        Some(Fault::Delay(delay)) => tokio::time::sleep(delay).await,
        _ => {}
    }
    let body = body.collect().await.map_err(|_| Close)?.to_bytes();
    state.lock().complete(index, &body);

    match fault {
        None | Some(Fault::Delay(_)) => Ok(plain(store(&state, head, body).await?, "")),
        Some(Fault::StoreThenCut(cut)) => Ok(cut_answer(store(&state, head, body).await?, cut, &budget)),
        Some(Fault::Answer(status)) => Ok(plain(status, "")),
        Some(Fault::AnswerRetryAfter(status, seconds)) => {
            Ok(with(header::RETRY_AFTER, &seconds.to_string(), plain(status, "")))
        }
        Some(Fault::Redirect(place)) => Ok(with(header::LOCATION, &place, plain(StatusCode::FOUND, ""))),
        Some(Fault::Hang) => pending().await,
        Some(Fault::CloseAtOnce) => Err(Close),
    }
}

/// One large body does not keep others waiting.
async fn store(state: &Mutex<State>, head: Parts, body: Bytes) -> Result<StatusCode, Close> {
    let read = spawn_blocking(move || Batch::read(&head, body)).await.map_err(|_| Close)?;
    Ok(read.map_or_else(|refusal| refusal, |batch| batch.store(&mut state.lock())))
}

fn plain(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let body = Full::new(body.into()).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = status;
    answer
}

fn with(name: HeaderName, value: &str, mut answer: Answer) -> Answer {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
    answer
}

fn cut_answer(status: StatusCode, cut: Cut, budget: &WriteBudget) -> Answer {
    match cut {
        Cut::BeforeHead => budget.limit(0),
        Cut::InsideHead => budget.limit("HTTP/1.1 2".len()),
        Cut::AfterHead => {
            let body = async {
                // The head goes out while the body has nothing to say.
                tokio::task::yield_now().await;
                Err(Close)
            };
            let body = StreamBody::new(futures_util::stream::once(body));
            let mut answer = with(header::CONTENT_LENGTH, "2", Response::new(body.boxed_unsync()));
            *answer.status_mut() = if status == StatusCode::NO_CONTENT { StatusCode::OK } else { status };
            return answer;
        }
    }
    plain(status, "")
}
