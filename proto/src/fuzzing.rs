//! Fuzz targets of this crate, and what a target is. For fuzzers and the suite `fuzz` only; nothing here is part of the
//! contract.

use serde_json::Value;

use crate::claims::{Claims, Expectations, RunnerBinding};
use crate::exposition::{self, ControlFilter, ControlScan, is_control_line, parse_line, write_point};

/// One fuzz target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name: that of its corpus and of its program.
    pub name: &'static str,
    /// Looks at an input. Panics when a promise is broken.
    pub run: fn(&[u8]),
    /// Valid inputs to begin with. Made anew in every process where they hold keys or certificates.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// What inputs are made of, for those who mutate without looking into the code.
    pub words: &'static [&'static str],
}

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "exposition",
        run: exposition,
        seeds: || {
            texts(&[METRICS, "a{b=\"c\\\\d\\\"e\\n\",} -Inf 5\r\n#x\n\n a 1", "up{entity=\"miren/control\"} 1\n"])
        },
        words: &[
            "{",
            "}",
            "=\"",
            "\",",
            "\\n",
            "\\\"",
            "NaN",
            "+Inf",
            " 1 5",
            "\n",
            "entity=\"miren/control\"",
            "\r\n",
        ],
    },
    Target {
        name: "claims",
        run: claims,
        seeds: || texts(&[CLAIMS]),
        words: &[
            "\"aud\":",
            "[",
            "]",
            "{",
            "}",
            "null",
            "1e400",
            "18446744073709551615",
            "-1",
            "\\u0000",
            "\"runner_id\":",
        ],
    },
];

const METRICS: &str = "up{job=\"a\",instance=\"h:1\"} 1 1700000000000\nb_total 2.5e3\nc{le=\"+Inf\"} NaN\n";
const CLAIMS: &str = r#"{"iss":"i","sub":"system:telemetrywriter","aud":["miren-telemetry"],"exp":1900003600,
    "nbf":1900000000,"iat":1900000000,"identity_type":"system","system_workload":"telemetrywriter","runner_id":"r7",
    "signals":["traces"],"organization_id":"o"}"#;

/// Texts as seeds.
#[must_use]
pub fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// What is read is written and read again as the same; no line of the coordinator's is left in what is kept; the quick scan
/// sees the marker wherever chunks end.
fn exposition(data: &[u8]) {
    for line in data.split(|byte| *byte == b'\n') {
        let Ok(Some(point)) = parse_line(line) else { continue };
        let written = text_of(&point);
        let again = parse_line(written.strip_suffix(b"\n").unwrap_or(&written)).ok().flatten();
        assert_eq!(again.map(|again| text_of(&again)), Some(written), "what was read is not what is written");
    }
    let filtered = |chunks: &mut dyn Iterator<Item = &[u8]>| {
        let mut filter = ControlFilter::default();
        chunks.for_each(|chunk| filter.feed(chunk));
        filter.finish()
    };
    let (kept, dropped) = filtered(&mut std::iter::once(data));
    assert!(!kept.split(|byte| *byte == b'\n').any(is_control_line), "a line of the coordinator's is left");
    assert!(dropped > 0 || *kept == *data, "nothing was dropped, and something is missing");
    assert_eq!(filtered(&mut std::iter::once(&kept[..])).1, 0);
    let scan = |chunks: &mut dyn Iterator<Item = &[u8]>| {
        let mut scan = ControlScan::new();
        chunks.for_each(|chunk| scan.feed(chunk));
        scan.found()
    };
    let whole = scan(&mut std::iter::once(data));
    for size in [1, 2, 7, 13] {
        assert_eq!(scan(&mut data.chunks(size)), whole, "the marker across chunks of {size}");
        assert_eq!(filtered(&mut data.chunks(size)), (kept.clone(), dropped), "the filter with chunks of {size}");
    }
    assert!(whole || dropped == 0, "a line was dropped without its marker");
}

fn text_of(point: &exposition::Point<'_>) -> Vec<u8> {
    let mut text = Vec::new();
    write_point(&mut text, point);
    text
}

/// Claims that pass are what the contract asks for, read by someone else.
fn claims(data: &[u8]) {
    const NOW: u64 = 1_900_000_000;
    let Ok(claims) = serde_json::from_slice::<Claims>(data) else { return };
    for binding in [RunnerBinding::Required, RunnerBinding::IfPresent] {
        let mut expected = Expectations::new("i");
        expected.runner_binding = binding;
        let Ok(verified) = claims.verify(&expected, NOW) else { continue };
        let leeway = expected.leeway.as_secs();
        assert!(verified.expires_at + leeway > NOW && verified.not_before <= NOW + leeway, "out of time");
        assert!(verified.runner.is_some() || binding == RunnerBinding::IfPresent, "nobody is named");
        let Ok(value) = serde_json::from_slice::<Value>(data) else { continue };
        let is = |key: &str, expected: &str| value[key].as_str() == Some(expected);
        assert!(is("iss", "i") && is("identity_type", "system") && is("system_workload", "telemetrywriter"));
        let audience = value["aud"].as_array().map_or_else(|| vec![&value["aud"]], |many| many.iter().collect());
        assert!(audience.iter().any(|one| one.as_str() == Some("miren-telemetry")));
        assert_eq!(verified.runner.as_ref().map(|runner| runner.as_str()), value["runner_id"].as_str());
    }
}
