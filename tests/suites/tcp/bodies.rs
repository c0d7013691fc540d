//! Bodies that are not what they claim: nothing but a whole one reaches a store over TCP either.

use telemetry_proto::{Signal, header};
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::{Suite, TestResult};
use telemetry_rig::tcp::Http;
use telemetry_rig::tcp::frames::{self, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, frame};
use telemetry_rig::wait;

use std::time::Duration;

pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .test("a_body_cut_off_over_tcp_never_reaches_the_store", &[], a_body_cut_off_over_tcp_never_reaches_the_store)
        .test("a_body_longer_than_announced_is_refused", &[], a_body_longer_than_announced_is_refused)
        .test("a_smuggled_request_is_none", &[], a_smuggled_request_is_none)
}

const BODY: &str = "first{a=\"b\"} 1 1790000000000\nsecond 22222 1790000000000\n";

/// All that comes before the body of a metrics write; over HTTP/2 the beginning of the connection too.
pub(crate) fn head(http: Http, token: &str, length: u64) -> Vec<u8> {
    let path = Signal::Metrics.write_path();
    let token_header = header::WORKLOAD_TOKEN;
    match http {
        Http::One => {
            format!("POST {path} HTTP/1.1\r\nhost: c\r\n{token_header}: {token}\r\ncontent-length: {length}\r\n\r\n")
                .into()
        }
        Http::Two => [frames::hello(&[]), headers(1, token, &length.to_string())].concat(),
    }
}

/// The HEADERS frame of a metrics write.
fn headers(stream: u32, token: &str, length: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", Signal::Metrics.write_path()),
        ("miren-workload-token", token),
        ("content-length", length),
    ];
    frame(HEADERS, END_HEADERS, stream, &frames::section(&fields))
}

/// Whether the other side has given up the request or the connection, over HTTP/2.
pub(crate) fn is_reset(http: Http, answer: &[u8]) -> bool {
    http == Http::Two && !(frames::of_kind(answer, RST_STREAM).is_empty() && frames::of_kind(answer, GOAWAY).is_empty())
}

#[derive(Debug, Clone, Copy)]
enum Cut {
    /// The stream, or over HTTP/1.1 the sending half of the connection, ends in good order.
    Finished,
    /// The stream is reset.
    Reset,
    /// The connection breaks.
    Lost,
}

async fn a_body_cut_off_over_tcp_never_reaches_the_store() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let token = rig.token(0);
    for (http, cut) in [
        (Http::One, Cut::Finished),
        (Http::One, Cut::Lost),
        (Http::Two, Cut::Finished),
        (Http::Two, Cut::Reset),
        (Http::Two, Cut::Lost),
    ] {
        // Every byte of the last line, where a cut makes another number of it, and some before.
        for bytes in (0..BODY.len()).filter(|bytes| *bytes > 28 || bytes % 7 == 0) {
            let body = &BODY.as_bytes()[..bytes];
            let mut client = rig.tcp_bytes(0, http).await?;
            let mut request = head(http, &token, BODY.len() as u64);
            match (http, cut) {
                (Http::One, _) => request.extend_from_slice(body),
                (Http::Two, Cut::Finished) => request.extend(frame(DATA, END_STREAM, 1, body)),
                (Http::Two, _) => request.extend(frame(DATA, 0, 1, body)),
            }
            client.send(&request).await?;
            match (http, cut) {
                (_, Cut::Lost) => continue,
                (Http::One, _) => {
                    client.finish().await?;
                    let answer = String::from_utf8_lossy(&client.receive_all().await).into_owned();
                    assert!(!answer.contains("HTTP/1.1 2"), "{answer}");
                }
                (Http::Two, Cut::Reset) => client.send(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])).await?,
                (Http::Two, Cut::Finished) => {
                    let mut answer = Vec::new();
                    while !is_reset(http, &answer) {
                        let more = client.receive().await?;
                        assert!(!more.is_empty(), "the stream has an error, not the connection");
                        answer.extend_from_slice(&more);
                    }
                    assert!(frames::of_kind(&answer, GOAWAY).is_empty(), "{answer:?}");
                }
            }
        }
    }
    let calm = async || {
        let telemetry_rig::rig::RigRelay::InProcess(relay) = rig.relay() else { return Err("elsewhere".to_owned()) };
        match relay.load() {
            (0, _) => Ok(()),
            (requests, _) => Err(format!("{requests} requests")),
        }
    };
    wait::until("nothing runs", Duration::from_secs(20), calm).await?;
    assert_eq!(rig.built_in_store().requests().len(), 0);
    for http in Http::BOTH {
        let mut client = rig.tcp_bytes(0, http).await?;
        client.send(&head(http, &token, BODY.len() as u64)).await?;
        let body = match http {
            Http::One => BODY.as_bytes().to_vec(),
            Http::Two => frame(DATA, END_STREAM, 1, BODY.as_bytes()),
        };
        client.send(&body).await?;
        rig.metrics_store().wait_for_samples(2).await?;
    }
    Ok(())
}

