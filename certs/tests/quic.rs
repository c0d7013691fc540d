//! What each side learns of a refused certificate over QUIC, and that QUIC itself keeps the promises of TLS.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up fails")]

mod common;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ConnectionError, Endpoint};
use rustls::crypto::aws_lc_rs;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::CertificateDer;
use telemetry_certs::testing::{self, Leaf, TestKey, Usage};
use telemetry_certs::{
    CRL_LIFETIME, CertificateRefusal, ClusterAuthority, CrlRequest, Crls, PeerIdentity, Revocation, ServerDistrust,
};

use common::{COORDINATOR, client, credentials, roots, serve, server};

/// Nothing on loopback takes this long.
const LIMIT: Duration = Duration::from_secs(10);

/// Lesson 1 (caddy 7953): on QUIC itself, and the client is told why.
#[tokio::test]
async fn a_refused_client_learns_why() {
    let authority = testing::authority();
    let stranger = testing::authority();
    let revoked = Leaf::runner("r7").issued_by(&authority);
    let crls = crl_of(&authority, credentials(&revoked).leaf());
    let coordinator = Leaf::coordinator(COORDINATOR).issued_by(&authority);
    let server = serve(&coordinator, &authority, &crls);
    let runner = || Leaf::runner("r8");
    let cases = [
        (nobody(&authority), CertificateRefusal::NoCertificate),
        (client(&runner().issued_by(&stranger), &authority), CertificateRefusal::UnknownCa),
        (client(&runner().expired().issued_by(&authority), &authority), CertificateRefusal::Expired),
        (client(&runner().not_yet_valid().issued_by(&authority), &authority), CertificateRefusal::Expired),
        (client(&revoked, &authority), CertificateRefusal::Revoked),
        (client(&runner().usages(&[Usage::Server]).issued_by(&authority), &authority), CertificateRefusal::WrongUsage),
        (client(&coordinator, &authority), CertificateRefusal::WrongUsage),
    ];
    for (client, expected) in cases {
        let Ends { client, server } = connect(client, Arc::clone(&server)).await;
        assert!(server.is_err(), "the server has no such peer");
        let refusal = match client.expect_err("the client is told") {
            ConnectionError::ConnectionClosed(close) => CertificateRefusal::from_quic_code(close.error_code.into()),
            other => panic!("{other:?}"),
        };
        assert_eq!(refusal, Some(expected));
    }
}

#[tokio::test]
async fn a_client_that_refuses_its_server_says_why() {
    let authority = testing::authority();
    let stranger = testing::authority();
    let coordinator = || Leaf::coordinator(COORDINATOR);
    let cases = [
        (coordinator().issued_by(&stranger), ServerDistrust::UnknownCa),
        (coordinator().expired().issued_by(&authority), ServerDistrust::Expired),
        (coordinator().usages(&[Usage::Client]).issued_by(&authority), ServerDistrust::WrongUsage),
        (Leaf::coordinator("d.example").issued_by(&authority), ServerDistrust::WrongName),
        (Leaf::legacy_runner("r8").dns_name(COORDINATOR).issued_by(&authority), ServerDistrust::Runner),
    ];
    for (issued, expected) in cases {
        let server = serve(&issued, &authority, &Crls::default());
        let client = client(&Leaf::runner("r7").issued_by(&authority), &authority);
        let distrust = match connect(client, server).await.client.expect_err("refused") {
            ConnectionError::TransportError(error) => ServerDistrust::from_quic_code(error.code.into()),
            other => panic!("{other:?}"),
        };
        assert_eq!(distrust, Some(expected));
    }
}

