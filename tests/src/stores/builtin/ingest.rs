//! What the real stores make of a write: the arguments that pin labels and fields, and the bodies.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::Value;
use telemetry_proto::{Signal, exposition};
use telemetry_relay::forward::Account;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{LogLine, NO_ACCOUNT, Sample, State, StoredSpan, spans};

/// What a body holds.
pub(super) enum Batch {
    Samples(Account, Vec<Sample>),
    LogLines(Account, Vec<LogLine>),
    Spans(Account, Vec<StoredSpan>),
}

impl Batch {
    /// Reads a body, which takes its time with a large one.
    ///
    /// # Errors
    /// What the store answers to a body that it does not take.
    pub(super) fn read(head: &Parts, body: Bytes) -> Result<Self, StatusCode> {
        let arguments = Arguments::parse(head.uri.query().unwrap_or_default());
        // The real stores read a form as arguments: the payload is lost, and acknowledged.
        let form = header(head, header::CONTENT_TYPE).starts_with(b"application/x-www-form-urlencoded");
        let body = if form { Bytes::new() } else { body };
        let body = decompress(body, header(head, header::CONTENT_ENCODING)).ok_or(StatusCode::BAD_REQUEST)?;
        let path = head.uri.path();
        if let Some(account) = metrics_account(path) {
            return Ok(Self::Samples(account, samples(&body, &arguments)));
        }
        if path == Signal::Traces.store_path() {
            let spans = header_account(head).zip(read_spans(head, &body)).ok_or(StatusCode::BAD_REQUEST)?;
            return Ok(Self::Spans(spans.0, spans.1));
        }
        if path != Signal::Logs.store_path() {
            return Err(StatusCode::NOT_FOUND);
        }
        let lines = header_account(head).zip(log_lines(&body, &arguments)).ok_or(StatusCode::BAD_REQUEST)?;
        Ok(Self::LogLines(lines.0, lines.1))
    }

    /// Stores it and says what the store's answer is.
    pub(super) fn store(self, state: &mut State) -> StatusCode {
        match self {
            Self::Samples(account, samples) => {
                state.samples.extend(samples.into_iter().map(|sample| (account, sample)));
                StatusCode::NO_CONTENT
            }
            Self::LogLines(account, lines) => {
                state.log_lines.extend(lines.into_iter().map(|line| (account, line)));
                StatusCode::OK
            }
            Self::Spans(account, spans) => {
                state.spans.extend(spans.into_iter().map(|span| (account, span)));
                StatusCode::OK
            }
        }
    }
}

/// Parameters of the content type are refused, as later versions of VictoriaTraces do.
fn read_spans(head: &Parts, body: &[u8]) -> Option<Vec<StoredSpan>> {
    let is_protobuf = header(head, header::CONTENT_TYPE) == b"application/x-protobuf";
    is_protobuf.then(|| spans::read(body)).flatten()
}

/// The account that a path of VictoriaMetrics leads to: a single node has one, a cluster takes it from the path. The form
/// of a cluster that takes it from the body is not spoken here.
fn metrics_account(path: &str) -> Option<Account> {
    let single = Signal::Metrics.store_path();
    if path == single {
        return Some(NO_ACCOUNT);
    }
    let (account, rest) = path.strip_prefix("/insert/")?.split_once('/')?;
    (rest.strip_prefix("prometheus") == Some(single)).then(|| account.parse().ok())?
}

/// The account that VictoriaLogs and VictoriaTraces file a request under: the first value of each header counts, none is 0, and what is
/// no number is refused.
fn header_account(head: &Parts) -> Option<Account> {
    let number = |name: &str| head.headers.get(name).map_or(Some(0), |value| value.to_str().ok()?.parse().ok());
    Some(Account { account: number("AccountID")?, project: number("ProjectID")? })
}

fn header(head: &Parts, name: HeaderName) -> &[u8] {
    head.headers.get(name).map_or(&[], HeaderValue::as_bytes)
}

