//! HTTP/3 on quinn, with the transport settings of our own client. Many connections share a socket.

use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use http::{HeaderValue, StatusCode};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, TokioRuntime};
use telemetry_h3::transport::{self, TransportLimits};
use telemetry_h3::udp;
use tokio::task::JoinHandle;

use super::Head;

/// The size of a DATA frame.
const FRAME_BYTES: usize = 256 * 1024;

type SendRequest = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;

/// A socket for many connections.
pub(super) fn endpoint() -> io::Result<Endpoint> {
    let (socket, _) = udp::bind_udp((Ipv4Addr::LOCALHOST, 0).into(), udp::WANTED_BUFFER_BYTES)?;
    Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime))
}

/// A connection. Requests on it go side by side.
pub(super) struct Link {
    head: Head,
    connection: Connection,
    requests: SendRequest,
    driver: JoinHandle<()>,
}

impl Link {
    pub(super) async fn connect(
        endpoint: &Endpoint,
        address: SocketAddr,
        tls: Arc<rustls::ClientConfig>,
        head: Head,
    ) -> Result<Self, String> {
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).map_err(text)?));
        config.transport_config(Arc::new(transport::client(&TransportLimits::default())));
        let connecting = endpoint.connect_with(config, address, "localhost").map_err(text)?;
        let connection = connecting.await.map_err(text)?;
        let begun = h3::client::builder()
            .send_grease(false)
            .build::<_, _, Bytes>(h3_quinn::Connection::new(connection.clone()))
            .await;
        let (mut driven, requests) = begun.map_err(text)?;
        let driver = tokio::spawn(async move {
            // Ends with the connection; its requests tell why.
            let _ = poll_fn(|cx| driven.poll_close(cx)).await;
        });
        Ok(Self { head, connection, requests, driver })
    }

    pub(super) async fn post(&self, mut body: Bytes, batch: Option<HeaderValue>) -> Result<StatusCode, String> {
        let head = self.head.with_length(body.len(), batch);
        let stream = self.requests.clone().send_request(head).await.map_err(text)?;
        let (mut sending, mut receiving) = stream.split();
        let send = async {
            while body.has_remaining() {
                let frame = body.split_to(body.len().min(FRAME_BYTES));
                // Whoever does not want the body says why in the response.
                if sending.send_data(frame).await.is_err() {
                    return;
                }
            }
            let _ = sending.finish().await;
        };
        let receive = async {
            let response = receiving.recv_response().await.map_err(text)?;
            while receiving.recv_data().await.map_err(text)?.is_some() {}
            Ok(response.status())
        };
        let mut receive = std::pin::pin!(receive);
        tokio::select! {
            status = &mut receive => status,
            () = send => receive.await,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
        self.connection.close(0x100_u32.into(), b"");
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
