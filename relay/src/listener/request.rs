//! One request: its headers, the service, its response. Every wait for the peer has a limit.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use telemetry_h3::Code;
use telemetry_h3::guard::{ResponseEnd, ResponseWatch, SendStream};
use telemetry_h3::server::RequestResolver;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tower::{Service, ServiceExt};

use super::body::RequestBody;
use super::metrics::{Counted, ListenerMetrics};
use crate::gate::Peer;

/// The writing half of a request's stream.
type Sender = h3::server::RequestStream<SendStream, Bytes>;

/// What a request needs to know of its listener.
#[derive(Debug, Clone)]
pub(super) struct RequestLimits {
    pub(super) header_timeout: Duration,
    pub(super) write_timeout: Duration,
}

/// Serves one request to its end.
pub(super) async fn serve<S, B>(
    resolver: RequestResolver,
    mut watch: Option<ResponseWatch>,
    peer: Peer,
    service: S,
    limits: RequestLimits,
    metrics: ListenerMetrics,
) where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Send,
    S::Future: Send,
    B: Body<Data = Bytes> + Send,
    B::Error: Send,
{
    let running = Counted::new(&metrics.requests_running);
    // A stream that is dropped is reset: the guard sees to that.
    let Ok(Ok((mut request, stream))) = timeout(limits.header_timeout, resolver.resolve_request()).await else {
        return;
    };
    request.extensions_mut().insert(peer);
    let (mut sender, receiver) = stream.split();
    let (give_back, mut unread) = oneshot::channel();
    let request = request.map(|()| RequestBody::new(receiver, give_back));
    let response = tokio::select! {
        // A peer that gives up frees at once whatever its request holds or waits for.
        () = gave_up(watch.as_mut()) => {
            metrics.count_cancelled();
            return;
        }
        response = service.oneshot(request) => match response {
            Ok(response) => response,
            Err(never) => match never {},
        },
    };
    let sent = send(&mut sender, response, limits.write_timeout).await;
    if let Ok(mut receiver) = unread.try_recv() {
        // The response is complete and the rest of the request is of no use (RFC 9114 section 4.1.1).
        receiver.stop_sending(Code::H3_NO_ERROR);
    }
    drop(running);
    if sent.is_ok()
        && let Some(watch) = &mut watch
    {
        // To close the connection before the peer has everything would take it away again.
        watch.ended().await;
    }
}

/// Completes when the peer does not want the response any more.
async fn gave_up(watch: Option<&mut ResponseWatch>) {
    match watch {
        Some(watch) => match watch.ended().await {
            ResponseEnd::Stopped(_) | ResponseEnd::ConnectionLost => {}
            // Nothing was sent yet, so this can't be.
            ResponseEnd::Delivered => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// The response could not be sent whole: its stream is reset.
struct NotSent;

async fn send<B>(sender: &mut Sender, response: Response<B>, patience: Duration) -> Result<(), NotSent>
where
    B: Body<Data = Bytes>,
{
    let (mut head, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact() {
        head.headers.entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    within(patience, sender.send_response(Response::from_parts(head, ()))).await?;
    let mut body = std::pin::pin!(body);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| NotSent)?;
        match frame.into_data() {
            Ok(data) if !data.is_empty() => within(patience, sender.send_data(data)).await?,
            Ok(_) => {}
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    within(patience, sender.send_trailers(trailers)).await?;
                }
            }
        }
    }
    within(patience, sender.finish()).await
}

async fn within<T, E>(patience: Duration, write: impl Future<Output = Result<T, E>>) -> Result<T, NotSent> {
    match timeout(patience, write).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) | Err(_) => Err(NotSent),
    }
}
