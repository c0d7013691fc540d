//! Text to points.

use std::borrow::Cow;

use super::name::{is_label_name_byte, is_metric_name_byte, starts_like_a_name};
use super::point::{Label, Point};

/// The points of a body, line by line, in order. A line that can't be read is reported and ends nothing.
#[must_use]
pub const fn parse(body: &[u8]) -> Lines<'_> {
    Lines { rest: body, number: 0 }
}

/// Parses one line without its line feed. `None`: there is nothing on it but blanks or a comment.
///
/// # Errors
/// The first fault.
pub fn parse_line(line: &[u8]) -> Result<Option<Point<'_>>, LineFault> {
    let mut point = parse_line_as_written(line)?;
    if let Some(point) = &mut point {
        keep_last_of_equals(&mut point.labels);
    }
    Ok(point)
}

/// As [`parse_line`], but with the labels as they stand on the line: in their order, equal ones too.
pub(super) fn parse_line_as_written(line: &[u8]) -> Result<Option<Point<'_>>, LineFault> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let start = line.iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    let line = &line[start..];
    if line.is_empty() || line[0] == b'#' {
        return Ok(None);
    }
    let text = std::str::from_utf8(line).map_err(|_| LineFault::NotUtf8)?;
    Cursor { rest: text }.point().map(Some)
}

/// The points of a body. See [`parse`].
#[derive(Debug, Clone)]
pub struct Lines<'a> {
    rest: &'a [u8],
    number: usize,
}

/// A line that can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line {number}: {fault}")]
pub struct BadLine {
    /// Which line, from 1.
    pub number: usize,
    /// What is wrong with it.
    pub fault: LineFault,
}

/// What is wrong with a line. Holds none of the line's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LineFault {
    /// It is no UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// No metric name, or a character in it that it may not hold.
    #[error("bad metric name")]
    MetricName,
    /// No label name where one belongs.
    #[error("bad label name")]
    LabelName,
    /// Something else than `=` after a label name, than quotes around its value, or than a comma or brace after it.
    #[error("bad label syntax")]
    LabelSyntax,
    /// A backslash in a label value is followed by something else than `\`, `"` or `n`.
    #[error("unknown escape in a label value")]
    Escape,
    /// The value is missing, is no float, or is too large for one.
    #[error("bad value")]
    Value,
    /// The timestamp is no integer.
    #[error("bad timestamp")]
    Timestamp,
    /// More text follows the timestamp.
    #[error("text after the timestamp")]
    TrailingText,
}

impl<'a> Iterator for Lines<'a> {
    type Item = Result<Point<'a>, BadLine>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let end = memchr::memchr(b'\n', self.rest);
            let line = &self.rest[..end.unwrap_or(self.rest.len())];
            self.rest = end.map_or(&[], |end| &self.rest[end + 1..]);
            self.number += 1;
            match parse_line(line) {
                Ok(None) => {}
                Ok(Some(point)) => return Some(Ok(point)),
                Err(fault) => return Some(Err(BadLine { number: self.number, fault })),
            }
        }
        None
    }
}

