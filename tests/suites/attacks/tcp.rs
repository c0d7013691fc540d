//! Attacks over TCP: on TLS, HTTP/2 and HTTP/1.1.

use std::time::{Duration, Instant};

use telemetry_proto::{Signal, header};
use telemetry_rig::outcome;
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::{Suite, TestResult};
use telemetry_rig::tcp::frames::{
    self, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    frame,
};
use telemetry_rig::tcp::{Flooded, Http};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::NEEDS;
use crate::arena::{ATTACKER, withstand, withstand_twice};

pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .expecting("tcp_ten_thousand_resets_end_the_connection", "connection closed before the last", NEEDS, || {
            withstand(resets)
        })
        .expecting("tcp_headers_without_end_end_the_connection", "connection closed before the last", NEEDS, || {
            withstand(endless_headers)
        })
        .expecting("tcp_huge_headers_are_refused", "431 or connection closed; nothing is stored of it", NEEDS, || {
            withstand(huge_headers)
        })
        .expecting("tcp_frames_without_effect_end_the_connection", "connection closed before a million", NEEDS, || {
            withstand(useless_frames)
        })
        .expecting("tcp_a_compressed_bomb_of_fields_is_refused", "refused, reset or connection closed", NEEDS, || {
            withstand(bomb)
        })
        .expecting("tcp_headers_and_bodies_that_trickle_hold_little", "they hold nobody up", NEEDS, || {
            withstand(slowness)
        })
        .expecting(
            "tcp_handshakes_that_never_end_are_bounded",
            "at least 300 of 500 from one address are closed at once",
            NEEDS,
            || withstand_twice(handshakes),
        )
        .expecting("tcp_what_is_no_http_is_refused", "no answer of success", NEEDS, || withstand(nonsense))
}

/// `POST` to a path that there is none of, so that each is answered at once if it is not given up.
fn fields(token: &str) -> Vec<(&'static str, String)> {
    vec![
        (":method", "POST".to_owned()),
        (":scheme", "https".to_owned()),
        (":authority", "localhost".to_owned()),
        (":path", Signal::Metrics.write_path().to_owned()),
        ("miren-workload-token", token.to_owned()),
        ("content-length", "100".to_owned()),
    ]
}

/// CVE-2023-44487, and CVE-2025-8671 where the relay resets.
async fn resets(rig: &Rig) -> TestResult {
    let head = frames::section(&fields(&rig.token(ATTACKER)));
    let resets: [&dyn Fn(u32) -> Vec<u8>; 3] = [
        &|stream| frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()),
        // A window that overflows, and a body longer than announced: the relay is to reset the stream.
        &|stream| frame(WINDOW_UPDATE, 0, stream, &(u32::MAX >> 1).to_be_bytes()),
        &|stream| frame(DATA, END_STREAM, stream, &[b'x'; 101]),
    ];
    for reset in resets {
        let mut client = rig.tcp_bytes(ATTACKER, Http::Two).await?;
        client.send(&frames::hello(&[])).await?;
        let mut streams = (1..20_000).step_by(2);
        let next = || {
            let stream = streams.next()?;
            Some([frame(HEADERS, END_HEADERS, stream, &head), reset(stream)].concat())
        };
        ended_by(client.flood(next).await, "10,000 requests were given up on one connection");
    }
    Ok(())
}

/// VU#421644.
async fn endless_headers(rig: &Rig) -> TestResult {
    let head = frames::section(&fields(&rig.token(ATTACKER)));
    let more = frames::section(&[("x-more", "y".repeat(1_000))]);
    for continuation in [frame(CONTINUATION, 0, 1, &[]), frame(CONTINUATION, 0, 1, &more)] {
        let mut client = rig.tcp_bytes(ATTACKER, Http::Two).await?;
        client.send(&[frames::hello(&[]), frame(HEADERS, 0, 1, &head)].concat()).await?;
        let mut count = 0..100_000;
        ended_by(client.flood(|| count.next().map(|_| continuation.clone())).await, "100,000 continuations");
    }
    let mut client = rig.tcp_bytes(ATTACKER, Http::One).await?;
    client.send(b"POST / HTTP/1.1\r\n").await?;
    let mut lines = 0..100_000;
    ended_by(client.flood(|| lines.next().map(|_| b"x-more: yyyyyyyyyyyyyyyy\r\n".to_vec())).await, "100,000 lines");
    Ok(())
}

