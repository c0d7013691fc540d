//! What changes while the listener runs.

use std::sync::Arc;

use rustls::server::danger::ClientCertVerifier;
use telemetry_certs::{Roots, client_verifier, testing};
use telemetry_h3::Code;
use telemetry_h3::transport::TransportLimits;
use telemetry_relay::listener::ListenError;
use tower::service_fn;

use crate::harness::*;

#[tokio::test]
async fn new_connections_see_the_new_certificate_and_old_ones_go_on() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(echo));
    let before = cluster.connect(&listener, "r7").await;
    let mut requests = before.http().await;
    listener.reload(Arc::new(cluster.server_tls())).unwrap();
    assert_eq!(post(&mut requests, "goes on").await.unwrap().1, "goes on");
    let after = cluster.connect(&listener, "r7").await;
    post(&mut after.http().await, "x").await.unwrap();
    assert_ne!(before.server_certificate(), after.server_certificate());
    let again = cluster.connect(&listener, "r7").await;
    assert_eq!(again.server_certificate(), after.server_certificate());
}

#[tokio::test]
async fn a_configuration_that_is_refused_changes_nothing() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(echo));
    let before = cluster.connect(&listener, "r7").await;
    let mut tls = cluster.server_tls();
    tls.max_early_data_size = u32::MAX;
    assert!(matches!(listener.reload(Arc::new(tls)), Err(ListenError::EarlyData)));
    let after = cluster.connect(&listener, "r7").await;
    assert_eq!(before.server_certificate(), after.server_certificate());
}

#[tokio::test]
async fn a_new_authority_lets_its_runners_in_and_the_old_ones_out() {
    let cluster = Cluster::new();
    let next = Cluster { authority: testing::authority() };
    let listener = cluster.listen(service_fn(echo));
    let old = cluster.connect(&listener, "r7").await;
    old.http().await;
    listener.reload(Arc::new(next.server_tls())).unwrap();
    let new = next.connect(&listener, "r7").await;
    let mut requests = new.http().await;

    // Existing connections survive a reload: their chains are asked again.
    let verifier =
        client_verifier(&Roots::from_pem(next.authority.certificate_pem().as_bytes()).unwrap(), &[]).unwrap();
    let now = rustls::pki_types::UnixTime::now();
    let closed = listener.close_peers(
        |connected| {
            let (leaf, above) = connected.chain.split_first().unwrap();
            ClientCertVerifier::verify_client_cert(&*verifier, leaf, above, now).is_err()
        },
        "the authority has changed",
    );
    assert_eq!(closed, 1);
    assert_eq!(old.close_code().await, Code::H3_NO_ERROR);
    assert_eq!(post(&mut requests, "stays").await.unwrap().1, "stays");
    let tls = cluster.client_tls(&cluster.runner("r7"));
    // The old authority's client does not trust the new server either.
    assert!(within(Client::dial(listener.local_addr(), tls, TransportLimits::default())).await.is_err());
}

#[tokio::test]
async fn the_connections_of_a_removed_runner_end_at_once_and_no_others() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(echo));
    let mut removed = Vec::new();
    for _ in 0..3 {
        let client = cluster.connect(&listener, "r7").await;
        client.http().await;
        removed.push(client);
    }
    let other = cluster.connect(&listener, "r8").await;
    let mut requests = other.http().await;
    let closed = listener.close_peers(|connected| connected.peer.author().label() == "r7", "r7 was removed");
    assert_eq!(closed, 3);
    for client in removed {
        assert_eq!(client.close_code().await, Code::H3_NO_ERROR);
    }
    assert_eq!(post(&mut requests, "stays").await.unwrap().1, "stays");
    eventually("they are gone", || listener.connected().len() == 1).await;
}

/// A revoked runner must not get in by beginning its handshake before the revocation and ending it afterwards.
#[tokio::test]
async fn a_handshake_that_was_under_way_at_a_reload_is_in_vain() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(echo));
    let halted = Conditions { lose_up_after_answer: true, ..Conditions::default() };
    let mut path = Path::to(listener.local_addr(), halted).await;
    let tls = cluster.client_tls(&cluster.runner("r7"));
    let dialling = tokio::spawn(Client::dial(path.address, tls, TransportLimits::default()));
    path.answered().await;
    listener.reload(Arc::new(cluster.server_tls())).unwrap();
    assert_eq!(listener.close_peers(|_| true, "nobody is here yet"), 0);
    path.change(Conditions::default());
    let client = within(dialling).await.unwrap().unwrap();
    assert_eq!(client.close_code().await, Code::H3_NO_ERROR);
    assert_eq!(listener.metrics().ended("reloaded"), 1);
}
