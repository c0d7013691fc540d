//! A log record as its store reads it: one line of JSON.
//!
//! What VictoriaLogs would drop while it answers 200 (lines over 256 KiB, more than 1,000 fields, names over 128 bytes) is
//! cut here, with a mark.

use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use telemetry_proto::limits::{MAX_FIELD_NAME_BYTES, MAX_LOG_FIELDS, MAX_LOG_LINE_BYTES};
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

use super::record::{LogRecord, LogValue};

/// What stands at the end of text that was cut.
const MARK: &str = "[cut]";
/// The field that says what was cut off a record.
const CUT_FIELD: &str = "telemetry_cut";
/// Fields of the contract, [`CUT_FIELD`], and those that the relay adds.
const RESERVED_FIELDS: usize = 10;
/// What attributes can't be called. The store takes a field without a name for the message.
const RESERVED_NAMES: [&str; 9] =
    ["", "_msg", "_time", "_stream", "_stream_id", "entity", "stream", "trace_id", "span_id"];
/// The first and the last size that texts are cut to until a line fits.
const TEXT_CUTS: std::ops::RangeInclusive<u32> = 8..=17;
const TIME: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:9]Z");

/// A line and what was cut to make it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) bytes: Vec<u8>,
    /// Whether texts or fields were cut since the line was too long.
    pub(super) too_long: bool,
    /// How many fields had to go since they were too many, or the line too long.
    pub(super) fields: u64,
    /// How many names were cut.
    pub(super) names: u64,
}

/// Writes `record` as a line that the store takes.
pub(super) fn encode(record: &LogRecord<'_>, time: SystemTime) -> Line {
    let most_fields = record.attributes.len().min(MAX_LOG_FIELDS - RESERVED_FIELDS);
    if let Some(line) = write(record, time, None, most_fields) {
        return line;
    }
    let texts = TEXT_CUTS.rev().map(|power| (1 << power, most_fields));
    let halves = std::iter::successors(Some(most_fields), |fields| (*fields > 0).then_some(fields / 2));
    let cuts = texts.chain(halves.map(|fields| (1 << TEXT_CUTS.start(), fields)));
    // The last of them, short texts and no attributes, always fits.
    let line = cuts.into_iter().find_map(|(max_text, fields)| write(record, time, Some(max_text), fields));
    line.unwrap_or_else(|| Line { bytes: Vec::new(), too_long: true, fields: 0, names: 0 })
}

/// Writes a line whose texts have at most `max_text` bytes, with the first `fields` attributes. `None` if that is too
/// long; the attempt ends where that is clear.
fn write(record: &LogRecord<'_>, time: SystemTime, max_text: Option<usize>, fields: usize) -> Option<Line> {
    let mut object = Object { bytes: Vec::with_capacity(512), max_text };
    object.bytes.extend_from_slice(b"{\"_time\":\"");
    write_time(&mut object.bytes, time);
    object.bytes.push(b'"');
    object.text("_msg", if record.message.is_empty() { "-" } else { &record.message })?;
    object.text("entity", &record.entity)?;
    object.text("stream", &record.stream)?;
    for (name, id) in [("trace_id", &record.trace_id), ("span_id", &record.span_id)] {
        if let Some(id) = id {
            object.text(name, id)?;
        }
    }
    let mut names = 0;
    for (name, value) in &record.attributes[..fields] {
        if RESERVED_NAMES.contains(&name.as_ref()) || name == CUT_FIELD {
            object.value(&format!("attribute.{name}"), value)?;
        } else if name.len() > MAX_FIELD_NAME_BYTES {
            names += 1;
            object.value(&cut(name, MAX_FIELD_NAME_BYTES - MARK.len()), value)?;
        } else {
            object.value(name, value)?;
        }
    }
    let lost = record.attributes.len() - fields;
    let cuts = [(max_text.is_some(), "line"), (lost > 0, "fields"), (names > 0, "names")];
    let cuts: Vec<&str> = cuts.into_iter().filter(|(was_cut, _)| *was_cut).map(|(_, what)| what).collect();
    if !cuts.is_empty() {
        object.text(CUT_FIELD, &cuts.join(" "))?;
    }
    object.bytes.extend_from_slice(b"}\n");
    object.fits()?;
    Some(Line { bytes: object.bytes, too_long: max_text.is_some(), fields: lost as u64, names })
}

/// A line in the making. Whatever is added says whether the line is still short enough.
struct Object {
    bytes: Vec<u8>,
    max_text: Option<usize>,
}

impl Object {
    fn text(&mut self, name: &str, text: &str) -> Option<()> {
        self.name(name);
        match self.max_text {
            Some(max) if text.len() > max => write_string(&mut self.bytes, &cut(text, max)),
            None if text.len() > MAX_LOG_LINE_BYTES => return None,
            _ => write_string(&mut self.bytes, text),
        }
        self.fits()
    }

    fn value(&mut self, name: &str, value: &LogValue<'_>) -> Option<()> {
        match value {
            LogValue::Text(text) => return self.text(name, text),
            LogValue::Float(number) if !number.is_finite() => return self.text(name, &number.to_string()),
            _ => self.name(name),
        }
        // A Vec takes every write.
        let _ = match value {
            LogValue::Text(_) => Ok(()),
            LogValue::Integer(number) => write!(self.bytes, "{number}"),
            LogValue::Float(number) => serde_json::to_writer(&mut self.bytes, number).map_err(Into::into),
            LogValue::Bool(truth) => write!(self.bytes, "{truth}"),
        };
        self.fits()
    }

    fn fits(&self) -> Option<()> {
        (self.bytes.len() <= MAX_LOG_LINE_BYTES).then_some(())
    }

