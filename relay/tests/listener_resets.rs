//! Lesson 10 (VictoriaMetrics 10833, 10318): cancelled requests leave nothing behind and harm nobody else.
//!
//! A file of its own, so that nothing else runs in the process that is measured.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "listener/harness.rs"]
mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::*;
use tower::service_fn;

/// What the process holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    descriptors: usize,
    resident_bytes: usize,
}

fn held() -> Held {
    let resident_pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident_pages: usize = resident_pages.split(' ').nth(1).unwrap().parse().unwrap();
    Held { descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(), resident_bytes: resident_pages * 4096 }
}

/// Begins requests and gives them up at different points, some before the listener can have seen them.
async fn give_up(raw: &RawClient, count: usize) {
    for i in 0..count {
        let (mut send, mut recv) = within(raw.quic.open_bi()).await.unwrap();
        match i % 5 {
            0 => {}
            1 => send.write_all(&frame(HEADERS, POST)).await.unwrap(),
            2 => send.write_all(&[frame(HEADERS, POST), announced(DATA, 100, b"half")].concat()).await.unwrap(),
            3 => {
                send.write_all(&[frame(HEADERS, POST), announced(DATA, 100_000, &[7; 50_000])].concat()).await.unwrap();
            }
            _ => {
                // All of it; only the response is given up.
                send.write_all(&[frame(HEADERS, POST), frame(DATA, &[7; 1000])].concat()).await.unwrap();
                send.finish().unwrap();
            }
        }
        if i % 7 == 0 {
            tokio::task::yield_now().await;
        }
        let _ = send.reset(CANCELLED);
        let _ = recv.stop(CANCELLED);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests_that_are_given_up_leave_nothing_behind_and_harm_nobody() {
    let cluster = Cluster::new();
    // The limit that would end such a connection much earlier has a test of its own.
    let listener = cluster.listen_with(|config| config.guard.max_unanswered_streams = u32::MAX, service_fn(echo));
    let attacker = cluster.connect(&listener, "r7").await;
    let raw = attacker.raw().await;
    let bystander = cluster.connect(&listener, "r8").await;
    let mut requests = bystander.http().await;
    let over = Arc::new(AtomicBool::new(false));
    let unharmed = tokio::spawn({
        let over = over.clone();
        async move {
            let mut answered = 0;
            while !over.load(Ordering::Relaxed) {
                let body = format!("request {answered}");
                assert_eq!(post(&mut requests, body.clone()).await.unwrap().1, body);
                answered += 1;
            }
            answered
        }
    });

    // What grows to its working size does so here.
    give_up(&raw, 3_000).await;
    eventually("nothing runs", || listener.metrics().running_requests() <= 1).await;
    let before = held();
    give_up(&raw, 10_000).await;
    over.store(true, Ordering::Relaxed);
    let answered = within(unharmed).await.unwrap();
    eventually("nothing runs", || listener.metrics().running_requests() == 0).await;
    let after = held();

    assert!(answered > 10, "{answered}");
    assert_eq!(after.descriptors, before.descriptors);
    let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
    assert!(grown < 8 * 1024 * 1024, "{grown} bytes more than before");
    assert_eq!(attacker.quic.close_reason(), None);
    assert_eq!(listener.metrics().active_connections(), 2);
}
