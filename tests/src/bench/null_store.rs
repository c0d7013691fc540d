//! A store that reads everything and keeps nothing: behind it, a relay is seen alone.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use crate::net::listen_tcp;

/// Serves at `address` until the process is killed.
///
/// # Errors
/// The address can't be bound.
pub async fn serve(address: SocketAddr) -> io::Result<()> {
    let listener = listen_tcp(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let _ = stream.set_nodelay(true);
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)));
    }
}

/// 204 once the whole body is there, as VictoriaMetrics does.
async fn answer(request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let asked = request.method() == Method::GET;
    let mut body = request.into_body();
    let mut status = if asked { StatusCode::OK } else { StatusCode::NO_CONTENT };
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            status = StatusCode::BAD_REQUEST;
            break;
        }
    }
    let mut response = Response::new(Empty::new());
    *response.status_mut() = status;
    Ok(response)
}
