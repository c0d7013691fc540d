//! What a write must be, before it is taken: what no store would take is refused at once, with the reason.

use std::io::Read as _;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode};
use telemetry_proto::limits::{MAX_BODY_BYTES, MAX_FIELD_NAME_BYTES};
use telemetry_runner_client::{DropReason, RawBatch, Signal};

use crate::{remote_write, spans, stamp};

/// A refusal: its status, and what to tell people.
pub(crate) type Refusal = (StatusCode, &'static str);

/// The head of a write that may be taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    write: Write,
    encoding: Encoding,
    query: Option<Box<str>>,
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    /// What the store of the signal takes as it is.
    Plain(Signal),
    /// Prometheus remote write, which becomes lines.
    RemoteWrite,
}

impl Write {
    pub(crate) const fn signal(self) -> Signal {
        match self {
            Self::Plain(signal) => signal,
            Self::RemoteWrite => Signal::Metrics,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
    Snappy,
}

/// A body that was looked at.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// What is to be delivered, if anything is.
    pub(crate) batch: Option<RawBatch>,
    /// Items that were left out, since no store would keep them.
    pub(crate) left_out: Vec<(DropReason, u64)>,
    /// What came with the points and is kept nowhere: what it is, and how often.
    pub(crate) ignored: Vec<(&'static str, u64)>,
    /// Lines that can't be read. They are in the batch, and the store skips them.
    pub(crate) unreadable: u64,
}

/// The largest body, as received and as decoded: one batch.
pub(crate) const MAX_BYTES: usize = 32 * 1024 * 1024;
const _: () = assert!(MAX_BYTES as u64 == MAX_BODY_BYTES);

pub(crate) const TOO_LARGE: Refusal = (StatusCode::PAYLOAD_TOO_LARGE, "a body has at most 32 MiB, decoded or not");

impl Head {
    /// Checks query and headers.
    pub(crate) fn parse(write: Write, parts: &Parts) -> Result<Self, Refusal> {
        let query = query(write, parts.uri.query())?;
        let headers = &parts.headers;
        check_content_type(write, single(headers, &CONTENT_TYPE)?)?;
        let encoding = encoding(write, single(headers, &CONTENT_ENCODING)?)?;
        let length = single(headers, &CONTENT_LENGTH)?.and_then(|length| length.parse::<u64>().ok());
        if length.is_some_and(|length| length > MAX_BODY_BYTES) {
            return Err(TOO_LARGE);
        }
        Ok(Self { write, encoding, query })
    }

    /// Whether the body may be larger than it looks.
    pub(crate) fn is_encoded(&self) -> bool {
        self.encoding != Encoding::Identity
    }

    /// Decodes and checks the body.
    pub(crate) fn check(self, body: Bytes, now_ms: i64) -> Result<Checked, Refusal> {
        let body = match self.encoding {
            Encoding::Identity => body,
            Encoding::Gzip => decode(&body)?,
            Encoding::Snappy => remote_write::decompress(&body)?.into(),
        };
        match self.write {
            Write::Plain(signal) => check(signal, body, self.query, now_ms),
            Write::RemoteWrite => Ok(translate(&body)?),
        }
    }
}

/// Checks a decoded body. Metrics without a timestamp get that of now, since their delivery may be hours away.
pub(crate) fn check(signal: Signal, body: Bytes, query: Option<Box<str>>, now_ms: i64) -> Result<Checked, Refusal> {
    let unreadable = |what| Err((StatusCode::BAD_REQUEST, what));
    let mut checked = Checked::default();
    let (body, items) = match signal {
        Signal::Metrics => {
            let stamped = stamp::stamp(&body, now_ms);
            if stamped.points + stamped.not_numbers == 0 && stamped.unreadable > 0 {
                return unreadable("no line of these metrics can be read");
            }
            checked.left_out = vec![(DropReason::NotANumber, stamped.not_numbers)];
            checked.unreadable = stamped.unreadable;
            (stamped.body.map_or(body, Bytes::from), stamped.points)
        }
        Signal::Logs => {
            let (all, records) =
                lines(&body).fold((0, 0), |(all, records), line| (all + 1, records + u64::from(is_object(line))));
            if records == 0 && all > 0 {
                return unreadable("no line of these logs is a JSON object");
            }
            checked.unreadable = all - records;
            (body, records)
        }
        Signal::Traces => match spans::count(&body) {
            Some(spans) => (body, spans),
            None => return unreadable("this is no OTLP export request of traces"),
        },
    };
    if body.len() > MAX_BYTES {
        return Err(TOO_LARGE);
    }
    checked.batch = (items > 0).then_some(RawBatch { signal, body, items, query });
    Ok(checked)
}

fn translate(request: &[u8]) -> Result<Checked, remote_write::Fault> {
    let lines = remote_write::translate(request)?;
    let (items, body) = (lines.points, Bytes::from(lines.body));
    Ok(Checked {
        batch: (items > 0).then_some(RawBatch { signal: Signal::Metrics, body, items, query: None }),
        left_out: vec![(DropReason::StaleMarker, lines.stale_markers), (DropReason::NotANumber, lines.not_numbers)],
        ignored: vec![("exemplar", lines.exemplars), ("metadata", lines.metadata)],
        unreadable: 0,
    })
}

const fn unsupported(what: &'static str) -> Refusal {
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, what)
}

fn check_content_type(write: Write, content_type: Option<&str>) -> Result<(), Refusal> {
    let is_accepted = match write {
        Write::Plain(signal) => signal.accepts_content_type(content_type),
        // Version 2.0 is told by a parameter.
        Write::RemoteWrite => content_type.is_none_or(|content_type| {
            let (essence, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
            essence.trim().eq_ignore_ascii_case("application/x-protobuf")
                && matches!(parameters.trim(), "" | "proto=prometheus.WriteRequest")
        }),
    };
    if is_accepted {
        return Ok(());
    }
    Err(unsupported(match write {
        Write::Plain(Signal::Metrics) => "metrics are text/plain: lines of Prometheus text",
        Write::Plain(Signal::Logs) => {
            "logs are application/x-ndjson, application/stream+json, application/json or text/plain"
        }
        Write::Plain(Signal::Traces) => "traces are application/x-protobuf: OTLP, not JSON",
        Write::RemoteWrite => "remote write is application/x-protobuf: version 1.0, prometheus.WriteRequest",
    }))
}

fn encoding(write: Write, encoding: Option<&str>) -> Result<Encoding, Refusal> {
    let encoding = encoding.map(str::to_ascii_lowercase);
    match (write, encoding.as_deref()) {
        // Absent too: version 1.0 knows no other.
        (Write::RemoteWrite, None | Some("snappy")) => Ok(Encoding::Snappy),
        // Whereupon vmagent goes over to snappy, for good.
        (Write::RemoteWrite, Some(_)) => Err(unsupported("remote write is a snappy block; zstd is not taken")),
        (Write::Plain(_), None | Some("identity")) => Ok(Encoding::Identity),
        (Write::Plain(_), Some("gzip")) => Ok(Encoding::Gzip),
        (Write::Plain(_), Some(_)) => Err(unsupported("a body is plain or gzip")),
    }
}

/// Lines that hold something.
pub(crate) fn lines(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty())
}

/// The store skips a line that is none.
fn is_object(line: &[u8]) -> bool {
    line.trim_ascii_start().starts_with(b"{") && serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok()
}

/// The time of day, in milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn query(write: Write, query: Option<&str>) -> Result<Option<Box<str>>, Refusal> {
    let refusal =
        (StatusCode::BAD_REQUEST, "no query is taken, but for _msg_field and _time_field of logs, one name each");
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(None) };
    let mut seen = [false; 2];
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let slot = match &*name {
            "_msg_field" => &mut seen[0],
            "_time_field" => &mut seen[1],
            _ => return Err(refusal),
        };
        let is_name = (1..=MAX_FIELD_NAME_BYTES).contains(&value.len())
            && !value.contains(|c: char| c == ',' || c == char::REPLACEMENT_CHARACTER || c.is_control());
        if write != Write::Plain(Signal::Logs) || !is_name || std::mem::replace(slot, true) {
            return Err(refusal);
        }
    }
    Ok(Some(query.into()))
}

fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Refusal> {
    let refusal = (StatusCode::BAD_REQUEST, "a header is repeated, or is no text");
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(|text| Some(text.trim())).map_err(|_| refusal),
        (Some(_), Some(_)) => Err(refusal),
    }
}

/// Decodes gzip up to the limit.
fn decode(body: &[u8]) -> Result<Bytes, Refusal> {
    let malformed = |_| (StatusCode::BAD_REQUEST, "the body is no whole gzip");
    let mut decoded = Vec::new();
    let mut decoder = MultiGzDecoder::new(body).take(MAX_BODY_BYTES + 1);
    decoder.read_to_end(&mut decoded).map_err(malformed)?;
    if decoded.len() > MAX_BYTES { Err(TOO_LARGE) } else { Ok(decoded.into()) }
}
