//! How fast bodies without the coordinator's marker pass the search for it. Prints a table; to be run optimised:
//!
//! ```text
//! cargo run --release -p telemetry-relay --example marker_bench
//! ```
//!
//! `scan` is the search alone; `body` is the reading of a whole body as the relay does it, with the search and without.
//! Speeds are of decoded bytes, for bodies in pieces of one QUIC packet and of 64 KiB.

use std::convert::Infallible;
use std::error::Error;
use std::hint::black_box;
use std::io::Write as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use telemetry_proto::exposition::{ControlScan, Point, write_point};
use telemetry_relay::Workers;
use telemetry_relay::admission::BodyReservation;
use telemetry_relay::intake::{BodyLimits, Encoding, LogFields, WriteHead, read_whole};

const BODY_BYTES: usize = 16 * 1024 * 1024;
const MEASURE: Duration = Duration::from_secs(2);
const PIECES: [(&str, usize); 2] = [("1.2 KiB", 1_200), ("64 KiB", 64 * 1024)];

type Outcome = Result<(), Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let text = text();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&text)?;
    let zipped = encoder.finish()?;
    println!("a body of {} MiB, {} KiB as gzip\n", text.len() >> 20, zipped.len() >> 10);
    println!("{:<28} {:>8} {:>10}", "what", "pieces", "GB/s");
    for (label, size) in PIECES {
        let speed = measure(text.len(), async || scan(&text, size)).await?;
        row("scan", label, speed);
        for (what, body, encoding) in [("body", &text, Encoding::Identity), ("body, gzip", &zipped, Encoding::Gzip)] {
            let pieces = split(body, size);
            let with = measure(text.len(), async || read(&pieces, encoding, true).await).await?;
            let without = measure(text.len(), async || read(&pieces, encoding, false).await).await?;
            row(what, label, with);
            row(&format!("{what}, without search"), label, without);
        }
    }
    Ok(())
}

fn row(what: &str, pieces: &str, speed: f64) {
    println!("{what:<28} {pieces:>8} {speed:>10.2}");
}

/// Series as runners write them, slashes and the like included.
fn text() -> Vec<u8> {
    let mut text = Vec::with_capacity(BODY_BYTES + 1_024);
    for i in 0_u32.. {
        if text.len() >= BODY_BYTES {
            break;
        }
        let point = Point::new("miren_container_memory_bytes", f64::from(i) * 1.5)
            .label("entity", format!("sandbox/{:08x}", i.wrapping_mul(2_654_435_761)))
            .label("image", "registry.example/apps/web:1.4")
            .label("path", format!("/sys/fs/cgroup/miren/container-{}", i % 97))
            .at(1_790_000_000_000 + i64::from(i));
        write_point(&mut text, &point);
    }
    text
}

fn split(body: &[u8], size: usize) -> Vec<Bytes> {
    let body = Bytes::copy_from_slice(body);
    (0..body.len()).step_by(size).map(|start| body.slice(start..body.len().min(start + size))).collect()
}

fn scan(text: &[u8], size: usize) -> Outcome {
    let mut scan = ControlScan::new();
    text.chunks(size).for_each(|piece| scan.feed(piece));
    if black_box(scan.found()) { Err("the marker is in the body".into()) } else { Ok(()) }
}

async fn read(pieces: &[Bytes], encoding: Encoding, look_for_marker: bool) -> Outcome {
    let head = WriteHead {
        content_length: Some(pieces.iter().map(|piece| piece.len() as u64).sum()),
        encoding,
        operational: false,
        batch_id: None,
        log_fields: LogFields::default(),
    };
    let frames = pieces.iter().map(|piece| Ok::<_, Infallible>(Frame::data(piece.clone())));
    let body = StreamBody::new(stream::iter(frames));
    let limits = BodyLimits::default();
    let body =
        read_whole(body, &head, limits, look_for_marker, BodyReservation::unlimited(), &Workers::default()).await;
    black_box(body.map_err(|reason| reason.as_str())?);
    Ok(())
}

/// Decoded bytes a second, in units of 10^9.
async fn measure(bytes: usize, run: impl AsyncFn() -> Outcome) -> Result<f64, Box<dyn Error>> {
    run().await?;
    let mut rounds = 0_u32;
    let started = Instant::now();
    while started.elapsed() < MEASURE {
        run().await?;
        rounds += 1;
    }
    #[expect(clippy::cast_precision_loss, reason = "a speed for people")]
    let bytes = bytes as f64 * f64::from(rounds);
    Ok(bytes / started.elapsed().as_secs_f64() / 1e9)
}
