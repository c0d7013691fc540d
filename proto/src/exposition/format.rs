//! Points to text.

use std::io::Write as _;

use super::Point;
use super::name::{sanitize_label_name, sanitize_metric_name};

/// Appends one line, with its line feed. Names are sanitised and values escaped, so that whatever the point holds the
/// line parses; a float is written in the shortest form that reads back as itself.
pub fn write_point(out: &mut Vec<u8>, point: &Point<'_>) {
    out.extend_from_slice(sanitize_metric_name(&point.name).as_bytes());
    let mut before = b'{';
    for (name, value) in &point.labels {
        out.push(before);
        before = b',';
        out.extend_from_slice(sanitize_label_name(name).as_bytes());
        out.extend_from_slice(b"=\"");
        write_escaped(out, value);
        out.push(b'"');
    }
    if !point.labels.is_empty() {
        out.push(b'}');
    }
    out.push(b' ');
    write_value(out, point.value);
    if let Some(timestamp) = point.timestamp_ms {
        // A Vec takes every write.
        let _ = write!(out, " {timestamp}");
    }
    out.push(b'\n');
}

/// Appends the value of a label, escaped for its place between quotes.
pub fn write_escaped(out: &mut Vec<u8>, value: &str) {
    let mut rest = value.as_bytes();
    while let Some(at) = memchr::memchr3(b'\\', b'"', b'\n', rest) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(match rest[at] {
            b'\\' => br"\\",
            b'"' => br#"\""#,
            _ => br"\n",
        });
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Appends a value, in the shortest form that reads back as itself.
pub fn write_value(out: &mut Vec<u8>, value: f64) {
    if value.is_nan() {
        out.extend_from_slice(b"NaN");
    } else if value.is_infinite() {
        out.extend_from_slice(if value > 0.0 { b"+Inf" } else { b"-Inf" });
    } else {
        let mut buffer = ryu::Buffer::new();
        let text = buffer.format_finite(value);
        out.extend_from_slice(text.strip_suffix(".0").unwrap_or(text).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(point: &Point<'_>) -> String {
        let mut out = Vec::new();
        write_point(&mut out, point);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_the_text_format() {
        assert_eq!(line(&Point::new("up", 1.0)), "up 1\n");
        assert_eq!(
            line(&Point::new("a.b", -0.5).label("x-y", "q\"\\\n").label("z", "").at(1_700_000_000_123)),
            "a_b{x_y=\"q\\\"\\\\\\n\",z=\"\"} -0.5 1700000000123\n"
        );
    }

    #[test]
    fn values_are_short_and_exact() {
        for (value, text) in [
            (0.1, "0.1"),
            (1e300, "1e300"),
            (123_456_789.0, "123456789"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(line(&Point::new("v", value)), format!("v {text}\n"));
        }
    }
}