/// Over HTTP/2 the stream ends with an error (RFC 9113 section 8.1.1). Over HTTP/1.1 what is more is another request, and
/// no good one.
async fn a_body_longer_than_announced_is_refused() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let token = rig.token(0);
    let mut client = rig.tcp_bytes(0, Http::Two).await?;
    client.send(&head(Http::Two, &token, BODY.len() as u64 - 1)).await?;
    client.send(&frame(DATA, END_STREAM, 1, BODY.as_bytes())).await?;
    let mut answer = Vec::new();
    while !is_reset(Http::Two, &answer) {
        let more = client.receive().await?;
        assert!(!more.is_empty(), "{answer:?}");
        answer.extend_from_slice(&more);
    }
    // Two lengths, and lengths that are none.
    for length in ["x", "-1", "+5", "0x10", ""] {
        let mut client = rig.tcp_bytes(0, Http::Two).await?;
        client.send(&[frames::hello(&[]), headers(1, &token, length)].concat()).await?;
        client.send(&frame(DATA, END_STREAM, 1, BODY.as_bytes())).await?;
        let mut answer = Vec::new();
        while !is_reset(Http::Two, &answer) && frames::of_kind(&answer, DATA).is_empty() {
            let more = client.receive().await?;
            assert!(!more.is_empty(), "{length:?}: {answer:?}");
            answer.extend_from_slice(&more);
        }
    }
    assert_eq!(rig.built_in_store().requests().len(), 0);
    Ok(())
}

/// A request inside the body of another, in each way in which two readers may cut it differently.
async fn a_smuggled_request_is_none() -> TestResult {
    let rig = Rig::builder().runners(2).tcp().start().await?;
    let (path, token) = (Signal::Metrics.write_path(), rig.token(0));
    let smuggled = String::from_utf8(head(Http::One, &token, 12))? + "smuggled 1\n\n";
    let chunked = format!("{:x}\r\n{smuggled}\r\n0\r\n\r\n", smuggled.len());
    let begin = format!("POST {path} HTTP/1.1\r\nhost: c\r\nmiren-workload-token: {token}\r\n");
    for framing in [
        format!("content-length: 0\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"),
        format!("transfer-encoding: chunked\r\ncontent-length: {}\r\n\r\n0\r\n\r\n{smuggled}", 5 + smuggled.len()),
        format!("transfer-encoding: xchunked\r\ncontent-length: 0\r\n\r\n{smuggled}"),
        format!("transfer-encoding: chunked, identity\r\ncontent-length: 0\r\n\r\n{smuggled}"),
        format!("transfer-encoding : chunked\r\ncontent-length: 0\r\n\r\n{smuggled}"),
        format!("content-length: 0\r\ncontent-length: {}\r\n\r\n{smuggled}", smuggled.len()),
        format!("content-length: 0, {}\r\n\r\n{smuggled}", smuggled.len()),
        format!("x: y\rcontent-length: 0\r\n\r\n{smuggled}"),
    ] {
        let mut client = rig.tcp_bytes(0, Http::One).await?;
        client.send(format!("{begin}{framing}").as_bytes()).await?;
        let answer = String::from_utf8_lossy(&client.receive_all().await).into_owned();
        assert!(answer.starts_with("HTTP/1.1 4"), "{framing}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{framing}: {answer}");
    }
    assert_eq!(rig.built_in_store().requests().len(), 0);
    Ok(())
}
