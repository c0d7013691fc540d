//! One request: its headers, the service, its response. Every wait for the peer has a limit.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use telemetry_h3::guard::{ResponseEnd, ResponseWatch, SendStream};
use telemetry_h3::server::RequestResolver;
use telemetry_h3::{Code, fields};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tower::{Service, ServiceExt};

use super::body::{self, RequestBody};
use super::metrics::Meter;
use crate::gate::Peer;

/// The writing half of a request's stream.
type Sender = h3::server::RequestStream<SendStream, Bytes>;

/// What a request needs to know of its connection.
#[derive(Debug, Clone)]
pub(super) struct RequestContext {
    pub(super) peer: Peer,
    pub(super) header_timeout: Duration,
    pub(super) write_timeout: Duration,
    pub(super) metrics: Meter,
}

/// What became of a request that was not answered whole: a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    /// Its headers took too long.
    SlowHeaders,
    /// Its stream ended, or was refused by the guard, before the headers were complete.
    NoHeaders,
    /// It has fields that no HTTP/3 request may have.
    Malformed,
    /// The peer gave it up before there was a response.
    Cancelled,
    /// The response was cut off by the peer, or by the peer's slowness.
    NotTaken,
    /// The service could not go on with its response.
    BrokenResponse,
}

impl Failed {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::SlowHeaders => "slow-headers",
            Self::NoHeaders => "no-headers",
            Self::Malformed => "malformed",
            Self::Cancelled => "cancelled",
            Self::NotTaken => "response-not-taken",
            Self::BrokenResponse => "response-broken",
        }
    }
}

/// Serves one request to its end. A stream that is dropped on the way is reset: the guard sees to that.
pub(super) async fn serve<S, B>(
    resolver: RequestResolver,
    mut watch: Option<ResponseWatch>,
    service: S,
    context: RequestContext,
) -> Result<(), Failed>
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Send,
    S::Future: Send,
    B: Body<Data = Bytes> + Send,
    B::Error: Send,
{
    let running = context.metrics.request();
    let (mut request, mut stream) = timeout(context.header_timeout, resolver.resolve_request())
        .await
        .map_err(|_| Failed::SlowHeaders)?
        .map_err(|_| Failed::NoHeaders)?;
    if fields::are_malformed(request.headers()) {
        stream.stop_sending(Code::H3_MESSAGE_ERROR);
        stream.stop_stream(Code::H3_MESSAGE_ERROR);
        return Err(Failed::Malformed);
    }
    request.extensions_mut().insert(context.peer);
    let (mut sender, receiver) = stream.split();
    let (give_back, mut unread) = oneshot::channel();
    let request = request.map(|()| RequestBody::http3(receiver, give_back));
    // A peer that gives up frees at once whatever its request holds or waits for.
    let response = tokio::select! {
        () = given_up(watch.as_mut()) => return Err(Failed::Cancelled),
        response = service.oneshot(request) => match response {
            Ok(response) => response,
            Err(never) => match never {},
        },
    };
    tokio::select! {
        biased;
        sent = send(&mut sender, response, context.write_timeout) => sent?,
        () = given_up(watch.as_mut()) => return Err(Failed::NotTaken),
    }
    unread.close();
    if let Ok(receiver) = unread.try_recv() {
        body::stop(receiver);
    }
    drop(running);
    // To close the connection before the peer has everything would take it away again.
    delivered(&mut sender, watch.as_mut(), context.write_timeout).await
}

/// Completes when the peer does not want the response any more.
async fn given_up(watch: Option<&mut ResponseWatch>) {
    if let Some(watch) = watch
        && watch.ended().await != ResponseEnd::Delivered
    {
        return;
    }
    // Nothing to watch, or delivered: what sends the response sees its end.
    std::future::pending().await
}

/// Waits until the peer has the whole response.
async fn delivered(sender: &mut Sender, watch: Option<&mut ResponseWatch>, patience: Duration) -> Result<(), Failed> {
    let Some(watch) = watch else { return Ok(()) };
    match timeout(patience, watch.ended()).await {
        // Many a client stops a response whose end does not interest it.
        Ok(ResponseEnd::Delivered | ResponseEnd::Stopped(_)) => Ok(()),
        Ok(ResponseEnd::ConnectionLost) => Err(Failed::NotTaken),
        Err(_) => {
            // What a peer does not take must not be held for it.
            sender.stop_stream(Code::H3_REQUEST_CANCELLED);
            Err(Failed::NotTaken)
        }
    }
}

async fn send<B>(sender: &mut Sender, response: Response<B>, patience: Duration) -> Result<(), Failed>
where
    B: Body<Data = Bytes>,
{
    let (mut head, body) = response.into_parts();
    let may_have_length = !head.status.is_informational() && head.status != StatusCode::NO_CONTENT;
    if let Some(length) = body.size_hint().exact().filter(|_| may_have_length) {
        head.headers.entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    within(patience, sender.send_response(Response::from_parts(head, ()))).await?;
    let mut body = std::pin::pin!(body);
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            sender.stop_stream(Code::H3_INTERNAL_ERROR);
            return Err(Failed::BrokenResponse);
        };
        match frame.into_data() {
            // An empty DATA frame would end the body for a client on h3.
            Ok(data) if data.is_empty() => {}
            Ok(data) => within(patience, sender.send_data(data)).await?,
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    within(patience, sender.send_trailers(trailers)).await?;
                }
            }
        }
    }
    within(patience, sender.finish()).await
}

async fn within<T, E>(patience: Duration, write: impl Future<Output = Result<T, E>>) -> Result<T, Failed> {
    match timeout(patience, write).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) | Err(_) => Err(Failed::NotTaken),
    }
}
