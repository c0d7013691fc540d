//! The head of a write, and what of it goes upstream.

use http::{HeaderName, HeaderValue, Request};
use telemetry_proto::fuzzing::{Target, texts};
use telemetry_proto::{RunnerId, Signal};

use crate::forward::{Attribution, LogStreamFields, Target as Upstream};
use crate::gate::{Author, workload_token};
use crate::intake::{HeadRules, WriteHead};

pub(super) const TARGET: Target = Target {
    name: "head",
    run,
    seeds: || {
        texts(&[
            "L_msg_field=message&_time_field=ts\ncontent-length: 5\ncontent-type: application/x-ndjson\n",
            "M\ncontent-length: 5\ncontent-encoding: gzip\nmiren-telemetry-stream: operational\n",
            "T\ncontent-length: 5\ncontent-type: application/x-protobuf\nmiren-batch-id: 01ARZ3NDEKTSV4RRFFQ69G5FAV\n",
        ])
    },
    words: &[
        "_msg_field=",
        "_time_field=",
        "&",
        "%26",
        "%2C",
        "%00",
        "extra_fields=",
        "+",
        "content-length: ",
        "content-type: text/plain; a=b\n",
        "content-encoding: zstd\n",
        "miren-workload-token: a.b.c\n",
        "miren-batch-id: ",
        "99999999999999999999",
    ],
};

const RULES: HeadRules = HeadRules { max_body_bytes: 1_000, allow_zstd: true, allow_unknown_length: true };

/// A first line with a signal's letter and the query, then a header a line. What goes upstream has the arguments that it may
/// have, each once, with the values that were given.
fn run(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let Some((letter, query)) = lines.next().and_then(|line| line.split_first()) else { return };
    let signal = match letter {
        b'L' => Signal::Logs,
        b'T' => Signal::Traces,
        _ => Signal::Metrics,
    };
    let query = String::from_utf8_lossy(query);
    let mut request = Request::post(format!("{}?{query}", signal.write_path()));
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) =
            (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(line[colon + 1..].trim_ascii()));
        if let (Ok(name), Ok(value)) = (name, value) {
            request = request.header(name, value);
        }
    }
    let Ok(request) = request.body(()) else { return };
    let (parts, ()) = request.into_parts();
    if let Ok(token) = workload_token(&parts.headers) {
        assert!(!token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()));
    }
    let Ok(head) = WriteHead::parse(signal, &parts, RULES) else { return };
    assert!(head.content_length.is_none_or(|length| length <= RULES.max_body_bytes));
    assert!(!head.operational || signal == Signal::Metrics);
    let Ok(runner) = RunnerId::new("r7") else { return };
    let upstream = Upstream::new(signal, "", Attribution::Pinned, &LogStreamFields::default());
    let target = upstream.path_and_query(None, &Author::from(runner), &head.log_fields);
    let Some(target) = target else { panic!("no account is needed here") };
    assert!(target.parse::<http::Uri>().is_ok(), "{target}");
    let (path, arguments) = target.split_once('?').unwrap_or((&target, ""));
    assert_eq!(path, signal.store_path());
    let found: Vec<(String, String)> = form_urlencoded::parse(arguments.as_bytes()).into_owned().collect();
    let fields = [("_msg_field", &head.log_fields.message), ("_time_field", &head.log_fields.time)];
    let mut expected: Vec<(String, String)> = match signal {
        Signal::Metrics => vec![pair("extra_label", "miren_runner=r7")],
        Signal::Logs => {
            vec![pair("extra_fields", "miren_runner=r7"), pair("_stream_fields", "miren_runner,entity,stream")]
        }
        Signal::Traces => Vec::new(),
    };
    expected.extend(fields.into_iter().filter_map(|(name, value)| Some(pair(name, value.as_deref()?))));
    assert_eq!(found, expected);
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
