//! HTTP/1.1 with keep-alive, over TCP or TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use super::Head;

/// A connection. Requests on it come one after the other.
pub(super) struct Link {
    head: Head,
    sender: Mutex<SendRequest<Full<Bytes>>>,
}

impl Link {
    pub(super) async fn connect(
        address: SocketAddr,
        tls: Option<Arc<ClientConfig>>,
        head: Head,
    ) -> Result<Self, String> {
        let stream = TcpStream::connect(address).await.map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        let sender = match tls {
            None => begin(stream).await?,
            Some(tls) => {
                let name = ServerName::try_from("localhost").map_err(text)?;
                begin(TlsConnector::from(tls).connect(name, stream).await.map_err(text)?).await?
            }
        };
        Ok(Self { head, sender: Mutex::new(sender) })
    }

    pub(super) async fn post(&self, body: Bytes) -> Result<StatusCode, String> {
        let request = self.head.with_length(body.len(), None).map(|()| Full::new(body));
        let mut sender = self.sender.lock().await;
        sender.ready().await.map_err(text)?;
        let response = sender.send_request(request).await.map_err(text)?;
        let status = response.status();
        response.into_body().collect().await.map_err(text)?;
        Ok(status)
    }
}

async fn begin<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(text)?;
    tokio::spawn(connection);
    Ok(sender)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
