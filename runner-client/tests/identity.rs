//! One side does not trust the other: typed errors, and nothing is lost.

#![allow(clippy::unwrap_used, reason = "test support")]

mod support;

use std::time::Duration;

use support::path::slow_path;
use support::{Board, Cluster, PATIENCE, Server, until};
use telemetry_certs::testing::{self, Leaf, Usage};
use telemetry_certs::{CertificateRefusal, CrlRequest, Crls, Issued, Revocation, ServerDistrust, describe};
use telemetry_runner_client::{Client, ConnectError, ConnectErrorKind, Point};

/// What a runner with this certificate is told.
async fn refusal(cluster: &Cluster, server: &Server, runner: &Issued) -> ConnectError {
    let client =
        cluster.client(&[server.address]).identity(runner.credentials().unwrap(), cluster.roots()).build().unwrap();
    let error = client.connected().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ConnectErrorKind::Identity, false));
    error
}

#[tokio::test]
async fn a_refused_certificate_is_an_error_that_says_why() {
    let (mut cluster, board) = (Cluster::new(), Board::taking_all());
    let revoked = Leaf::runner("r7").issued_by(&cluster.authority);
    let serial = describe(revoked.credentials().unwrap().leaf()).unwrap().serial;
    let list = CrlRequest {
        revoked: vec![Revocation { serial, revoked_at: std::time::SystemTime::now() }],
        number: 1,
        lifetime: Duration::from_secs(3_600),
    };
    cluster.crls = Some(Crls::from_pem(cluster.authority.issue_crl(&list).unwrap().as_bytes()).unwrap());
    let server = cluster.start(&board);
    let leaf = || Leaf::runner("r7");
    for (runner, expected) in [
        (leaf().issued_by(&testing::authority()), CertificateRefusal::UnknownCa),
        (leaf().expired().issued_by(&cluster.authority), CertificateRefusal::Expired),
        (leaf().not_yet_valid().issued_by(&cluster.authority), CertificateRefusal::Expired),
        (leaf().usages(&[Usage::Server]).issued_by(&cluster.authority), CertificateRefusal::WrongUsage),
        (revoked, CertificateRefusal::Revoked),
    ] {
        match refusal(&cluster, &server, &runner).await {
            ConnectError::Refused(refusal) => assert_eq!(refusal, expected),
            other => panic!("{other:?} instead of {expected:?}"),
        }
    }
    assert!(board.batches().is_empty());
}

async fn distrust(server_certificate: Issued) -> ConnectError {
    let mut cluster = Cluster::new();
    cluster.coordinator = server_certificate;
    let server = cluster.start(&Board::taking_all());
    refusal(&cluster, &server, &Leaf::runner("r7").issued_by(&cluster.authority)).await
}

#[tokio::test]
async fn a_server_of_another_cluster_is_not_trusted() {
    let stranger = Leaf::coordinator("localhost").ip_address([127, 0, 0, 1].into()).issued_by(&testing::authority());
    assert!(matches!(distrust(stranger).await, ConnectError::UntrustedServer(ServerDistrust::UnknownCa)));
}

#[tokio::test]
async fn a_server_that_shows_a_runners_certificate_or_another_name_is_not_trusted() {
    for (leaf, expected) in [
        (Leaf::legacy_runner("0b2e9a6c").ip_address([127, 0, 0, 1].into()), ServerDistrust::Runner),
        (Leaf::coordinator("localhost").ip_address([127, 0, 0, 1].into()).expired(), ServerDistrust::Expired),
        (Leaf::coordinator("other.example"), ServerDistrust::WrongName),
    ] {
        let mut cluster = Cluster::new();
        cluster.coordinator = leaf.issued_by(&cluster.authority);
        let server = cluster.start(&Board::taking_all());
        match refusal(&cluster, &server, &Leaf::runner("r7").issued_by(&cluster.authority)).await {
            ConnectError::UntrustedServer(distrust) => assert_eq!(distrust, expected),
            other => panic!("{other:?} instead of {expected:?}"),
        }
    }
}

#[tokio::test]
async fn what_was_written_with_a_refused_certificate_arrives_once_it_is_replaced() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    let server = cluster.start(&board);
    let expired = Leaf::runner("r7").expired().issued_by(&cluster.authority).credentials().unwrap();
    let client: Client = cluster.client(&[server.address]).identity(expired, cluster.roots()).build().unwrap();
    client.metrics().write(Point::new("p", 1.0)).unwrap();
    assert!(matches!(client.connected().await, Err(ConnectError::Refused(CertificateRefusal::Expired))));
    assert_eq!(client.flush(Duration::from_millis(100)).await.waiting, 1);
    client.set_identity(&cluster.runner(), &cluster.roots()).unwrap();
    let report = client.close(PATIENCE).await;
    assert_eq!((report.delivered, report.lost), (1, 0));
    assert_eq!(board.batches().len(), 1);
}

#[tokio::test]
async fn certificates_that_change_while_a_connection_is_made_are_those_that_count() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    let credentials = |leaf: Leaf| leaf.issued_by(&cluster.authority).credentials().unwrap();
    for before in [credentials(Leaf::runner("r7").expired()), credentials(Leaf::runner("r7"))] {
        let server = cluster.start(&board);
        let path = slow_path(server.address, Duration::from_millis(60)).await;
        let client = cluster.client(&[path]).identity(before, cluster.roots()).build().unwrap();
        client.metrics().write(Point::new("p", 1.0)).unwrap();
        until(|| server.handshakes() > 0).await;
        client.set_identity(&cluster.runner(), &cluster.roots()).unwrap();
        // Less than a client waits after it was not trusted.
        let report = client.close(Duration::from_secs(4)).await;
        assert_eq!((report.delivered, report.lost), (1, 0));
        assert!(server.handshakes() >= 2, "the batch went over a connection that shows what was replaced");
    }
    assert_eq!(board.batches().len(), 2);
}