/// Lesson 3 (nginx 817, haproxy 2322), large chains included.
#[tokio::test]
async fn the_identity_arrives_over_quic() {
    let authority = testing::authority();
    let mut large = Leaf::runner("r7").key(TestKey::Rsa2048);
    for number in 0..200 {
        // Several packets of names.
        large = large.dns_name(&format!("host-{number}.of-a-runner-with-many-names.example"));
    }
    let leaves = [Leaf::runner("r7"), Leaf::runner("r7").key(TestKey::P256), Leaf::legacy_runner("r7"), large];
    for leaf in leaves {
        let Ends { client, server } =
            connect(client(&leaf.issued_by(&authority), &authority), server(&authority)).await;
        assert!(client.is_ok());
        let chain = server.unwrap();
        assert_eq!(PeerIdentity::from_leaf(&chain[0]).unwrap().runner.as_str(), "r7");
    }
}

#[tokio::test]
async fn a_second_connection_has_nothing_to_resume_and_no_early_data() {
    let authority = testing::authority();
    let client_tls = client(&Leaf::runner("r7").issued_by(&authority), &authority);
    let server_tls = server(&authority);
    let (client, server) = endpoints(client_tls, server_tls);
    let address = server.local_addr().unwrap();
    let accepting = tokio::spawn(async move {
        for _ in 0..2 {
            let connection = server.accept().await.unwrap().await.unwrap();
            // Something has to arrive after the handshake for a ticket to have had its chance.
            connection.open_uni().await.unwrap().write_all(b"x").await.unwrap();
            connection.closed().await;
        }
        server.close(0u32.into(), b"");
        server.wait_idle().await;
    });
    for _ in 0..2 {
        let connecting = client.connect(address, COORDINATOR).unwrap();
        let connection = match connecting.into_0rtt() {
            Ok(_) => panic!("early data"),
            Err(connecting) => connecting.await.unwrap(),
        };
        let mut stream = timely(connection.accept_uni()).await.unwrap();
        stream.read_exact(&mut [0]).await.unwrap();
        connection.close(0u32.into(), b"");
    }
    timely(accepting).await.unwrap();
}

/// What each side has of a connection: the client that it was accepted, or why not; the server the peer's chain.
struct Ends {
    client: Result<(), ConnectionError>,
    server: Result<Vec<CertificateDer<'static>>, ConnectionError>,
}

/// Connects once. The client's view is complete only when the first octet of the server has come: until then it takes
/// itself for accepted.
async fn connect(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Ends {
    let (client, server) = endpoints(client, server);
    let address = server.local_addr().unwrap();
    let accepting = async {
        let connection = server.accept().await.unwrap().await?;
        connection.open_uni().await?.write_all(b"x").await.unwrap();
        let chain = connection.peer_identity().unwrap().downcast::<Vec<CertificateDer<'static>>>().unwrap();
        connection.closed().await;
        Ok(*chain)
    };
    let dialling = async {
        let connection = client.connect(address, COORDINATOR).unwrap().await?;
        connection.accept_uni().await?.read_exact(&mut [0]).await.unwrap();
        connection.close(0u32.into(), b"");
        Ok(())
    };
    let (client, server) = timely(async { tokio::join!(dialling, accepting) }).await;
    Ends { client, server }
}

fn endpoints(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> (Endpoint, Endpoint) {
    let loopback = (Ipv4Addr::LOCALHOST, 0).into();
    let server = QuicServerConfig::try_from(server).unwrap();
    let server = Endpoint::server(quinn::ServerConfig::with_crypto(Arc::new(server)), loopback).unwrap();
    let mut endpoint = Endpoint::client(loopback).unwrap();
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(client).unwrap())));
    (endpoint, server)
}

async fn timely<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(LIMIT, future).await.expect("in time")
}

/// A client that trusts the authority and has no certificate.
fn nobody(authority: &ClusterAuthority) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(Arc::clone(roots(authority).store()))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h3".to_vec()];
    Arc::new(config)
}

fn crl_of(authority: &ClusterAuthority, revoked: &CertificateDer<'_>) -> Crls {
    let serial = PeerIdentity::from_leaf(revoked).unwrap().serial;
    let revoked = vec![Revocation { serial, revoked_at: SystemTime::now() }];
    let pem = authority.issue_crl(&CrlRequest { revoked, number: 1, lifetime: CRL_LIFETIME }).unwrap();
    Crls::from_pem(pem.as_bytes()).unwrap()
}
