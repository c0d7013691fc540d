//! Tokens that come late, over a real connection.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::{Board, Cluster, PATIENCE, Reply, of};
use telemetry_runner_client::{LateTokenSource, LogRecord, Point, Signal, TokenError, TokenSource};

#[tokio::test]
async fn nothing_that_is_written_before_arming_is_lost() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    let server = cluster.start(&board);
    let tokens = LateTokenSource::new();
    let client = cluster.client(&[server.address]).token_source(Arc::new(tokens.clone())).build().unwrap();
    assert!(matches!(tokens.token().await, Err(TokenError::Unarmed)));
    for number in 0..1_000 {
        client.metrics().write(Point::new("p", f64::from(number)).label("n", number.to_string())).unwrap();
        client.logs().write(&LogRecord::new("e", "s", number.to_string())).unwrap();
    }
    assert_eq!(client.flush(Duration::from_millis(100)).await.waiting, 2_000);
    assert!(board.batches().is_empty());

    tokens.arm(client.issuer());
    let report = client.close(PATIENCE).await;
    assert_eq!((report.delivered, report.lost), (2_000, 0));
    let batches = board.batches();
    for signal in [Signal::Metrics, Signal::Logs] {
        let batches = of(&batches, signal);
        let lines: Vec<String> =
            batches.iter().flat_map(|batch| batch.lines().into_iter().map(str::to_owned).collect::<Vec<_>>()).collect();
        assert_eq!(lines.len(), 1_000);
        assert!(lines.iter().enumerate().all(|(number, line)| line.contains(&format!("\"{number}\""))), "{signal}");
        assert!(batches.iter().all(|batch| batch.headers["content-type"] == signal.content_type()));
        assert!(batches.iter().all(|batch| batch.token() == "token-1"));
    }
    assert_eq!(board.mints.load(Ordering::SeqCst), 1, "both writers share one token");
}

#[tokio::test]
async fn a_refused_token_is_dropped_once_though_both_writers_hear_of_it() {
    let cluster = Cluster::new();
    let board = Board::new(|number, _| match number {
        0 | 1 => Reply::verdict(401, "refresh-token"),
        _ => Reply::verdict(204, "delivered"),
    });
    let server = cluster.start(&board);
    let client = cluster.client(&[server.address]).build().unwrap();
    client.metrics().write(Point::new("p", 1.0)).unwrap();
    client.logs().write(&LogRecord::new("e", "s", "m")).unwrap();
    let report = client.close(PATIENCE).await;
    assert_eq!((report.delivered, report.lost), (2, 0));
    let batches = board.batches();
    let last: Vec<&str> = batches.iter().skip(2).map(support::Received::token).collect();
    assert!(!last.contains(&"token-1"), "{last:?}");
    assert!((2..=3).contains(&board.mints.load(Ordering::SeqCst)));
}
