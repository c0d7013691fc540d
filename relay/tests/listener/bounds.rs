//! Bounds on what strangers and runners can make the listener do.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use telemetry_h3::Code;
use telemetry_h3::transport::TransportLimits;
use tower::service_fn;

use crate::harness::*;

/// A way to a listener on which nothing comes back: whoever dials through it stays in the middle of its handshake, as the
/// sender of a forged address does.
async fn one_way(from: Ipv4Addr, to: SocketAddr) -> Path {
    Path::from_to(from, to, Conditions { lose_down: true, ..Conditions::default() }).await
}

/// Begins handshakes that never end.
fn flood(cluster: &Cluster, through: Path, count: usize) -> impl Sized {
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let tls = cluster.client_tls(&cluster.runner("flood"));
    let config = quic_config(tls, &TransportLimits::default());
    let attempts: Vec<_> =
        (0..count).map(|_| endpoint.connect_with(config.clone(), through.address, COORDINATOR).unwrap()).collect();
    (endpoint, attempts, through)
}

#[tokio::test]
async fn under_a_flood_of_handshakes_an_address_must_prove_itself_and_honest_clients_do() {
    let cluster = Cluster::new();
    let listener = cluster.listen_with(
        |config| {
            config.max_handshakes = 8;
            config.retry_handshakes = 4;
        },
        service_fn(name),
    );
    let _flood = flood(&cluster, one_way(Ipv4Addr::LOCALHOST, listener.local_addr()).await, 100);
    eventually("the flood is sent a Retry", || listener.metrics().refused("retry") >= 50).await;
    assert_eq!(listener.metrics().refused("too-many-handshakes"), 0, "there was room all the time");
    let mut requests = cluster.connect(&listener, "r7").await.http().await;
    assert_eq!(post(&mut requests, "x").await.unwrap().1, "r7");
}

#[tokio::test]
async fn handshakes_have_a_limit_and_who_is_ignored_gets_in_later() {
    let cluster = Cluster::new();
    let listener = cluster.listen_with(
        |config| {
            config.max_handshakes = 4;
            config.retry_handshakes = usize::MAX;
            config.handshake_timeout = Duration::from_secs(1);
        },
        service_fn(name),
    );
    let _flood = flood(&cluster, one_way(Ipv4Addr::LOCALHOST, listener.local_addr()).await, 50);
    eventually("the flood meets the limit", || listener.metrics().refused("too-many-handshakes") > 0).await;
    eventually("they time out", || listener.metrics().refused("handshake-timeout") >= 4).await;
    let mut requests = cluster.connect(&listener, "r7").await.http().await;
    assert_eq!(post(&mut requests, "x").await.unwrap().1, "r7");
}

#[tokio::test]
async fn one_network_can_t_take_all_handshakes() {
    let cluster = Cluster::new();
    let listener = cluster.listen_with(
        |config| {
            config.max_handshakes = 100;
            config.max_handshakes_per_network = 3;
            config.retry_handshakes = usize::MAX;
        },
        service_fn(name),
    );
    // The whole of 127.0.0.0/8 is loopback on Linux.
    let _flood = flood(&cluster, one_way(Ipv4Addr::new(127, 0, 0, 9), listener.local_addr()).await, 50);
    eventually("the flood meets the limit", || listener.metrics().refused("too-many-handshakes") >= 40).await;
    let dialled = std::time::Instant::now();
    let mut requests = cluster.connect(&listener, "r7").await.http().await;
    assert_eq!(post(&mut requests, "x").await.unwrap().1, "r7");
    assert!(dialled.elapsed() < Duration::from_secs(1), "an ignored packet would have been repeated after a second");
}

#[tokio::test]
async fn those_who_have_proved_their_address_wait_for_a_handshake_and_are_not_ignored() {
    let cluster = Cluster::new();
    let listener = cluster.listen_with(
        |config| {
            config.max_handshakes_per_network = 2;
            config.retry_handshakes = 0;
        },
        service_fn(name),
    );
    // A fleet behind one address that lost its relay.
    let names: Vec<String> = (0..40).map(|number| format!("r{number}")).collect();
    let fleet = futures_util::future::join_all(names.iter().map(|name| cluster.connect(&listener, name))).await;
    assert_eq!(fleet.len(), 40);
    let metrics = listener.metrics();
    assert!(metrics.refused("retry") >= 40, "everyone had to prove the address");
    assert_eq!(metrics.refused("too-many-handshakes"), 0, "who is ignored comes again after a second only");
}

#[tokio::test]
async fn connections_have_a_limit_and_who_comes_too_late_is_told() {
    let cluster = Cluster::new();
    let listener = cluster.listen_with(|config| config.max_connections = 2, service_fn(name));
    let first = cluster.connect(&listener, "r1").await;
    let _second = cluster.connect(&listener, "r2").await;
    let tls = cluster.client_tls(&cluster.runner("r3"));
    let refused = within(Client::dial(listener.local_addr(), tls, TransportLimits::default())).await.err().unwrap();
    assert!(matches!(refused, quinn::ConnectionError::ConnectionClosed(_)), "{refused}");
    assert_eq!(listener.metrics().refused("too-many-connections"), 1);

    first.quic.close(0x100_u32.into(), b"");
    eventually("there is room again", || listener.metrics().active_connections() == 1).await;
    cluster.connect(&listener, "r3").await.http().await;
}

#[tokio::test]
async fn a_runners_oldest_connection_makes_room_for_its_newest() {
    let cluster = Cluster::new();
    let listener = cluster.listen_with(|config| config.max_connections_per_runner = 2, service_fn(name));
    let other = cluster.connect(&listener, "r8").await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        let client = cluster.connect(&listener, "r7").await;
        // It is among the connected when SETTINGS come back.
        client.http().await;
        clients.push(client);
    }
    for old in &clients[..2] {
        assert_eq!(old.close_code().await, Code::H3_NO_ERROR);
    }
    assert!(clients[2..].iter().chain([&other]).all(|client| client.quic.close_reason().is_none()));
    eventually("three are left", || listener.metrics().active_connections() == 3).await;
    assert_eq!(listener.connected().len(), 3);
}

/// Rapid reset (CVE-2023-44487).
#[tokio::test]
async fn a_peer_that_gives_up_too_many_requests_loses_its_connection() {
    let cluster = Cluster::new();
    let listener = cluster.listen_with(|config| config.guard.max_unanswered_streams = 50, service_fn(echo));
    let victim = cluster.connect(&listener, "r8").await;
    let client = cluster.connect(&listener, "r7").await;
    let raw = Arc::new(client.raw().await);
    let attack = async {
        while let Ok((mut send, mut recv)) = raw.quic.open_bi().await {
            let _ = send.write_all(&frame(HEADERS, POST)).await;
            let _ = (send.reset(CANCELLED), recv.stop(CANCELLED));
        }
    };
    within(attack).await;
    assert_eq!(client.close_code().await, Code::H3_EXCESSIVE_LOAD);
    eventually("it is counted", || listener.metrics().ended("too-many-unanswered") == 1).await;
    assert_eq!(post(&mut victim.http().await, "unharmed").await.unwrap().1, "unharmed");
}
