//! What responses do to a batch, over a real connection.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::{Board, Cluster, PATIENCE, Reply, of};
use telemetry_runner_client::{DropReason, LogRecord, Point, Signal, SignalSettings};

// VictoriaLogs 1499: a load balancer's 404 lost logs.
#[tokio::test]
async fn unmarked_refusals_keep_the_batch_and_its_id() {
    let (cluster, board) = (
        Cluster::new(),
        Board::new(|number, _| match number {
            0 => Reply::unmarked(404),
            1 => Reply::unmarked(400),
            _ => Reply::unmarked(204),
        }),
    );
    let server = cluster.start(&board);
    let client = cluster.client(&[server.address]).build().unwrap();
    client.metrics().write(Point::new("p", 1.0)).unwrap();
    assert_eq!(client.close(PATIENCE).await.delivered, 1);
    let batches = board.batches();
    assert_eq!(batches.len(), 3);
    assert!(
        batches
            .iter()
            .all(|b| b.body == batches[0].body && b.headers["miren-batch-id"] == batches[0].headers["miren-batch-id"])
    );
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let (cluster, board) = (
        Cluster::new(),
        Board::new(|number, _| match number {
            0 => Reply::verdict(429, "retry").with("retry-after", "2"),
            _ => Reply::verdict(204, "delivered"),
        }),
    );
    let server = cluster.start(&board);
    let client = cluster.client(&[server.address]).build().unwrap();
    client.metrics().write(Point::new("p", 1.0)).unwrap();
    let batches = board.saw(2).await;
    let gap = batches[1].at - batches[0].at;
    assert!(gap >= Duration::from_secs(2) && gap < Duration::from_secs(4), "{gap:?}");
    client.close(PATIENCE).await;
}

#[tokio::test]
async fn an_answer_that_comes_before_the_whole_body_counts() {
    let (cluster, board) = (
        Cluster::new(),
        Board::new(|number, _| match number {
            0 => {
                Reply { early: true, ..Reply::verdict(413, "reject").with("miren-telemetry-reason", "body-too-large") }
            }
            _ => Reply::verdict(200, "delivered"),
        }),
    );
    let server = cluster.start(&board);
    let mut settings = SignalSettings::logs();
    settings.batch.max_items = 64;
    settings.batch.max_bytes = 16 << 20;
    let client = cluster.client(&[server.address]).logs_settings(settings).build().unwrap();
    // More than any window of flow control.
    for _ in 0..64 {
        client.logs().write(&LogRecord::new("e", "s", "x".repeat(200_000))).unwrap();
    }
    client.logs().write(&LogRecord::new("e", "s", "small")).unwrap();
    let report = client.close(PATIENCE).await;
    assert_eq!((report.delivered, report.dropped, report.lost), (1, 64, 0));
    assert_eq!(client.tally(Signal::Logs).dropped(DropReason::Rejected), 64);
}

// fluent-bit 12384: a 429 and a 200 in one chunk, and all was marked as sent.
#[tokio::test]
async fn lesson_21_a_429_and_a_200_at_once_are_settled_each_by_itself() {
    let cluster = Cluster::new();
    let refusals = AtomicUsize::new(0);
    let board = Board::new(move |_, path| match path == Signal::Metrics.write_path() {
        true if refusals.fetch_add(1, Ordering::SeqCst) < 2 => {
            Reply::verdict(429, "retry").with("retry-after", "1").with("miren-telemetry-reason", "tenant-busy")
        }
        _ => Reply::verdict(204, "delivered"),
    });
    let server = cluster.start(&board);
    let client = cluster.client(&[server.address]).build().unwrap();
    client.metrics().write(Point::new("first", 1.0)).unwrap();
    client.logs().write(&LogRecord::new("e", "s", "m")).unwrap();
    board.saw(2).await;
    client.metrics().write(Point::new("second", 1.0)).unwrap();
    let report = client.flush(PATIENCE).await;
    let delivered = client.tally(Signal::Metrics).delivered + client.tally(Signal::Logs).delivered;
    assert_eq!((delivered, report.waiting), (3, 0));
    let batches = board.batches();
    let (metrics, logs) = (of(&batches, Signal::Metrics), of(&batches, Signal::Logs));
    assert_eq!(logs.len(), 1, "what was acknowledged is not sent again");
    let names: Vec<&str> = metrics.iter().map(|batch| batch.lines()[0].split(' ').next().unwrap()).collect();
    assert_eq!(names, ["first", "first", "first", "second"], "and what was not, is");
    let id = |index: usize| &metrics[index].headers["miren-batch-id"];
    assert!(id(0) == id(1) && id(1) == id(2) && id(2) != id(3));
    client.close(PATIENCE).await;
}
