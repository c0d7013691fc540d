//! What is written: lines that name their source, attempt and number.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use telemetry_proto::Signal;
use telemetry_proto::exposition::{Point, write_point};
use telemetry_runner_client::LogRecord;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::witness::{ATTEMPT, METRIC, NUMBER, Run, SOURCE};

/// How much a source writes, and how often.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Items at a time.
    pub(super) items: u32,
    /// The pause in between.
    pub(super) pause: Duration,
    /// Bytes of ballast of each log line, which do not compress well.
    pub(super) ballast: usize,
}

/// A point. Its value is its number; each has a millisecond of its own, so that no store can take two for one.
pub(super) fn point(source: &str, attempt: u32, number: u32, start: SystemTime) -> Point<'static> {
    let start_ms = start.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    Point::new(METRIC, number.into())
        .label(SOURCE, source.to_owned())
        .label(ATTEMPT, attempt.to_string())
        .at(i64::try_from(start_ms).unwrap_or_default() + i64::from(number))
}

/// A record.
pub(super) fn record(source: &str, number: u32, ballast: usize) -> LogRecord<'static> {
    LogRecord::new("chaos", "stdout", "an item")
        .attribute(SOURCE, source.to_owned())
        .attribute(ATTEMPT, "0")
        .attribute(NUMBER, number.to_string())
        .attribute("ballast", self::ballast(number, ballast))
}

/// The body of a request to an agent.
pub(super) fn body(signal: Signal, source: &str, run: Run, start: SystemTime, shape: Shape) -> Vec<u8> {
    let mut body = Vec::new();
    if signal == Signal::Metrics {
        run.items().for_each(|item| write_point(&mut body, &point(source, item.attempt, item.number, start)));
        return body;
    }
    let mut lines = String::new();
    let time = OffsetDateTime::from(SystemTime::now()).format(&Rfc3339).unwrap_or_default();
    for item in run.items() {
        let ballast = ballast(item.number, shape.ballast);
        // A string takes whatever is written.
        let _ = writeln!(
            lines,
            "{{\"_time\":\"{time}\",\"_msg\":\"an item\",\"entity\":\"chaos\",\"stream\":\"stdout\",\"{SOURCE}\":\"{source}\",\
             \"{ATTEMPT}\":\"{}\",\"{NUMBER}\":\"{}\",\"ballast\":\"{ballast}\"}}",
            item.attempt, item.number
        );
    }
    lines.into_bytes()
}

fn ballast(number: u32, bytes: usize) -> String {
    let mut rng = Rng::with_seed(number.into());
    std::iter::repeat_with(|| rng.alphanumeric()).take(bytes).collect()
}