    fn name(&mut self, name: &str) {
        self.bytes.push(b',');
        write_string(&mut self.bytes, name);
        self.bytes.push(b':');
    }
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    // A Vec takes every write, and every str is a JSON string.
    let _ = serde_json::to_writer(out, text);
}

/// RFC 3339, UTC, with nanoseconds. A time of day that has no such form becomes 1970.
fn write_time(out: &mut Vec<u8>, time: SystemTime) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let moment = time::Duration::try_from(since).ok().and_then(|since| OffsetDateTime::UNIX_EPOCH.checked_add(since));
    let _ = moment.unwrap_or(OffsetDateTime::UNIX_EPOCH).format_into(out, TIME);
}

fn cut(text: &str, to: usize) -> String {
    let mut end = to;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MARK}", &text[..end])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn parse(line: &Line) -> Map<String, Value> {
        assert_eq!(line.bytes.iter().filter(|b| **b == b'\n').count(), 1);
        assert_eq!(line.bytes.last(), Some(&b'\n'));
        serde_json::from_slice(&line.bytes).unwrap()
    }

    fn encode_now(record: &LogRecord<'_>) -> Line {
        encode(record, UNIX_EPOCH + Duration::new(1_900_000_000, 1_002))
    }

    #[test]
    fn a_record_is_one_line_of_json() {
        let record = LogRecord::new("app/web", "stderr", "it\n\"broke\"")
            .trace_id("4bf9")
            .span_id("00f0")
            .attribute("code", 7)
            .attribute("ratio", 0.5)
            .attribute("nan", f64::NAN)
            .attribute("ok", false)
            .attribute("path", "/x");
        let line = encode_now(&record);
        assert_eq!(
            Value::Object(parse(&line)),
            json!({
                "_time": "2030-03-17T17:46:40.000001002Z", "_msg": "it\n\"broke\"", "entity": "app/web",
                "stream": "stderr", "trace_id": "4bf9", "span_id": "00f0", "code": 7, "ratio": 0.5, "nan": "NaN",
                "ok": false, "path": "/x",
            })
        );
        assert!(!line.too_long && line.fields == 0 && line.names == 0);
    }

    #[test]
    fn the_message_is_never_empty() {
        assert_eq!(parse(&encode_now(&LogRecord::new("e", "s", "")))["_msg"], "-");
    }

    #[test]
    fn attributes_override_nothing_of_the_contract() {
        let mut record = LogRecord::new("e", "s", "m").trace_id("t").span_id("p");
        for name in RESERVED_NAMES {
            record = record.attribute(name, "forged");
        }
        let text = String::from_utf8(encode_now(&record).bytes).unwrap();
        let object: Map<String, Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(object.len(), 6 + RESERVED_NAMES.len(), "no name twice");
        assert_eq!((&object["_msg"], &object["entity"], &object["stream"]), (&json!("m"), &json!("e"), &json!("s")));
        assert_eq!((&object["trace_id"], &object["span_id"]), (&json!("t"), &json!("p")));
        assert_eq!(object["attribute.entity"], "forged");
    }

    #[test]
    fn a_long_message_is_cut_with_a_mark_and_the_attributes_stay() {
        let message = "ä\n".repeat(200_000);
        let line = encode_now(&LogRecord::new("e", "s", message).attribute("code", 7));
        assert!(line.too_long && line.bytes.len() <= MAX_LOG_LINE_BYTES);
        assert!(line.bytes.len() > MAX_LOG_LINE_BYTES / 4, "much more was cut than had to be");
        let object = parse(&line);
        assert!(object["_msg"].as_str().unwrap().ends_with("[cut]"));
        assert_eq!((&object["code"], &object["telemetry_cut"]), (&json!(7), &json!("line")));
    }

    #[test]
    fn too_many_fields_and_long_names_are_cut_and_counted() {
        let mut record = LogRecord::new("e", "s", "m").attribute("ä".repeat(100), 1);
        for number in 0..2_000 {
            record = record.attribute(format!("f{number}"), 1);
        }
        let line = encode_now(&record);
        let object = parse(&line);
        assert!(object.len() <= MAX_LOG_FIELDS);
        assert_eq!(line.fields + object.len() as u64, 2_001 + 5);
        assert_eq!(line.names, 1);
        assert_eq!(object["telemetry_cut"], "fields names");
        let cut = object.keys().find(|name| name.ends_with(MARK)).unwrap();
        assert!(cut.len() <= MAX_FIELD_NAME_BYTES && cut.starts_with("ää"));
    }

    #[test]
    fn whatever_is_written_fits_the_store() {
        let huge = "\u{1}".repeat(300_000);
        let mut record = LogRecord::new(huge.as_str(), huge.as_str(), huge.as_str()).trace_id(&*huge).span_id(&*huge);
        for _ in 0..2_000 {
            record = record.attribute(huge.as_str(), huge.as_str());
        }
        let line = encode_now(&record);
        assert!(line.bytes.len() <= MAX_LOG_LINE_BYTES);
        parse(&line);
    }

    proptest! {
        #[test]
        fn any_text_survives_as_it_is(
            entity in ".*", message in ".+", fields in prop::collection::btree_map("[a-z]{1,8}x", ".*", 0..8)
        ) {
            let mut record = LogRecord::new(entity.as_str(), "s", message.as_str());
            for (name, value) in &fields {
                record = record.attribute(name.as_str(), value.as_str());
            }
            let object = parse(&encode_now(&record));
            prop_assert_eq!(&object["entity"], &entity);
            prop_assert_eq!(&object["_msg"], &message);
            for (name, value) in &fields {
                prop_assert_eq!(&object[name], value);
            }
        }
    }
}
