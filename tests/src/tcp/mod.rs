//! Clients over TCP that do as they are told: hyper's, for requests that HTTP allows, and one that writes bytes by hand, for
//! those that it does not.

mod bytes;
mod client;
pub mod frames;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::ResolvesClientCert;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use telemetry_certs::{CertificateRefusal, ClientTls, Credentials, Roots};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub use bytes::{Flooded, TcpBytes};
pub use client::TcpClient;

/// How long any one step may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Http {
    /// HTTP/1.1
    One,
    /// HTTP/2
    Two,
}

impl Http {
    /// Both of them.
    pub const BOTH: [Self; 2] = [Self::One, Self::Two];

    const fn alpn(self) -> &'static [u8] {
        match self {
            Self::One => b"http/1.1",
            Self::Two => b"h2",
        }
    }
}

/// There is no response.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// A TLS configuration can't be built.
    #[error(transparent)]
    Tls(#[from] telemetry_certs::TlsError),
    /// The connection failed, or was ended.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// HTTP failed.
    #[error("there is no response: {0}")]
    Http(#[from] hyper::Error),
    /// A step took too long.
    #[error("nothing happened for {TIMEOUT:?}")]
    Timeout,
}

impl TcpError {
    /// Why the peer refused our certificate, if it did.
    #[must_use]
    pub fn refusal(&self) -> Option<CertificateRefusal> {
        let mut error: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(now) = error {
            if let Some(io) = now.downcast_ref::<io::Error>() {
                return CertificateRefusal::from_rustls(io.get_ref()?.downcast_ref()?);
            }
            error = now.source();
        }
        None
    }
}

async fn bounded<T>(step: impl Future<Output = Result<T, TcpError>>) -> Result<T, TcpError> {
    tokio::time::timeout(TIMEOUT, step).await.unwrap_or(Err(TcpError::Timeout))
}

async fn connect(
    address: SocketAddr,
    roots: &Roots,
    credentials: Option<&Credentials>,
    http: Http,
) -> Result<TlsStream<TcpStream>, TcpError> {
    let alpn: &[&[u8]] = &[http.alpn()];
    let tls = match credentials {
        Some(credentials) => telemetry_certs::client_config(ClientTls { credentials, server_roots: roots, alpn })?,
        None => anonymous(roots, alpn)?,
    };
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    Ok(TlsConnector::from(Arc::new(tls)).connect(name, stream).await?)
}

/// A client that shows nothing.
fn anonymous(roots: &Roots, alpn: &[&[u8]]) -> Result<rustls::ClientConfig, TcpError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(io::Error::other)?;
    let mut tls =
        builder.with_root_certificates(Arc::clone(roots.store())).with_client_cert_resolver(Arc::new(Nothing));
    tls.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(tls)
}

#[derive(Debug)]
struct Nothing;

impl ResolvesClientCert for Nothing {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}
