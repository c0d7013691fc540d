//! Fuzz targets of this crate. For fuzzers and the suite `fuzz` only.

use telemetry_proto::fuzzing::{Target, texts};

use crate::policy;
use crate::spool::fuzzing as spool;
use crate::trace::TraceParent;

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "spool", run: spool::segments, seeds: spool::seeds, words: &["\u{0}", "Rec", "\u{1}", "\u{7f}"] },
    Target {
        name: "policy",
        run: policy::fuzz,
        seeds: || texts(&[POLICY, "404", "503"]),
        words: &[
            "\"signals\":",
            "\"traces\"",
            "\"sample_ratio\":",
            "1e999",
            "-1",
            "null",
            "[",
            "]",
            "{",
            "}",
            "\"server_time\":",
        ],
    },
    Target {
        name: "traceparent",
        run: traceparent,
        seeds: || texts(&["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"]),
        words: &["00-", "ff-", "-01", "-", "0000000000000000", "A"],
    },
];

const POLICY: &str = r#"{"signals":["metrics","logs","traces"],"encodings":["identity","gzip"],
    "limits":{"max_body_bytes":33554432,"max_decoded_bytes":134217728},"traces":{"sample_ratio":0.01},
    "server_time":"2030-03-17T17:46:40Z"}"#;

/// What is taken of a caller's header is what stands in it.
fn traceparent(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(caller) = text.parse::<TraceParent>() else { return };
    let head = format!("-{}-{}-", caller.trace_id, caller.parent_id);
    assert_eq!(text.get(2..head.len() + 2), Some(head.as_str()));
    assert!(!text.starts_with("ff"));
}
