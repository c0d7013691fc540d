//! A relay in this process.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, ServerConfig};
use rustls_pki_types::CertificateDer;
use telemetry_certs::{Credentials, PeerIdentity, Roots, ServerTls};
use telemetry_relay::RelayService;
use telemetry_relay::gate::Peer;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

use super::RigError;

/// A relay that listens on loopback, and can be closed and opened again on the same port.
#[derive(Debug)]
pub struct InProcessRelay {
    address: SocketAddr,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    endpoint: Endpoint,
    task: JoinHandle<()>,
}

impl InProcessRelay {
    pub(super) fn start(
        address: SocketAddr,
        credentials: &Credentials,
        client_roots: &Roots,
        service: RelayService,
    ) -> Result<Self, RigError> {
        let tls = telemetry_certs::server_config(ServerTls { credentials, client_roots, crls: &[], alpn: &[b"h3"] })?;
        let crypto = QuicServerConfig::try_from(tls).map_err(|error| RigError::Setup(error.to_string()))?;
        let mut config = ServerConfig::with_crypto(Arc::new(crypto));
        config.transport_config(Arc::new(telemetry_h3::transport::server(
            &telemetry_h3::transport::TransportLimits::default(),
        )));
        let endpoint = Endpoint::server(config, address)?;
        let task = tokio::spawn(accept(endpoint.clone(), service));
        Ok(Self { address, running: Mutex::new(Some(Running { endpoint, task })) })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept(endpoint: Endpoint, service: RelayService) {
    while let Some(incoming) = endpoint.accept().await {
        let service = service.clone();
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else { return };
            let Some(identity) = connection.peer_identity() else { return };
            let Ok(chain) = identity.downcast::<Vec<CertificateDer<'static>>>() else { return };
            let Ok(identity) = PeerIdentity::from_leaf(&chain[0]) else { return };
            let peer = Peer::new(identity, connection.remote_address());
            let Ok((mut h3, _)) = telemetry_h3::server::begin(connection, telemetry_h3::GuardLimits::default()).await
            else {
                return;
            };
            while let Ok(Some(resolver)) = h3.accept().await {
                let (service, peer) = (service.clone(), peer.clone());
                tokio::spawn(async move {
                    let Ok((mut request, stream)) = resolver.resolve_request().await else { return };
                    request.extensions_mut().insert(peer);
                    let (mut send, receive) = stream.split();
                    let body = StreamBody::new(futures_util::stream::unfold(receive, |mut receive| async move {
                        match receive.recv_data().await {
                            Ok(Some(mut data)) => {
                                Some((Ok(Frame::data(data.copy_to_bytes(data.remaining()))), receive))
                            }
                            Ok(None) => None,
                            Err(error) => Some((Err(error), receive)),
                        }
                    }));
                    let Ok(response): Result<_, Infallible> = service.oneshot(request.map(|()| body)).await;
                    let (head, body) = response.into_parts();
                    let Ok(body): Result<_, Infallible> = body.collect().await;
                    if send.send_response(http::Response::from_parts(head, ())).await.is_ok() {
                        let _ = send.send_data(body.to_bytes()).await;
                        let _ = send.finish().await;
                    }
                });
            }
        });
    }
}
