//! One request and its response, between hyper and the service.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tower::{BoxError, Service, ServiceExt};

use super::super::body::RequestBody;
use super::super::metrics::{Counted, Meter};
use super::vigil::Vigil;
use crate::gate::Peer;

/// Hands requests of one connection to the service.
#[derive(Clone)]
pub(super) struct Exchange<S> {
    /// Boxed, so that hyper's connection can be moved whatever the service is.
    pub(super) service: Box<S>,
    pub(super) peer: Peer,
    pub(super) metrics: Meter,
    pub(super) vigil: Arc<Vigil>,
}

/// The service panicked. The request ends, and with HTTP/1.1 the connection.
#[derive(Debug, thiserror::Error)]
#[error("the service panicked")]
pub(super) struct Panicked;

impl<S, B> hyper::service::Service<Request<Incoming>> for Exchange<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Sending<B>>;
    type Error = Panicked;
    type Future = BoxFuture<'static, Result<Self::Response, Panicked>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let running = Running::new(self.metrics.clone(), Arc::clone(&self.vigil));
        let (service, peer) = (S::clone(&self.service), self.peer.clone());
        async move {
            let is_http1 = request.version() < Version::HTTP_2;
            if is_http1 && request.headers().get_all(HOST).iter().count() != 1 {
                return Ok(running.answered(refused(), true));
            }
            // hyper forgets that the two lengths of such a request may differ, but the connection must not go on (RFC 9112
            // section 6.1): whoever is in between may have believed the other one.
            let closes = is_http1 && request.headers().contains_key(TRANSFER_ENCODING);
            let mut request = request.map(RequestBody::tcp);
            request.extensions_mut().insert(peer);
            match AssertUnwindSafe(service.oneshot(request)).catch_unwind().await {
                Ok(Ok(response)) => Ok(running.answered(response.map(Some), closes)),
                Ok(Err(never)) => match never {},
                Err(_) => Err(running.panicked()),
            }
        }
        .boxed()
    }
}

/// RFC 9112 section 3.2: a request of HTTP/1.1 names its host once.
fn refused<B>() -> Response<Option<B>> {
    let mut response = Response::new(None);
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}

/// A request that runs. Dropped before it is answered, it was given up.
struct Running {
    metrics: Meter,
    vigil: Arc<Vigil>,
    counted: Option<Counted>,
}

impl Running {
    fn new(metrics: Meter, vigil: Arc<Vigil>) -> Self {
        vigil.request_begins();
        let counted = Some(metrics.request());
        Self { metrics, vigil, counted }
    }

    fn answered<B>(mut self, response: Response<Option<B>>, closes: bool) -> Response<Sending<B>> {
        let id = self.vigil.response_begins();
        self.vigil.request_ends(true);
        let vigil = Arc::clone(&self.vigil);
        let counted = self.counted.take();
        let mut response = response.map(|body| Sending { body: body.map(Box::pin), id, vigil, _counted: counted });
        if closes {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl Running {
    fn panicked(mut self) -> Panicked {
        tracing::error!("the service panicked; this is a bug");
        self.counted = None;
        self.metrics.count_failed("panicked");
        self.vigil.request_ends(true);
        Panicked
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.counted.is_some() {
            self.metrics.count_failed("cancelled");
            self.vigil.request_ends(false);
        }
    }
}

/// The body of a response on its way. The vigil sees whether it goes on.
pub(super) struct Sending<B> {
    body: Option<Pin<Box<B>>>,
    id: u64,
    vigil: Arc<Vigil>,
    /// The request runs until its response is out of hyper's hands.
    _counted: Option<Counted>,
}

impl<B: Body<Data = Bytes>> Body for Sending<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = body.as_mut().poll_frame(cx);
        self.vigil.response_goes_on(self.id, frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), |body| body.size_hint())
    }
}

impl<B> Drop for Sending<B> {
    fn drop(&mut self) {
        self.vigil.response_ends(self.id);
    }
}