/// What is left of a line.
struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn point(mut self) -> Result<Point<'a>, LineFault> {
        let name = self.name(is_metric_name_byte).ok_or(LineFault::MetricName)?;
        if !self.rest.starts_with([' ', '\t', '{']) {
            return Err(if self.rest.is_empty() { LineFault::Value } else { LineFault::MetricName });
        }
        self.skip_blanks();
        let labels = if self.take('{') { self.labels()? } else { Vec::new() };
        let value = value(self.word()).ok_or(LineFault::Value)?;
        let timestamp_ms = match self.word() {
            "" => None,
            word => Some(word.parse().map_err(|_| LineFault::Timestamp)?),
        };
        if !self.word().is_empty() {
            return Err(LineFault::TrailingText);
        }
        Ok(Point { name: Cow::Borrowed(name), labels, value, timestamp_ms })
    }

    /// The labels and the closing brace.
    fn labels(&mut self) -> Result<Vec<Label<'a>>, LineFault> {
        let mut labels = Vec::new();
        loop {
            self.skip_blanks();
            if self.take('}') {
                break;
            }
            let name = self.name(is_label_name_byte).ok_or(LineFault::LabelName)?;
            self.skip_blanks();
            if !self.take('=') {
                return Err(LineFault::LabelSyntax);
            }
            self.skip_blanks();
            labels.push((Cow::Borrowed(name), self.quoted()?));
            self.skip_blanks();
            if !self.take(',') && !self.rest.starts_with('}') {
                return Err(LineFault::LabelSyntax);
            }
        }
        Ok(labels)
    }

    fn name(&mut self, allowed: fn(u8) -> bool) -> Option<&'a str> {
        let end = self.rest.bytes().position(|byte| !allowed(byte)).unwrap_or(self.rest.len());
        let name = self.split(end);
        starts_like_a_name(name).then_some(name)
    }

    /// A quoted value, which is borrowed unless it has escapes.
    fn quoted(&mut self) -> Result<Cow<'a, str>, LineFault> {
        if !self.take('"') {
            return Err(LineFault::LabelSyntax);
        }
        let mut value = Cow::Borrowed("");
        loop {
            let end = memchr::memchr2(b'"', b'\\', self.rest.as_bytes()).ok_or(LineFault::LabelSyntax)?;
            let plain = self.split(end);
            if value.is_empty() {
                value = Cow::Borrowed(plain);
            } else {
                value.to_mut().push_str(plain);
            }
            if self.take('"') {
                return Ok(value);
            }
            value.to_mut().push(self.escape().ok_or(LineFault::Escape)?);
        }
    }

    fn escape(&mut self) -> Option<char> {
        let (escape, meaning) =
            [(r"\\", '\\'), (r#"\""#, '"'), (r"\n", '\n')].into_iter().find(|(text, _)| self.rest.starts_with(text))?;
        self.split(escape.len());
        Some(meaning)
    }

    /// The next word, without the blanks around it; empty at the end.
    fn word(&mut self) -> &'a str {
        self.skip_blanks();
        let end = self.rest.find([' ', '\t']).unwrap_or(self.rest.len());
        self.split(end)
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn take(&mut self, wanted: char) -> bool {
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn split(&mut self, at: usize) -> &'a str {
        let (head, rest) = self.rest.split_at(at);
        self.rest = rest;
        head
    }
}

/// Sorts rather than searches: a hostile line may hold a million labels.
fn keep_last_of_equals(labels: &mut Vec<Label<'_>>) {
    labels.sort_by(|(a, _), (b, _)| a.cmp(b));
    labels.dedup_by(|later, kept| {
        let equal = later.0 == kept.0;
        if equal {
            std::mem::swap(later, kept);
        }
        equal
    });
}

/// A float as the stores read it. `1e999` is too large, not infinite.
fn value(word: &str) -> Option<f64> {
    let value: f64 = word.parse().ok()?;
    let overflowed = value.is_infinite() && word.bytes().any(|byte| byte.is_ascii_digit());
    (!overflowed).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::super::write_point;
    use super::*;
    use proptest::prelude::*;

    fn one(line: &str) -> Result<Point<'_>, LineFault> {
        parse_line(line.as_bytes()).map(|point| point.expect("a point"))
    }

    #[test]
    fn lines_of_the_text_format_are_read() {
        let point = Point::new("up", 1.0);
        for line in ["up 1", " \tup\t1 ", "up 1\r", "up{} 1", "up { } 1", "up{}1", "up 1.0e0"] {
            assert_eq!(one(line), Ok(point.clone()), "{line:?}");
        }
        let point = Point::new("a:b", -2.5).label("x", "1").label("y", "q\"\\\nz").at(-7);
        for line in [
            r#"a:b{x="1",y="q\"\\\nz"} -2.5 -7"#,
            r#"a:b { y = "q\"\\\nz" , x = "1" , } -2.5   -7  "#,
            r#"a:b{x="0",x="1",y="",y="q\"\\\nz",}-2.5 -7"#,
        ] {
            assert_eq!(one(line), Ok(point.clone()), "{line:?}");
        }
        for (word, value) in [("+Inf", f64::INFINITY), ("-inf", f64::NEG_INFINITY), ("Infinity", f64::INFINITY)] {
            assert_eq!(one(&format!("v {word}")).unwrap().value, value);
        }
        assert!(one("v NaN").unwrap().value.is_nan());
    }

    #[test]
    fn a_value_without_escapes_is_not_copied() {
        let point = one(r#"m{a="plain",b="a\nb"} 1"#).unwrap();
        assert!(matches!(point.name, Cow::Borrowed(_)));
        assert!(matches!(&point.labels[0], (Cow::Borrowed("a"), Cow::Borrowed("plain"))));
        assert!(matches!(&point.labels[1], (Cow::Borrowed("b"), Cow::Owned(value)) if value == "a\nb"));
    }

    #[test]
    fn other_lines_are_refused_with_their_fault() {
        for (line, fault) in [
            ("miren.runner 1", LineFault::MetricName),
            ("9a 1", LineFault::MetricName),
            ("{a=\"b\"} 1", LineFault::MetricName),
            ("größe 1", LineFault::MetricName),
            ("up", LineFault::Value),
            ("up ", LineFault::Value),
            ("up{a=\"b\"}", LineFault::Value),
            ("up x", LineFault::Value),
            ("up 1e999", LineFault::Value),
            ("up{a:b=\"c\"} 1", LineFault::LabelSyntax),
            ("up{a.b=\"c\"} 1", LineFault::LabelSyntax),
            ("up{\"a\"=\"c\"} 1", LineFault::LabelName),
            ("up{,} 1", LineFault::LabelName),
            ("up{a=\"b\",,} 1", LineFault::LabelName),
            ("up{", LineFault::LabelName),
            ("up{a", LineFault::LabelSyntax),
            ("up{a=b} 1", LineFault::LabelSyntax),
            ("up{a=\"b} 1", LineFault::LabelSyntax),
            ("up{a=\"b\" c=\"d\"} 1", LineFault::LabelSyntax),
            ("up{a=\"\\t\"} 1", LineFault::Escape),
            ("up{a=\"\\", LineFault::Escape),
            ("up{a=\"\\ä\"} 1", LineFault::Escape),
            ("up 1 1.5", LineFault::Timestamp),
            ("up 1 # comment", LineFault::Timestamp),
            ("up 1 2 3", LineFault::TrailingText),
            ("up 1 99999999999999999999", LineFault::Timestamp),
        ] {
            assert_eq!(one(line), Err(fault), "{line:?}");
        }
        assert_eq!(parse_line(b"up{a=\"\xff\"} 1"), Err(LineFault::NotUtf8));
    }

    #[test]
    fn a_bad_line_is_reported_by_number_and_ends_nothing() {
        let body = b"# HELP up\r\n\r\nup 1\r\nbad.name 2\n \t\n  # x\nup 3";
        let lines: Vec<_> = parse(body).collect();
        assert_eq!(
            lines,
            [
                Ok(Point::new("up", 1.0)),
                Err(BadLine { number: 4, fault: LineFault::MetricName }),
                Ok(Point::new("up", 3.0)),
            ]
        );
    }

    fn any_point() -> impl Strategy<Value = Point<'static>> {
        let label = ("[A-Za-z_][A-Za-z0-9_]{0,6}", ".*|[\\\\\"\n]{0,6}");
        let labels = proptest::collection::vec(label, 0..8);
        ("[A-Za-z_:][A-Za-z0-9_:]{0,20}", labels, any::<u64>(), any::<Option<i64>>()).prop_map(
            |(name, labels, bits, timestamp_ms)| Point {
                name: name.into(),
                labels: labels.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
                value: f64::from_bits(bits),
                timestamp_ms,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(points in proptest::collection::vec(any_point(), 0..5)) {
            let mut body = Vec::new();
            for point in &points {
                write_point(&mut body, point);
            }
            let read: Vec<_> = parse(&body).collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(read.len(), points.len());
            for (mut written, mut read) in points.into_iter().zip(read) {
                keep_last_of_equals(&mut written.labels);
                for point in [&mut written, &mut read] {
                    // NaN equals nothing, and 0.0 equals -0.0: compare bits, with one NaN for all.
                    let value = std::mem::take(&mut point.value);
                    let bits = if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() };
                    point.labels.push(("value".into(), bits.to_string().into()));
                }
                prop_assert_eq!(written, read);
            }
        }

        #[test]
        fn whatever_a_point_holds_its_line_parses(name in ".*", label in ".*", value in ".*", float in any::<f64>()) {
            let mut line = Vec::new();
            write_point(&mut line, &Point::new(name, float).label(label, value.clone()));
            let read: Vec<_> = parse(&line).collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(read.len(), 1);
            prop_assert_eq!(&read[0].labels[0].1, &value);
        }

        #[test]
        fn no_bytes_make_it_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse(&body).for_each(drop);
        }

        #[test]
        fn no_almost_good_line_makes_it_panic(line in "(m\\{a=\")?[a.:{}\"\\\\=, #\t1eäN+-]{0,40}") {
            let _ = parse_line(line.as_bytes());
        }
    }
}