async fn huge_headers(rig: &Rig) -> TestResult {
    let token = rig.token(ATTACKER);
    for bytes in [64 * 1024, 1024 * 1024] {
        let huge = "x".repeat(bytes);
        let mut client = rig.tcp_bytes(ATTACKER, Http::One).await?;
        let head =
            format!("POST / HTTP/1.1\r\nhost: c\r\n{}: {token}\r\nx-huge: {huge}\r\n\r\n", header::WORKLOAD_TOKEN);
        // The answer may come before all is sent.
        let _ = client.send(head.as_bytes()).await;
        let answer = client.receive_all().await;
        outcome::saw(frames::what_came(&answer));
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");

        let mut client = rig.tcp_bytes(ATTACKER, Http::Two).await?;
        client.send(&frames::hello(&[])).await?;
        let mut fields = fields(&token);
        fields.push(("x-huge", huge));
        let section = frames::section(&fields);
        let mut pieces = section.chunks(16_384).enumerate();
        let count = section.len().div_ceil(16_384);
        let next = || {
            let (at, piece) = pieces.next()?;
            let kind = if at == 0 { HEADERS } else { CONTINUATION };
            Some(frame(kind, if at + 1 == count { END_HEADERS } else { 0 }, 1, piece))
        };
        // A whole one of 64 KiB is answered with 431 and its connection goes on; that is well.
        match tokio::time::timeout(Duration::from_secs(2), client.flood(next)).await {
            Ok(flooded) => outcome::saw(flooded.to_string()),
            Err(_) => outcome::saw("the connection goes on"),
        }
    }
    assert!(rig.metrics_store().samples().await?.len() <= 2);
    Ok(())
}

async fn useless_frames(rig: &Rig) -> TestResult {
    let head = frames::section(&fields(&rig.token(ATTACKER)));
    for useless in [
        frame(PING, 0, 0, &[0; 8]),
        frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]),
        frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
        frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 1]),
        frame(DATA, 0, 1, &[]),
        frame(0xfa, 0, 0, &[0; 8]),
    ] {
        let mut client = rig.tcp_bytes(ATTACKER, Http::Two).await?;
        client.send(&[frames::hello(&[]), frame(HEADERS, END_HEADERS, 1, &head)].concat()).await?;
        let many = useless.repeat(100);
        let mut count = 0..10_000;
        let flooded = client.flood(|| count.next().map(|_| many.clone())).await;
        ended_by(flooded, &format!("a million frames of type {}", useless[3]));
    }
    Ok(())
}

/// One field in the dynamic table of HPACK, repeated by references of one byte each (CVE-2016-6581).
async fn bomb(rig: &Rig) -> TestResult {
    let mut section = frames::section(&fields(&rig.token(ATTACKER)));
    // Literal with incremental indexing, a name and a value of 3,000 bytes; then index 62, the youngest entry.
    section.extend_from_slice(&[0x40, 1, b'x', 0x7f, 0xb9, 0x16]);
    section.extend_from_slice(&[b'y'; 3_000]);
    section.extend_from_slice(&[0xbe; 10_000]);
    let mut client = rig.tcp_bytes(ATTACKER, Http::Two).await?;
    client.send(&[frames::hello(&[]), frame(HEADERS, END_HEADERS, 1, &section)].concat()).await?;
    let mut answer = Vec::new();
    while frames::of_kind(&answer, HEADERS).is_empty() && !crate::tcp::is_reset(&answer) {
        let more = client.receive().await?;
        if more.is_empty() {
            break;
        }
        answer.extend_from_slice(&more);
    }
    outcome::saw(frames::what_came(&answer));
    Ok(())
}

