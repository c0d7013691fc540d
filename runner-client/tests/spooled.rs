//! Delivery through a spool on disk: outages, restarts, and what is left behind.

#![allow(clippy::unwrap_used, reason = "test support")]

mod support;

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use support::{Board, Cluster, PATIENCE, Received, until};
use telemetry_runner_client::spool::{SpoolConfig, SpoolError};
use telemetry_runner_client::{BuildError, Client, Point, Signal};

/// An address where nobody answers, yet.
fn away() -> std::net::SocketAddr {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn config(folder: &Path) -> SpoolConfig {
    SpoolConfig::new(folder.join("spool"))
}

fn write(client: &Client, numbers: std::ops::Range<u64>) {
    for number in numbers {
        client.metrics().write(Point::new(format!("p{number}"), 1.0)).unwrap();
    }
}

fn names(batches: &[Received]) -> Vec<String> {
    let lines = batches.iter().flat_map(Received::lines);
    lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

fn numbered(numbers: std::ops::Range<u64>) -> Vec<String> {
    numbers.map(|number| format!("p{number}")).collect()
}

#[tokio::test]
async fn what_could_not_be_sent_before_the_close_is_sent_by_the_next_client_once_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, board, reserved) = (Cluster::new(), Board::taking_all(), away());
    let client = cluster.client(&[reserved]).spool(config(folder.path())).build().unwrap();
    write(&client, 0..2_500);
    let report = client.close(Duration::from_millis(200)).await;
    assert_eq!((report.delivered, report.lost, report.spooled), (0, 0, 2_500));
    assert_eq!(client.tally(Signal::Metrics).waiting, 2_500);

    let client = cluster.client(&[reserved]).spool(config(folder.path())).build().unwrap();
    assert_eq!(client.recovery().unwrap().waiting.metrics.items, 2_500);
    write(&client, 2_500..3_000);
    let _server = cluster.start_at(reserved, &board, None);
    let report = client.flush(PATIENCE).await;
    assert_eq!((report.delivered, report.waiting), (3_000, 0));
    let tally = client.tally(Signal::Metrics);
    assert_eq!((tally.written, tally.recovered, tally.delivered, tally.waiting), (500, 2_500, 3_000, 0));
    assert_eq!(names(&board.batches()), numbered(0..3_000));
    client.close(PATIENCE).await;

    let client = cluster.client(&[reserved]).spool(config(folder.path())).build().unwrap();
    assert_eq!(client.tally(Signal::Metrics).recovered, 0, "what was delivered does not come back");
    client.close(PATIENCE).await;
}

#[tokio::test]
async fn a_client_that_is_dropped_without_a_farewell_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, board, reserved) = (Cluster::new(), Board::taking_all(), away());
    let client = cluster.client(&[reserved]).spool(config(folder.path())).build().unwrap();
    write(&client, 0..1_500);
    drop(client);
    let _server = cluster.start_at(reserved, &board, None);
    // The spool's thread ends on its own, and frees the folder then.
    let began = Instant::now();
    let client = loop {
        match cluster.client(&[reserved]).spool(config(folder.path())).build() {
            Ok(client) => break client,
            Err(BuildError::Spool(SpoolError::InUse(_))) if began.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(client.flush(PATIENCE).await.delivered, 1_500);
    assert_eq!(names(&board.batches()), numbered(0..1_500));
    client.close(PATIENCE).await;
}

#[tokio::test]
async fn a_batch_id_survives_attempts_and_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::new();
    let busy = Board::new(|_, _| support::Reply::verdict(503, "retry"));
    let server = cluster.start(&busy);
    let client = cluster.client(&[server.address]).spool(config(folder.path())).build().unwrap();
    write(&client, 0..1);
    busy.saw(1).await;
    assert_eq!(client.close(Duration::ZERO).await.spooled, 1);
    let board = Board::taking_all();
    let _server = cluster.start_at(server.kill(), &board, None);
    let client = cluster.client(&[_server.address]).spool(config(folder.path())).build().unwrap();
    let after = board.saw(1).await;
    let before = busy.batches();
    assert_eq!(before[0].headers["miren-batch-id"], after[0].headers["miren-batch-id"]);
    assert_eq!(before[0].body, after[0].body);
    client.close(PATIENCE).await;
}

#[tokio::test]
async fn while_the_relay_is_away_memory_stays_small_and_what_is_written_waits_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, board, reserved) = (Cluster::new(), Board::taking_all(), away());
    let mut settings = telemetry_runner_client::SignalSettings::metrics();
    (settings.batch.max_bytes, settings.max_memory) = (64 << 10, 1 << 20);
    let builder = || cluster.client(&[reserved]).metrics_settings(settings.clone()).spool(config(folder.path()));
    let client = builder().build().unwrap();
    let filler = "x".repeat(4_000);
    for number in 0..5_000_u64 {
        client.metrics().write(Point::new(format!("p{number}"), 1.0).label("filler", &filler)).unwrap();
        if number % 40 == 39 {
            // The disk is slower than a loop, and half of the memory is for what is not stored yet. So never more than these
            // forty and an open batch (16 items) wait for the disk, however slow it is.
            until(|| client.spool_stats().unwrap().waiting.metrics.items + 16 > number).await;
        }
    }
    let tally = client.tally(Signal::Metrics);
    assert_eq!((tally.waiting, tally.dropped_in_all()), (5_000, 0), "twenty times the memory waits");
    let _server = cluster.start_at(reserved, &board, None);
    let report = client.flush(PATIENCE * 3).await;
    assert_eq!((report.delivered, report.waiting), (5_000, 0));
    let report = client.close(PATIENCE).await;
    assert_eq!(report.lost + report.spooled, 0);
    let in_order = names(&board.batches()).iter().map(|name| name.split('{').next().unwrap().to_owned()).collect();
    let (in_order, expected): (Vec<String>, _) = (in_order, numbered(0..5_000));
    assert!(in_order == expected, "order is kept");
}
