//! A client that does as it is told: any certificate or none, any header, a body that keeps no promise. It stands on
//! plain h3, not on our guarded client, so that both sides of the wire are not wrong in the same way.

mod frames;
mod request;
mod response;

use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint};
use rustls::version::TLS13;
use telemetry_certs::{CertificateRefusal, ClientTls, Credentials, Roots};
use telemetry_proto::{Route, Signal};
use tokio::task::JoinHandle;

pub use frames::{Frame, HandMade, OpenRequest, Outcome, RequestHead};
pub use request::{Ending, RawRequest};
pub use response::RawResponse;

/// How long any one step may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How long the reason for a close may take to follow the failure of a stream.
const CLOSE_GRACE: Duration = Duration::from_millis(200);

type SendRequest = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;

/// One connection to a relay.
pub struct RawClient {
    connection: Connection,
    requests: SendRequest,
    driver: JoinHandle<()>,
    authority: String,
    // Last: the endpoint outlives what runs on it.
    endpoint: Endpoint,
}

/// There is no whole response.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    /// This side can't even begin.
    #[error("the client can't be set up: {0}")]
    Setup(String),
    /// The connection was refused or lost.
    #[error("the connection is closed: {0}")]
    Closed(#[from] ConnectionError),
    /// The stream was refused or reset, while the connection lives.
    #[error("the stream failed: {0}")]
    Stream(String),
    /// A step took too long.
    #[error("no answer within {TIMEOUT:?}")]
    Timeout,
}

impl RawError {
    /// Why the relay refused the certificate, if that is what it did.
    #[must_use]
    pub fn certificate_refusal(&self) -> Option<CertificateRefusal> {
        match self {
            Self::Closed(ConnectionError::ConnectionClosed(close)) => {
                CertificateRefusal::from_quic_code(close.error_code.into())
            }
            _ => None,
        }
    }
}

impl RawClient {
    /// Connects, with these credentials or without any. A relay that refuses a certificate does so after the handshake
    /// seems done, so that the refusal may come with the first request.
    ///
    /// # Errors
    /// The connection does not come up.
    pub async fn connect(
        address: SocketAddr,
        server_roots: &Roots,
        credentials: Option<&Credentials>,
    ) -> Result<Self, RawError> {
        let (endpoint, connection) = dial(address, server_roots, credentials).await?;
        let begun = h3::client::builder()
            .send_grease(false)
            .build::<_, _, Bytes>(h3_quinn::Connection::new(connection.clone()))
            .await;
        let (mut driven, requests) = begun.map_err(|error| failure(&connection, &error))?;
        let driver = tokio::spawn(async move {
            // Ends with the connection, and the requests on it tell why.
            let _ = poll_fn(|cx| driven.poll_close(cx)).await;
        });
        let authority = format!("localhost:{}", address.port());
        Ok(Self { connection, requests, driver, authority, endpoint })
    }

    /// A write as a writer of ours makes it, but without a token: method, path, content type.
    pub fn write(&self, signal: Signal) -> RawRequest {
        self.request(Method::POST, Route::Write(signal).path()).header("content-type", signal.content_type())
    }

    /// Any request.
    pub fn request(&self, method: Method, path_and_query: &str) -> RawRequest {
        let uri = format!("https://{}{path_and_query}", self.authority);
        RawRequest::new(self.requests.clone(), self.connection.clone(), method, uri)
    }

    /// The QUIC connection, for what can't be said in requests.
    #[must_use]
    pub const fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for RawClient {
    fn drop(&mut self) {
        self.driver.abort();
        self.endpoint.close(0_u32.into(), b"");
    }
}

/// The settings of a client with these credentials, or without any.
///
/// # Errors
/// They make no TLS configuration.
pub fn client_config(server_roots: &Roots, credentials: Option<&Credentials>) -> Result<ClientConfig, RawError> {
    let setup = |error: &dyn std::fmt::Display| RawError::Setup(error.to_string());
    let tls = match credentials {
        Some(credentials) => telemetry_certs::client_config(ClientTls { credentials, server_roots, alpn: &[b"h3"] })
            .map_err(|e| setup(&e))?,
        None => {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let mut tls = rustls::ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&TLS13])
                .map_err(|e| setup(&e))?
                .with_root_certificates(Arc::clone(server_roots.store()))
                .with_no_client_auth();
            tls.alpn_protocols = vec![b"h3".to_vec()];
            tls
        }
    };
    let crypto = QuicClientConfig::try_from(tls).map_err(|e| setup(&e))?;
    Ok(ClientConfig::new(Arc::new(crypto)))
}

async fn dial(
    address: SocketAddr,
    server_roots: &Roots,
    credentials: Option<&Credentials>,
) -> Result<(Endpoint, Connection), RawError> {
    dial_with(address, client_config(server_roots, credentials)?).await
}

/// Connects from a socket of its own with these settings.
///
/// # Errors
/// The connection does not come up.
pub async fn dial_with(address: SocketAddr, config: ClientConfig) -> Result<(Endpoint, Connection), RawError> {
    let setup = |error: &dyn std::fmt::Display| RawError::Setup(error.to_string());
    let mut endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).map_err(|e| setup(&e))?;
    endpoint.set_default_client_config(config);
    let connecting = endpoint.connect(address, "localhost").map_err(|e| setup(&e))?;
    let connection = bounded(async { Ok(connecting.await?) }).await?;
    Ok((endpoint, connection))
}

async fn bounded<T>(step: impl Future<Output = Result<T, RawError>>) -> Result<T, RawError> {
    tokio::time::timeout(TIMEOUT, step).await.unwrap_or(Err(RawError::Timeout))
}

/// The close of the connection says more than the error of a stream on it.
fn failure(connection: &Connection, error: &dyn std::fmt::Display) -> RawError {
    connection.close_reason().map_or_else(|| RawError::Stream(error.to_string()), RawError::Closed)
}
