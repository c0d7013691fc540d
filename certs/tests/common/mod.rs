//! Handshakes over memory.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection, Error, HandshakeKind, ServerConfig, ServerConnection};
use rustls_pki_types::{CertificateDer, ServerName};
use telemetry_certs::testing::Leaf;
use telemetry_certs::{
    ClientTls, ClusterAuthority, Credentials, Crls, Issued, PeerIdentity, Roots, ServerTls, client_config,
    server_config,
};

/// The name that is dialled unless a test says otherwise.
pub const COORDINATOR: &str = "c.example";

/// What became of a handshake.
pub struct Outcome {
    pub client: Result<(), Error>,
    pub server: Result<(), Error>,
    pub client_chain: Vec<CertificateDer<'static>>,
    pub alpn: Option<Vec<u8>>,
    pub kind: Option<HandshakeKind>,
    pub tickets: u32,
}

impl Outcome {
    pub fn identity(&self) -> Option<PeerIdentity> {
        PeerIdentity::from_leaf(self.client_chain.first()?).ok()
    }
}

/// Carries the two sides' messages to each other until neither has any or one fails.
pub fn shake(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>, dialled: &str) -> Outcome {
    let mut client = ClientConnection::new(Arc::clone(client), name(dialled)).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    let (mut client_result, mut server_result) = (Ok(()), Ok(()));
    while client.wants_write() || server.wants_write() {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        if server_result.is_ok() {
            server_result = feed(&wire, |wire| {
                server.read_tls(wire).unwrap();
                server.process_new_packets().map(drop)
            });
        }
        wire.clear();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        if client_result.is_ok() {
            client_result = feed(&wire, |wire| {
                client.read_tls(wire).unwrap();
                client.process_new_packets().map(drop)
            });
        }
    }
    Outcome {
        client: client_result,
        server: server_result,
        client_chain: server
            .peer_certificates()
            .unwrap_or_default()
            .iter()
            .map(|der| der.clone().into_owned())
            .collect(),
        alpn: client.alpn_protocol().map(<[u8]>::to_vec),
        kind: client.handshake_kind(),
        tickets: client.tls13_tickets_received(),
    }
}

fn feed(mut wire: &[u8], mut take: impl FnMut(&mut &[u8]) -> Result<(), Error>) -> Result<(), Error> {
    while !wire.is_empty() {
        take(&mut wire)?;
    }
    Ok(())
}

/// A client of ours that shows this and accepts the servers of that authority.
pub fn client(issued: &Issued, trusted: &ClusterAuthority) -> Arc<ClientConfig> {
    let parts = ClientTls { credentials: &credentials(issued), server_roots: &roots(trusted), alpn: &[b"h3"] };
    Arc::new(client_config(parts).unwrap())
}

pub fn credentials(issued: &Issued) -> Credentials {
    issued.credentials().unwrap()
}

pub fn roots(authority: &ClusterAuthority) -> Roots {
    Roots::from_pem(authority.certificate_pem().as_bytes()).unwrap()
}

pub fn name(text: &str) -> ServerName<'static> {
    ServerName::try_from(text.to_owned()).unwrap()
}

/// A server of ours with a coordinator's certificate.
pub fn server(authority: &ClusterAuthority) -> Arc<ServerConfig> {
    serve(&Leaf::coordinator(COORDINATOR).issued_by(authority), authority, &Crls::default())
}

/// A server of ours that shows this and accepts the clients of that authority.
pub fn serve(issued: &Issued, trusted: &ClusterAuthority, crls: &Crls) -> Arc<ServerConfig> {
    let parts = ServerTls {
        credentials: &credentials(issued),
        client_roots: &roots(trusted),
        crls: crls.ders(),
        alpn: &[b"h3"],
    };
    Arc::new(server_config(parts).unwrap())
}
