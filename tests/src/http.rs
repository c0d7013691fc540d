//! The small HTTP/1.1 client with which stores are asked.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Asks one server.
#[derive(Debug, Clone)]
pub struct HttpClient {
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
}

/// There is no whole answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The path or a header is malformed.
    #[error("the request can't be built: {0}")]
    Request(#[from] http::Error),
    /// The connection fails or breaks.
    #[error("no answer from {0}")]
    NoAnswer(SocketAddr, #[source] hyper_util::client::legacy::Error),
    /// The body breaks off.
    #[error("the answer of {0} broke off")]
    BrokenAnswer(SocketAddr, #[source] hyper::Error),
    /// It takes too long.
    #[error("no answer from {0} within {TIMEOUT:?}")]
    Timeout(SocketAddr),
}

impl HttpClient {
    /// A client with connections of its own.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { client: Client::builder(TokioExecutor::new()).build_http(), address }
    }

    /// `GET`: status and body.
    ///
    /// # Errors
    /// There is no whole answer.
    pub async fn get(&self, path_and_query: &str) -> Result<(StatusCode, Bytes), HttpError> {
        self.get_with(path_and_query, &[]).await
    }

    /// `GET` with headers: status and body.
    ///
    /// # Errors
    /// There is no whole answer.
    pub async fn get_with(
        &self,
        path_and_query: &str,
        headers: &[(&str, String)],
    ) -> Result<(StatusCode, Bytes), HttpError> {
        self.send(Method::GET, path_and_query, headers, Bytes::new()).await
    }

    /// `POST`: status and body.
    ///
    /// # Errors
    /// There is no whole answer.
    pub async fn post(
        &self,
        path_and_query: &str,
        content_type: Option<&str>,
        body: impl Into<Bytes>,
    ) -> Result<(StatusCode, Bytes), HttpError> {
        let content_type = content_type.map(|value| (header::CONTENT_TYPE.as_str(), value.to_owned()));
        self.send(Method::POST, path_and_query, content_type.as_slice(), body.into()).await
    }

    async fn send(
        &self,
        method: Method,
        path_and_query: &str,
        headers: &[(&str, String)],
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), HttpError> {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path_and_query}", self.address));
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(body))?;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|e| HttpError::NoAnswer(self.address, e))?;
            let status = response.status();
            let body = response.into_body().collect().await.map_err(|e| HttpError::BrokenAnswer(self.address, e))?;
            Ok((status, body.to_bytes()))
        };
        tokio::time::timeout(TIMEOUT, exchange).await.unwrap_or(Err(HttpError::Timeout(self.address)))
    }
}
