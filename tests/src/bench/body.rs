//! What is written: text lines as an exporter has them.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

/// How many series a body has at most: stores are to be busy with points, not with new series.
const SERIES: usize = 200;

/// A body of exactly `bytes`: lines of Prometheus text with timestamps, the last one padded.
pub(super) fn of_size(bytes: usize) -> Bytes {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let mut text = String::with_capacity(bytes + 128);
    for number in 0.. {
        let line = line(number, now);
        if text.len() + 2 * line.len() > bytes {
            break;
        }
        text.push_str(&line);
    }
    pad(&mut text, bytes);
    text.into()
}

fn line(number: usize, now_ms: u128) -> String {
    let (series, step) = (number % SERIES, (number / SERIES) as u128);
    let mut line = String::new();
    let _ = writeln!(
        line,
        "bench_node_cpu_seconds_total{{cpu=\"{}\",mode=\"user\"}} {}.{:02} {}",
        series,
        41_000 + number,
        number % 100,
        now_ms - step * 1_000,
    );
    line
}

/// A label of any length fills what is left.
fn pad(text: &mut String, bytes: usize) {
    const EMPTY: &str = "bench_pad{pad=\"\"} 1\n";
    if let Some(room) = bytes.checked_sub(text.len() + EMPTY.len()) {
        let _ = writeln!(text, "bench_pad{{pad=\"{}\"}} 1", "x".repeat(room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_its_size_and_ends_with_a_line() {
        for bytes in [64, 1 << 10, 64 << 10, 1 << 20] {
            let body = of_size(bytes);
            assert_eq!(body.len(), bytes);
            assert!(body.ends_with(b"\n"));
        }
    }
}
