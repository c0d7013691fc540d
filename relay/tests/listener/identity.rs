//! Lesson 1 (caddy 7953): on QUIC itself, no request of a peer without an acceptable certificate reaches the service.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ServerSessionMemoryCache;
use rustls::sign::CertifiedKey;
use telemetry_certs::testing::{self, Hierarchy, Leaf, TestKey, Usage};
use telemetry_certs::{CertificateRefusal, Issued, KeyKind};
use telemetry_h3::transport::TransportLimits;
use telemetry_relay::listener::{ListenError, Listener};
use tower::service_fn;

use crate::harness::*;

/// Counts the requests that get through.
fn counting() -> (impl TestService, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let service = service_fn(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(Response::new(Full::default())) }
    });
    (service, count)
}

/// Shows no certificate.
#[derive(Debug)]
pub(crate) struct Nothing;

impl ResolvesClientCert for Nothing {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// Sends a request as early as a client can, and says how the connection ended.
async fn try_a_request(to: std::net::SocketAddr, tls: rustls::ClientConfig) -> quinn::ConnectionError {
    let client = match within(Client::dial(to, tls, TransportLimits::default())).await {
        Ok(client) => client,
        Err(error) => return error,
    };
    // With TLS 1.3 the client is done before the server has looked at its certificate.
    let _ = async {
        let mut control = client.quic.open_uni().await?;
        control.write_all(&[0, SETTINGS, 0]).await.map_err(|_| quinn::ConnectionError::LocallyClosed)?;
        let (mut send, recv) = client.quic.open_bi().await?;
        send.write_all(&frame(HEADERS, POST)).await.map_err(|_| quinn::ConnectionError::LocallyClosed)?;
        let _ = send.finish();
        client.quic.closed().await;
        Ok::<_, quinn::ConnectionError>((control, recv))
    }
    .await;
    within(client.quic.closed()).await
}

#[tokio::test]
async fn no_request_of_a_peer_without_an_acceptable_certificate_reaches_the_service() {
    let cluster = Cluster::new();
    let stranger = testing::authority();
    let (service, reached) = counting();
    let listener = cluster.listen(service);
    let runner = || Leaf::runner("r7");
    let none = {
        let mut tls = cluster.client_tls(&cluster.runner("r7"));
        tls.client_auth_cert_resolver = Arc::new(Nothing);
        tls
    };
    let cases = [
        ("no certificate", none, CertificateRefusal::NoCertificate),
        ("another CA", cluster.client_tls(&runner().issued_by(&stranger)), CertificateRefusal::UnknownCa),
        ("expired", cluster.client_tls(&runner().expired().issued_by(&cluster.authority)), CertificateRefusal::Expired),
        (
            "server usage",
            cluster.client_tls(&runner().usages(&[Usage::Server]).issued_by(&cluster.authority)),
            CertificateRefusal::WrongUsage,
        ),
    ];
    for (what, tls, expected) in cases {
        match try_a_request(listener.local_addr(), tls).await {
            quinn::ConnectionError::ConnectionClosed(close) => {
                assert_eq!(CertificateRefusal::from_quic_code(close.error_code.into()), Some(expected), "{what}");
            }
            other => panic!("{what}: {other}"),
        }
    }
    for kind in ["no-certificate", "unknown-ca", "certificate-expired", "certificate-wrong-usage"] {
        eventually(kind, || listener.metrics().refused(kind) == 1).await;
    }
    assert_eq!(reached.load(Ordering::SeqCst), 0);
    assert_eq!(listener.metrics().active_connections(), 0);

    let mut requests = cluster.connect(&listener, "r7").await.http().await;
    post(&mut requests, "x").await.unwrap();
    assert_eq!(reached.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_certificate_that_names_no_runner_gets_no_request_through() {
    let cluster = Cluster::new();
    let (service, reached) = counting();
    let listener = cluster.listen(service);
    let nobody = Leaf::blank().common_name("someone").usages(&[Usage::Client]).issued_by(&cluster.authority);
    let end = try_a_request(listener.local_addr(), cluster.client_tls(&nobody)).await;
    assert!(matches!(end, quinn::ConnectionError::ApplicationClosed(_)), "{end}");
    assert_eq!((listener.metrics().refused("no-runner"), reached.load(Ordering::SeqCst)), (1, 0));
}

/// An embedder's TLS configuration may forget to ask.
#[tokio::test]
async fn a_configuration_that_asks_for_no_certificate_lets_nobody_in() {
    let cluster = Cluster::new();
    let (service, reached) = counting();
    let listener = Listener::bind(loopback(), Arc::new(lax(&cluster))).unwrap().serve(service);
    let end = try_a_request(listener.local_addr(), cluster.client_tls(&cluster.runner("r7"))).await;
    assert!(matches!(end, quinn::ConnectionError::ApplicationClosed(_)), "{end}");
    assert_eq!((listener.metrics().refused("no-certificate"), reached.load(Ordering::SeqCst)), (1, 0));
}

/// A server's TLS configuration that asks for no certificate and is right otherwise.
pub(crate) fn lax(cluster: &Cluster) -> rustls::ServerConfig {
    let issued = Leaf::coordinator(COORDINATOR).issued_by(&cluster.authority);
    let mut chain: Vec<CertificateDer<'static>> = issued.credentials().unwrap().chain().to_vec();
    chain.truncate(1);
    let key = rustls::pki_types::pem::PemObject::from_pem_slice(issued.key_pem.as_bytes());
    let key: PrivateKeyDer<'static> = key.unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    tls.send_tls13_tickets = 0;
    tls
}

/// Resumption skips the verification of the client's certificate, and early data can be replayed.
#[tokio::test]
async fn a_configuration_with_early_data_resumption_or_without_h3_is_refused() {
    let cluster = Cluster::new();
    let listen = |edit: fn(&mut rustls::ServerConfig)| {
        let mut tls = cluster.server_tls();
        edit(&mut tls);
        Listener::bind(loopback(), Arc::new(tls)).err()
    };
    assert!(matches!(listen(|tls| tls.max_early_data_size = u32::MAX), Some(ListenError::EarlyData)));
    assert!(matches!(listen(|tls| tls.send_tls13_tickets = 1), Some(ListenError::Resumption)));
    assert!(matches!(listen(|tls| tls.alpn_protocols.clear()), Some(ListenError::Alpn)));
    assert!(
        listen(|tls| tls.session_storage = ServerSessionMemoryCache::new(1)).is_none(),
        "of no use without tickets"
    );
}

#[tokio::test]
async fn a_client_that_wants_to_resume_does_a_whole_handshake_and_has_no_early_data() {
    let cluster = Cluster::new();
    let (service, reached) = counting();
    let listener = cluster.listen(service);
    let mut tls = cluster.client_tls(&cluster.runner("r7"));
    tls.resumption = rustls::client::Resumption::in_memory_sessions(16);
    tls.enable_early_data = true;
    let config = quic_config(tls, &TransportLimits::default());
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    for i in 1..=3 {
        let connecting = endpoint.connect_with(config.clone(), listener.local_addr(), COORDINATOR).unwrap();
        let quic = match connecting.into_0rtt() {
            Ok(_) => panic!("early data"),
            Err(connecting) => within(connecting).await.unwrap(),
        };
        // A response has come, so that a ticket would have come as well.
        let mut control = quic.open_uni().await.unwrap();
        control.write_all(&[0, SETTINGS, 0]).await.unwrap();
        let raw = RawClient { quic: quic.clone(), control };
        let (_send, mut recv) = raw.post().await;
        within(recv.read_to_end(1024)).await.unwrap();
        assert_eq!(reached.load(Ordering::SeqCst), i);
        quic.close(0u32.into(), b"");
    }
}

/// Lesson 3 (nginx 817, haproxy 2322).
#[tokio::test]
async fn every_kind_of_leaf_is_known_by_its_name() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(name));
    let leaf = || Leaf::runner("r7");
    let leaves = [
        leaf(),
        leaf().key(TestKey::P256),
        leaf().key(TestKey::P384),
        leaf().key(TestKey::Rsa2048),
        Leaf::legacy_runner("r7"),
    ];
    for leaf in leaves {
        let issued = leaf.issued_by(&cluster.authority);
        assert_eq!(who_am_i(listener.local_addr(), cluster.client_tls(&issued)).await, "r7");
    }
}

#[tokio::test]
async fn a_leaf_below_an_intermediate_is_known_by_its_name() {
    let Hierarchy { root, intermediate } = Hierarchy::new(KeyKind::P256);
    let cluster = Cluster { authority: root };
    let listener = cluster.listen(service_fn(name));
    let issued: Issued = Leaf::runner("r7").issued_by(&intermediate);
    assert_eq!(who_am_i(listener.local_addr(), cluster.client_tls(&issued)).await, "r7");
}

async fn who_am_i(listener: std::net::SocketAddr, tls: rustls::ClientConfig) -> Bytes {
    let client = within(Client::dial(listener, tls, TransportLimits::default())).await.unwrap();
    post(&mut client.http().await, "x").await.unwrap().1
}
