//! Timestamps for points that have none, and an end for those that no store keeps.

use telemetry_proto::exposition::parse_line;

/// What was found in a body of metrics.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamped {
    /// The body as it is to be sent. `None`: as it came.
    pub(crate) body: Option<Vec<u8>>,
    /// The points that are in it.
    pub(crate) points: u64,
    /// The points that were left out, since their value is NaN: VictoriaMetrics skips them and says nothing.
    pub(crate) not_numbers: u64,
    /// Lines that can't be read.
    pub(crate) unreadable: u64,
}

/// Gives points without a timestamp this one, in milliseconds since 1970, and leaves out those without a value. Lines that
/// can't be read stay as they are: the store skips them.
pub(crate) fn stamp(body: &[u8], now_ms: i64) -> Stamped {
    let stamp = format!(" {now_ms}");
    let mut stamped = Stamped::default();
    let mut copied_to = 0;
    let mut start = 0;
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let text = line.trim_ascii_end();
        let (end, behind) = (start + text.len(), start + line.len());
        let out = || Vec::with_capacity(body.len() + body.len() / 4);
        match parse_line(text) {
            Ok(Some(point)) if point.value.is_nan() => {
                stamped.not_numbers += 1;
                stamped.body.get_or_insert_with(out).extend_from_slice(&body[copied_to..start]);
                copied_to = behind;
            }
            Ok(Some(point)) => {
                stamped.points += 1;
                if point.timestamp_ms.is_none() {
                    let out = stamped.body.get_or_insert_with(out);
                    out.extend_from_slice(&body[copied_to..end]);
                    out.extend_from_slice(stamp.as_bytes());
                    copied_to = end;
                }
            }
            Ok(None) => {}
            Err(_) => stamped.unreadable += 1,
        }
        start = behind;
    }
    if let Some(out) = &mut stamped.body {
        out.extend_from_slice(&body[copied_to..]);
    }
    stamped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(body: &str) -> (String, u64) {
        let stamped = stamp(body.as_bytes(), 77);
        let body = stamped.body.map_or_else(|| body.to_owned(), |stamped| String::from_utf8(stamped).unwrap());
        (body, stamped.points)
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
    #[test]
    fn points_that_no_store_keeps_are_left_out_and_counted() {
        for (before, after, points, not_numbers, unreadable) in [
            ("a 1 5\nb NaN 5\nc 2 5\n", "a 1 5\nc 2 5\n", 2, 1, 0),
            ("b NaN\nc 2\n", "c 2 77\n", 1, 1, 0),
            ("c 2\nb nan", "c 2 77\n", 1, 1, 0),
            ("NaN NaN 1\n", "", 0, 1, 0),
            ("a +Inf 5\nno point\n# b NaN\n", "a +Inf 5\nno point\n# b NaN\n", 1, 0, 1),
        ] {
            let stamped = stamp(before.as_bytes(), 77);
            let body = stamped.body.map_or_else(|| before.to_owned(), |body| String::from_utf8(body).unwrap());
            assert_eq!((body.as_str(), stamped.points), (after, points), "{before:?}");
            assert_eq!((stamped.not_numbers, stamped.unreadable), (not_numbers, unreadable), "{before:?}");
        }
    }
}
