//! Coordinators that go away and come back.

#![allow(clippy::unwrap_used, reason = "test support")]

mod support;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use support::path::slow_path;
use support::{Board, Cluster, PATIENCE, Reply, until};
use telemetry_runner_client::{Client, Point};

/// The promise: a coordinator that is back gets the next batch within this.
const BACK_WITHIN: Duration = Duration::from_secs(2);

async fn deliver(client: &Client) {
    client.metrics().write(Point::new("p", 1.0)).unwrap();
    let report = client.flush(PATIENCE).await;
    assert_eq!((report.delivered, report.waiting), (1, 0));
}

// quic-go 3372: a connection stayed undead after the server's restart.
#[tokio::test]
async fn after_a_restart_under_an_idle_client_the_next_batch_arrives_within_two_seconds() {
    for (keeps_reset_key, says_goodbye) in [(true, false), (false, false), (false, true)] {
        let (cluster, board) = (Cluster::new(), Board::taking_all());
        let key: Option<&[u8]> = keeps_reset_key.then_some(&[7; 64]);
        let server = cluster.start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &board, key);
        let client = cluster.client(&[server.address]).build().unwrap();
        deliver(&client).await;
        let address = if says_goodbye { server.stop().await } else { server.kill() };
        let _server = cluster.start_at(address, &board, key);
        let began = Instant::now();
        deliver(&client).await;
        let took = began.elapsed();
        assert!(took < BACK_WITHIN, "{took:?} with reset key {keeps_reset_key}, goodbye {says_goodbye}");
        client.close(PATIENCE).await;
    }
}

/// It can't know when its successor is there, and a client that waited for as long as it says would be late.
#[tokio::test]
async fn a_coordinator_that_stops_is_left_at_once_and_its_retry_after_is_not_waited_for() {
    let cluster = Cluster::new();
    let board = Board::new(|number, _| match number {
        0 => Reply::verdict(503, "retry").with("miren-telemetry-reason", "draining").with("retry-after", "60"),
        _ => Reply::verdict(204, "delivered"),
    });
    let server = cluster.start(&board);
    let client = cluster.client(&[server.address]).build().unwrap();
    let began = Instant::now();
    deliver(&client).await;
    assert!(began.elapsed() < BACK_WITHIN, "{:?}", began.elapsed());
    assert_eq!(board.batches().len(), 2);
    // More than one may have been tried.
    assert!(server.handshakes() > 1, "over a connection of its own");
}

