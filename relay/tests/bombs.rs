//! Lesson 22: a small body that decodes to a huge one. A program of its own, since it looks at the memory of the process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

mod support;

use std::io::Write;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, HeaderValue};
use support::{Store, Tokens, send, spawn};
use telemetry_proto::Signal;

const DECODED: usize = 512 * 1024 * 1024;

/// Far less than one decoded bomb, and more than the relay, the store and 16 decoders take.
const ALLOWED_BYTES: u64 = 64 * 1024 * 1024;

fn zeros(mut sink: impl Write) {
    let zeros = vec![0; 1024 * 1024];
    for _ in 0..DECODED / zeros.len() {
        sink.write_all(&zeros).unwrap();
    }
}

fn zstd_bomb() -> Bytes {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
    zeros(&mut encoder);
    encoder.finish().unwrap().into()
}

fn gzip_bomb() -> Bytes {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    zeros(&mut encoder);
    encoder.finish().unwrap().into()
}

/// A line of `/proc/self/status`, in bytes.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lesson_22_bombs_are_413_and_cost_no_memory_and_nobody_else_anything() {
    let bombs = [("zstd", zstd_bomb()), ("gzip", gzip_bomb())];
    assert!(bombs[0].1.len() < 20_000, "a bomb of {} bytes is no 16 KB", bombs[0].1.len());
    let tokens = Tokens::new();
    let store = Store::start().await;
    let mut settings = store.settings();
    settings.zstd = true;
    let service = tokens.relay().store(Signal::Logs, settings).build();
    let (bomber, other) = (tokens.runner("bomber", "", ""), tokens.runner("other", "", ""));

    let before = memory("VmRSS:");
    let mut responses = Vec::new();
    for (encoding, bomb) in bombs.iter().cycle().take(16) {
        let mut request = bomber.write_of(Signal::Logs, bomb.clone());
        request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
        responses.push(spawn(&service, request));
        assert_eq!(send(&service, other.write(Signal::Logs)).await.brief(), "204");
    }
    for response in responses {
        assert_eq!(response.await.unwrap().brief(), "413 decoded-too-large");
    }
    let grown = memory("VmHWM:").saturating_sub(before);
    assert!(grown < ALLOWED_BYTES, "{} MiB more at the peak", grown / 1024 / 1024);
    assert_eq!(service.reserved_body_bytes(), 0);
    assert_eq!(store.recorded().len(), 16, "nothing of a bomb has gone anywhere");
}
