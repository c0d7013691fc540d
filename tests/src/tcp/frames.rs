//! Frames of HTTP/2 by hand (RFC 9113 section 6), and field sections without compression (RFC 7541 section 6.2.2).

use std::collections::BTreeSet;

/// What a client begins with, before its SETTINGS.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// DATA
pub const DATA: u8 = 0;
/// HEADERS
pub const HEADERS: u8 = 1;
/// PRIORITY
pub const PRIORITY: u8 = 2;
/// RST_STREAM
pub const RST_STREAM: u8 = 3;
/// SETTINGS
pub const SETTINGS: u8 = 4;
/// PING
pub const PING: u8 = 6;
/// GOAWAY
pub const GOAWAY: u8 = 7;
/// WINDOW_UPDATE
pub const WINDOW_UPDATE: u8 = 8;
/// CONTINUATION
pub const CONTINUATION: u8 = 9;

/// The flag END_STREAM.
pub const END_STREAM: u8 = 1;
/// The flag END_HEADERS.
pub const END_HEADERS: u8 = 4;

/// A frame. Only its lowest 24 bits of length are sent.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [.., a, b, c] = payload.len().to_be_bytes();
    [&[a, b, c, kind, flags][..], &stream.to_be_bytes(), payload].concat()
}

/// What a client begins with, these SETTINGS included.
#[must_use]
pub fn hello(settings: &[u8]) -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()
}

/// A field section.
#[must_use]
pub fn section<N: AsRef<[u8]>, V: AsRef<[u8]>>(fields: &[(N, V)]) -> Vec<u8> {
    let mut section = Vec::new();
    for (name, value) in fields {
        section.push(0);
        for text in [name.as_ref(), value.as_ref()] {
            push_length(&mut section, text.len());
            section.extend_from_slice(text);
        }
    }
    section
}

/// An integer with a prefix of seven bits (RFC 7541 section 5.1).
fn push_length(section: &mut Vec<u8>, length: usize) {
    if length < 127 {
        section.push(u8::try_from(length).unwrap_or_default());
        return;
    }
    section.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        section.push(u8::try_from(rest % 128).unwrap_or_default() | 128);
        rest /= 128;
    }
    section.push(u8::try_from(rest).unwrap_or_default());
}

/// The frames of one kind among what came.
#[must_use]
pub fn of_kind(mut bytes: &[u8], kind: u8) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let [a, b, c, of_kind, _, _, _, _, _, rest @ ..] = bytes {
        let len = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        let Some((payload, rest)) = rest.split_at_checked(len) else { break };
        if *of_kind == kind {
            found.push(payload);
        }
        bytes = rest;
    }
    found
}

/// What a server said, in a few words: the status line of HTTP/1.1, or how streams and the connection ended.
#[must_use]
pub fn what_came(answer: &[u8]) -> String {
    if answer.starts_with(b"HTTP/1.1 ") {
        let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
        return String::from_utf8_lossy(line).into_owned();
    }
    let mut words = BTreeSet::new();
    if !of_kind(answer, HEADERS).is_empty() {
        words.insert("responses".to_owned());
    }
    let ends = |kind, name, code_at: usize| {
        let code = move |payload: &[u8]| payload.get(code_at..code_at + 4)?.try_into().ok().map(u32::from_be_bytes);
        of_kind(answer, kind).into_iter().filter_map(move |end| Some(format!("{name} {}", error_name(code(end)?))))
    };
    words.extend(ends(RST_STREAM, "RST_STREAM", 0));
    words.extend(ends(GOAWAY, "GOAWAY", 4));
    match words.len() {
        0 => "without a word".to_owned(),
        _ => words.into_iter().collect::<Vec<_>>().join(", "),
    }
}

/// The name of an error code (RFC 9113 section 7).
fn error_name(code: u32) -> String {
    const NAMES: [&str; 14] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ];
    let name = usize::try_from(code).ok().and_then(|code| NAMES.get(code));
    name.map_or_else(|| format!("{code:#x}"), |name| (*name).to_owned())
}
