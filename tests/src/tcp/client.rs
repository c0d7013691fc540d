//! Requests that HTTP allows.

use std::net::SocketAddr;
use std::time::Duration;

use ::bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use telemetry_certs::{Credentials, Roots};
use tokio::task::JoinSet;

use super::{Http, TcpError, bounded, connect};
use crate::raw::RawResponse;

/// How long the reason for the end of a connection may take to follow the failure of a request.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// One connection to a relay over TCP.
pub struct TcpClient {
    requests: Requests,
    address: SocketAddr,
    /// It ends with the client, and knows best why a connection ended.
    driver: JoinSet<hyper::Result<()>>,
}

enum Requests {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl TcpClient {
    /// Connects and begins HTTP.
    ///
    /// # Errors
    /// The connection does not come up.
    pub async fn connect(
        address: SocketAddr,
        roots: &Roots,
        credentials: Option<&Credentials>,
        http: Http,
    ) -> Result<Self, TcpError> {
        let begin = async {
            let io = TokioIo::new(connect(address, roots, credentials, http).await?);
            let mut driver = JoinSet::new();
            let requests = match http {
                Http::One => {
                    let (requests, connection) = http1::handshake(io).await?;
                    driver.spawn(connection);
                    Requests::One(requests)
                }
                Http::Two => {
                    let (requests, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                    driver.spawn(connection);
                    Requests::Two(requests)
                }
            };
            Ok(Self { requests, address, driver })
        };
        bounded(begin).await
    }

    /// Sends a request, whose URI needs no more than a path, and reads the whole response.
    ///
    /// # Errors
    /// There is none.
    pub async fn send(&mut self, request: Request<Bytes>) -> Result<RawResponse, TcpError> {
        let failed = match self.exchange(request).await {
            Err(TcpError::Http(error)) => error,
            outcome => return outcome,
        };
        match tokio::time::timeout(CLOSE_GRACE, self.driver.join_next()).await {
            Ok(Some(Ok(Err(reason)))) => Err(reason.into()),
            _ => Err(failed.into()),
        }
    }

    async fn exchange(&mut self, mut request: Request<Bytes>) -> Result<RawResponse, TcpError> {
        let authority = format!("localhost:{}", self.address.port());
        let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let response = async {
            let response = match &mut self.requests {
                Requests::One(requests) => {
                    if let Ok(host) = HeaderValue::from_str(&authority) {
                        request.headers_mut().entry(HOST).or_insert(host);
                    }
                    requests.ready().await?;
                    requests.send_request(request.map(Full::new)).await?
                }
                Requests::Two(requests) => {
                    if let Ok(uri) = format!("https://{authority}{path}").parse() {
                        *request.uri_mut() = uri;
                    }
                    requests.send_request(request.map(Full::new)).await?
                }
            };
            let (head, body) = response.into_parts();
            let body = String::from_utf8_lossy(&body.collect().await?.to_bytes()).into_owned();
            Ok(RawResponse { status: head.status, headers: head.headers, body })
        };
        bounded(response).await
    }
}
