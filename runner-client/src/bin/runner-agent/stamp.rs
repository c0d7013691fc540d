//! Timestamps for points that have none.

use telemetry_proto::exposition::parse_line;

/// Counts the points, and gives those without a timestamp this one, in milliseconds since 1970. `None`: all have one.
/// Lines that can't be read stay as they are: the store skips them.
pub(crate) fn stamp(body: &[u8], now_ms: i64) -> (Option<Vec<u8>>, u64) {
    let stamp = format!(" {now_ms}");
    let mut stamped: Option<Vec<u8>> = None;
    let mut points = 0;
    let mut copied_to = 0;
    let mut start = 0;
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let text = line.trim_ascii_end();
        if let Ok(Some(point)) = parse_line(text) {
            points += 1;
            if point.timestamp_ms.is_none() {
                let out = stamped.get_or_insert_with(|| Vec::with_capacity(body.len() + body.len() / 4));
                let end = start + text.len();
                out.extend_from_slice(&body[copied_to..end]);
                out.extend_from_slice(stamp.as_bytes());
                copied_to = end;
            }
        }
        start += line.len();
    }
    if let Some(out) = &mut stamped {
        out.extend_from_slice(&body[copied_to..]);
    }
    (stamped, points)
}

/// Whether a line is there that should be a point.
pub(crate) fn has_points(body: &[u8]) -> bool {
    crate::intake::lines(body).any(|line| !line.trim_ascii_start().starts_with(b"#"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(body: &str) -> (String, u64) {
        let (stamped, points) = stamp(body.as_bytes(), 77);
        (stamped.map_or_else(|| body.to_owned(), |stamped| String::from_utf8(stamped).unwrap()), points)
    }

    #[test]
    fn points_without_a_timestamp_get_one_and_nothing_else_changes() {
        for (before, after, points) in [
            ("up 1\n", "up 1 77\n", 1),
            ("up 1", "up 1 77", 1),
            ("up 1 5\nup 2\r\n", "up 1 5\nup 2 77\r\n", 2),
            ("# HELP up x\nup{l=\"} 1\\\"\"} 1  \n\n", "# HELP up x\nup{l=\"} 1\\\"\"} 1 77  \n\n", 1),
            ("no point\nup 1\n", "no point\nup 1 77\n", 1),
            ("up 1 5\n", "up 1 5\n", 1),
            ("", "", 0),
        ] {
            assert_eq!(stamped(before), (after.to_owned(), points), "{before:?}");
        }
    }
}