/// The connection did not last so long.
fn ended_by(flooded: Flooded, too_much: &str) {
    outcome::saw(flooded.to_string());
    assert!(flooded.had_enough, "{too_much}");
}

fn is_reset(answer: &[u8]) -> bool {
    !(frames::of_kind(answer, RST_STREAM).is_empty() && frames::of_kind(answer, frames::GOAWAY).is_empty())
}

/// Slowloris, and bodies of a byte: as many as one runner can have.
async fn slowness(rig: &Rig) -> TestResult {
    let token = rig.token(ATTACKER);
    let head = frames::section(&fields(&token));
    let mut clients = Vec::new();
    for number in 0..16 {
        let (http, begin) = match number % 4 {
            0 => (Http::One, b"POST / HTTP/1.1\r\nhost: c\r\nx-sl".to_vec()),
            1 => (Http::Two, [frames::hello(&[]), frame(HEADERS, 0, 1, &head)].concat()),
            2 => (Http::Two, frames::PREFACE[..12].to_vec()),
            _ => {
                let write =
                    |stream| [frame(HEADERS, END_HEADERS, stream, &head), frame(DATA, 0, stream, b"x")].concat();
                (
                    Http::Two,
                    std::iter::once(frames::hello(&[])).chain((1..100).step_by(2).map(write)).flatten().collect(),
                )
            }
        };
        let mut client = rig.tcp_bytes(ATTACKER, http).await?;
        client.send(&begin).await?;
        clients.push(client);
    }
    let came = Instant::now();
    crate::arena::serves_honest_runners(rig).await?;
    let (waiting, served) = (clients.len(), came.elapsed().as_millis());
    outcome::saw(format!("{waiting} connections wait, an honest runner was served within {served} ms"));
    Ok(())
}

/// From one network: its share of handshakes is bounded, and theirs is the only descriptor that each costs.
async fn handshakes(rig: &Rig) -> TestResult {
    let mut silent = Vec::new();
    for _ in 0..500 {
        silent.push(TcpStream::connect(rig.relay_address()).await?);
    }
    // Those beyond the share are closed at once.
    let mut closed = 0;
    for stream in &mut silent {
        let mut byte = [0];
        if matches!(tokio::time::timeout(Duration::from_millis(20), stream.read(&mut byte)).await, Ok(Ok(0) | Err(_))) {
            closed += 1;
        }
        if closed > 400 {
            break;
        }
    }
    outcome::saw(format!("{closed} were closed at once"));
    assert!(closed >= 300, "{closed} of 500 were closed");
    Ok(())
}

async fn nonsense(rig: &Rig) -> TestResult {
    for (http, bytes) in [
        (Http::One, &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..]),
        (Http::One, frames::PREFACE),
        (Http::One, b"GET / HTTP/9.9\r\n\r\n"),
        (Http::One, b"POST / HTTP/1.1\r\nhost: c\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n"),
        (Http::One, b"CONNECT store:8428 HTTP/1.1\r\nhost: store:8428\r\n\r\n"),
        (Http::One, b"GET / HTTP/1.1\r\nhost: c\r\nupgrade: h2c\r\nconnection: upgrade, http2-settings\r\n\r\n"),
        (Http::Two, b"GET / HTTP/1.1\r\nhost: c\r\n\r\n"),
        (Http::Two, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
    ] {
        let mut client = rig.tcp_bytes(ATTACKER, http).await?;
        client.send(bytes).await?;
        let _ = client.finish().await;
        let answer = client.receive_all().await;
        outcome::saw(frames::what_came(&answer));
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(!answer.contains("HTTP/1.1 2") && !answer.contains("HTTP/1.1 101"), "{answer}");
    }
    Ok(())
}