/// The arguments of a request, decoded, in order.
struct Arguments(Vec<(String, String)>);

impl Arguments {
    fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (decode(k), decode(v))).collect(),
        )
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The items of a list, `name=a,b`.
    fn list<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.all(name).flat_map(|value| value.split(',')).filter(|item| !item.is_empty())
    }

    fn first<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).find(|value| !value.is_empty())
    }
}

/// The body as the store reads it; `None` if it is not the gzip that it claims to be.
fn decompress(body: Bytes, encoding: &[u8]) -> Option<Bytes> {
    if encoding != b"gzip" {
        return Some(body);
    }
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(&*body).read_to_end(&mut plain).ok()?;
    Some(plain.into())
}

/// The samples of a body. Bad lines are skipped, as VictoriaMetrics does.
fn samples(body: &[u8], arguments: &Arguments) -> Vec<Sample> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let points = exposition::parse(body).filter_map(Result::ok);
    let stored = points.filter(|point| !point.value.is_nan()).map(|point| {
        let point = point.into_owned();
        let labels = point.labels.into_iter().map(|(name, value)| (name.into_owned(), value.into_owned()));
        let extra = arguments.all("extra_label").filter_map(|label| label.split_once('='));
        let mut labels: BTreeMap<String, String> =
            labels.chain(extra.map(|(name, value)| (name.to_owned(), value.to_owned()))).collect();
        labels.retain(|_, value| !value.is_empty());
        let name = labels.remove("__name__").unwrap_or_else(|| point.name.into_owned());
        Sample { name, labels, value: point.value, timestamp_ms: point.timestamp_ms.unwrap_or(now) }
    });
    stored.collect()
}

/// The log lines of a body. Bad lines are skipped; `None` if all are bad, as VictoriaLogs then answers 400.
fn log_lines(body: &[u8], arguments: &Arguments) -> Option<Vec<LogLine>> {
    let lines: Vec<&[u8]> = body.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).collect();
    let stored: Vec<LogLine> = lines.iter().filter_map(|line| log_line(line, arguments)).collect();
    (!stored.is_empty() || lines.is_empty()).then_some(stored)
}

fn log_line(line: &[u8], arguments: &Arguments) -> Option<LogLine> {
    let Value::Object(object) = serde_json::from_slice(line).ok()? else {
        return None;
    };
    let mut fields = BTreeMap::new();
    flatten("", Value::Object(object), &mut fields);
    for (argument, field) in [("_msg_field", "_msg"), ("_time_field", "_time")] {
        if let Some(value) = arguments.first(argument).and_then(|name| fields.remove(name)) {
            fields.insert(field.to_owned(), value);
        }
    }
    for (name, value) in arguments.list("extra_fields").filter_map(|field| field.split_once('=')) {
        fields.insert(name.to_owned(), value.to_owned());
    }
    if fields.get("_time").is_none_or(|time| time == "0") {
        fields.insert("_time".to_owned(), OffsetDateTime::now_utc().format(&Rfc3339).ok()?);
    }
    let stream = arguments.list("_stream_fields");
    let stream = stream.filter_map(|name| Some((name.to_owned(), fields.get(name)?.clone()))).collect();
    Some(LogLine { stream, fields })
}

/// Nested objects become `outer.inner`, other values text; what is empty or null is no field at all.
fn flatten(name: &str, value: Value, fields: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(object) => {
            for (inner, value) in object {
                let inner = if name.is_empty() { inner } else { format!("{name}.{inner}") };
                flatten(&inner, value, fields);
            }
        }
        Value::Null => {}
        Value::String(text) if text.is_empty() => {}
        Value::String(text) => drop(fields.insert(name.to_owned(), text)),
        other => drop(fields.insert(name.to_owned(), other.to_string())),
    }
}

/// Undoes percent-encoding and `+`. What is no encoding stays as it is.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let escaped = hex.filter(|_| first == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(escaped.unwrap_or(if first == b'+' { b' ' } else { first }));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