/// Whoever comes next has asked for nothing.
#[tokio::test]
async fn a_retry_after_ends_with_the_connection_on_which_it_came() {
    let cluster = Cluster::new();
    let board = Board::new(|number, _| match number {
        0 => Reply::verdict(429, "retry").with("miren-telemetry-reason", "tenant-busy").with("retry-after", "300"),
        _ => Reply::verdict(204, "delivered"),
    });
    let server = cluster.start(&board);
    let client = cluster.client(&[server.address]).build().unwrap();
    client.metrics().write(Point::new("p", 1.0)).unwrap();
    board.saw(1).await;
    assert_eq!(client.flush(Duration::from_millis(500)).await.waiting, 1);
    let _server = cluster.start_at(server.stop().await, &board, None);
    let began = Instant::now();
    assert_eq!(client.flush(PATIENCE).await.delivered, 1);
    // Runners that were told so together part over 5 s.
    assert!(began.elapsed() < Duration::from_secs(5) + BACK_WITHIN, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_coordinator_that_dies_before_it_answers_gets_the_batch_again_within_two_seconds_of_its_return() {
    let cluster = Cluster::new();
    let board = Board::new(|number, _| Reply { hang: number == 1, ..Reply::verdict(204, "delivered") });
    let server = cluster.start(&board);
    let client = cluster.client(&[server.address]).build().unwrap();
    deliver(&client).await;
    client.metrics().write(Point::new("p", 1.0)).unwrap();
    board.saw(2).await;
    // The runner knows that the request arrived whole: nothing is in flight whose loss it could notice.
    assert_eq!(client.flush(Duration::from_secs(1)).await.waiting, 1);
    let _server = cluster.start_at(server.kill(), &board, None);
    let began = Instant::now();
    assert_eq!(client.flush(PATIENCE).await.delivered, 1);
    assert!(began.elapsed() < BACK_WITHIN, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_slow_answer_costs_no_connection() {
    let cluster = Cluster::new();
    let board = Board::new(|_, _| Reply { hang: true, ..Reply::verdict(204, "delivered") });
    let server = cluster.start(&board);
    let client = cluster.client(&[server.address]).build().unwrap();
    client.metrics().write(Point::new("p", 1.0)).unwrap();
    assert_eq!(client.flush(Duration::from_secs(5)).await.waiting, 1);
    assert_eq!((board.batches().len(), server.connections()), (1, 1));
}

#[tokio::test]
async fn what_is_written_during_an_outage_arrives_within_two_seconds_after_it() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    let server = cluster.start(&board);
    let client = cluster.client(&[server.address]).build().unwrap();
    deliver(&client).await;
    let address = server.kill();
    for number in 0..100 {
        client.metrics().write(Point::new("p", f64::from(number))).unwrap();
    }
    // Long enough that QUIC's own repetitions are far apart.
    assert_eq!(client.flush(Duration::from_secs(6)).await.waiting, 100);
    let _server = cluster.start_at(address, &board, None);
    let began = Instant::now();
    let report = client.flush(PATIENCE).await;
    assert_eq!((report.delivered, report.waiting), (100, 0));
    assert!(began.elapsed() < BACK_WITHIN, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_coordinator_that_starts_after_its_runner_is_found() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    let reserved = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let client = cluster.client(&[reserved]).build().unwrap();
    client.metrics().write(Point::new("p", 1.0)).unwrap();
    assert_eq!(client.flush(Duration::from_millis(500)).await.waiting, 1);
    let _server = cluster.start_at(reserved, &board, None);
    let began = Instant::now();
    assert_eq!(client.flush(PATIENCE).await.delivered, 1);
    assert!(began.elapsed() < BACK_WITHIN, "{:?}", began.elapsed());
}

#[tokio::test]
async fn the_next_coordinator_is_tried_when_one_does_not_answer_and_is_kept() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    // Takes packets and says nothing.
    let mute = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (first, second) = (cluster.start(&board), cluster.start(&board));
    let servers = [mute.local_addr().unwrap(), first.address, second.address];
    let client = cluster.client(&servers).build().unwrap();
    let began = Instant::now();
    deliver(&client).await;
    assert!(began.elapsed() < BACK_WITHIN, "{:?}", began.elapsed());
    deliver(&client).await;
    assert_eq!((first.connections(), second.connections()), (1, 0), "it stays with one that answers");
    first.kill();
    deliver(&client).await;
    assert_eq!(second.connections(), 1);
}

/// Neither has a policy to tell: that it answers is what counts.
#[tokio::test]
async fn an_older_coordinator_that_is_preferred_is_gone_back_to() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    let (first, second) = (cluster.start(&board), cluster.start(&board));
    let servers = [first.address, second.address];
    let client = cluster.client(&servers).return_interval(Duration::from_millis(200)).build().unwrap();
    deliver(&client).await;
    let address = first.kill();
    deliver(&client).await;
    assert_eq!(second.connections(), 1);
    let first = cluster.start_at(address, &board, None);
    until(|| client.peer().is_some_and(|peer| peer.coordinator == address.to_string())).await;
    second.kill();
    deliver(&client).await;
    assert_eq!((first.connections(), board.batches().len()), (1, 3));
}

#[tokio::test]
async fn a_path_so_slow_that_a_handshake_takes_seconds_is_no_outage() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    let server = cluster.start(&board);
    let path = slow_path(server.address, Duration::from_millis(850)).await;
    let client = cluster.client(&[path]).build().unwrap();
    deliver(&client).await;
}

// alloy 4509: retries blocked SIGTERM.
#[tokio::test]
async fn closing_does_not_hang_while_the_coordinator_is_away_and_says_what_is_lost() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    let server = cluster.start(&board);
    let client = cluster.client(&[server.address]).build().unwrap();
    deliver(&client).await;
    server.kill();
    client.metrics().write(Point::new("p", 1.0)).unwrap();
    let began = Instant::now();
    let (first, second) = tokio::join!(client.close(Duration::from_secs(1)), client.close(Duration::from_secs(1)));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!((first.lost, first), (1, second));
    assert_eq!(client.close(Duration::from_secs(60)).await, first);
    assert!(client.metrics().write(Point::new("p", 1.0)).is_err());
}
