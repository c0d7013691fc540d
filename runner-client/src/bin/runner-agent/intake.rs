//! What a write must be, before it is taken: what no store would take is refused at once, with the reason.

use std::io::Read as _;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode};
use telemetry_proto::limits::{MAX_BODY_BYTES, MAX_FIELD_NAME_BYTES};
use telemetry_runner_client::{RawBatch, Signal};

use crate::{spans, stamp};

/// A refusal: its status, and what to tell people.
pub(crate) type Refusal = (StatusCode, &'static str);

/// The head of a write that may be taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) signal: Signal,
    is_gzip: bool,
    query: Option<Box<str>>,
}

/// The largest body, as received and as decoded: one batch.
pub(crate) const MAX_BYTES: usize = 32 * 1024 * 1024;
const _: () = assert!(MAX_BYTES as u64 == MAX_BODY_BYTES);

const TOO_LARGE: Refusal = (StatusCode::PAYLOAD_TOO_LARGE, "a body has at most 32 MiB, decoded or not");

impl Head {
    /// Checks query and headers.
    pub(crate) fn parse(signal: Signal, parts: &Parts) -> Result<Self, Refusal> {
        let query = query(signal, parts.uri.query())?;
        let headers = &parts.headers;
        let unsupported = |what| (StatusCode::UNSUPPORTED_MEDIA_TYPE, what);
        let content_type = single(headers, &CONTENT_TYPE)?;
        if !signal.accepts_content_type(content_type) {
            return Err(unsupported(match signal {
                Signal::Metrics => "metrics are text/plain: lines of Prometheus text",
                Signal::Logs => {
                    "logs are application/x-ndjson, application/stream+json, application/json or text/plain"
                }
                Signal::Traces => "traces are application/x-protobuf: OTLP, not JSON",
            }));
        }
        let is_gzip = match single(headers, &CONTENT_ENCODING)? {
            None => false,
            Some(encoding) if encoding.eq_ignore_ascii_case("identity") => false,
            Some(encoding) if encoding.eq_ignore_ascii_case("gzip") => true,
            Some(_) => return Err(unsupported("a body is plain or gzip")),
        };
        let length = single(headers, &CONTENT_LENGTH)?.and_then(|length| length.parse::<u64>().ok());
        if length.is_some_and(|length| length > MAX_BODY_BYTES) {
            return Err(TOO_LARGE);
        }
        Ok(Self { signal, is_gzip, query })
    }

    /// Decodes and checks the body; metrics without a timestamp get that of now, since their delivery may be hours away.
    /// `None`: there is nothing in it.
    pub(crate) fn batch(self, body: Bytes, now_ms: i64) -> Result<Option<RawBatch>, Refusal> {
        let body = if self.is_gzip { decode(&body)? } else { body };
        let unreadable = |what| Err((StatusCode::BAD_REQUEST, what));
        let Self { signal, query, .. } = self;
        let (body, items) = match signal {
            Signal::Metrics => match stamp::stamp(&body, now_ms) {
                (_, 0) if stamp::has_points(&body) => return unreadable("no line of these metrics can be read"),
                (stamped, points) => (stamped.map_or(body, Bytes::from), points),
            },
            Signal::Logs => match lines(&body).filter(|line| is_object(line)).count() as u64 {
                0 if lines(&body).next().is_some() => return unreadable("no line of these logs is a JSON object"),
                records => (body, records),
            },
            Signal::Traces => match spans::count(&body) {
                Some(spans) => (body, spans),
                None => return unreadable("this is no OTLP export request of traces"),
            },
        };
        if body.len() > MAX_BYTES {
            return Err(TOO_LARGE);
        }
        Ok((items > 0).then_some(RawBatch { signal, body, items, query }))
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

fn query(signal: Signal, query: Option<&str>) -> Result<Option<Box<str>>, Refusal> {
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
        if signal != Signal::Logs || !is_name || std::mem::replace(slot, true) {
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
