//! Prometheus remote write 1.0 to import lines.
//!
//! What the lines can say is said exactly: names, labels, values, milliseconds. What they have no word
//! for is one of three things. Native histograms and names of other alphabets are a reason to refuse the request, since the
//! store would have kept them. Staleness markers and other NaNs are left out and counted as dropped. Exemplars and metadata
//! are left out and counted: VictoriaMetrics keeps neither by whatever way they come.

use std::io::Write as _;

use http::StatusCode;
use telemetry_proto::exposition::{write_escaped, write_value};
use telemetry_proto::protobuf::{Field, Fields, WireError};

use crate::intake::{MAX_BYTES, Refusal, TOO_LARGE};

/// The bits of the NaN by which Prometheus says that a series has ended (`value.StaleNaN` in its `model/value`).
const STALE_NAN: u64 = 0x7ff0_0000_0000_0002;

/// A request as lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    pub(crate) body: Vec<u8>,
    pub(crate) points: u64,
    /// Markers of series that have ended.
    pub(crate) stale_markers: u64,
    /// Other values that are no numbers.
    pub(crate) not_numbers: u64,
    pub(crate) exemplars: u64,
    pub(crate) metadata: u64,
}

/// Why a request has no lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is no remote write.
    Malformed,
    /// It says what lines have no word for.
    Untranslatable(&'static str),
    /// The lines would be larger than a batch.
    TooLarge,
}

impl From<WireError> for Fault {
    fn from(_: WireError) -> Self {
        Self::Malformed
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Malformed => (StatusCode::BAD_REQUEST, "this is no remote write 1.0 request"),
            Fault::Untranslatable(why) => (StatusCode::UNSUPPORTED_MEDIA_TYPE, why),
            Fault::TooLarge => TOO_LARGE,
        }
    }
}

/// Decodes a snappy block, whose size is known before it is decoded.
pub(crate) fn decompress(body: &[u8]) -> Result<Vec<u8>, Refusal> {
    let malformed = |_| (StatusCode::BAD_REQUEST, "the body is no whole snappy block");
    if snap::raw::decompress_len(body).map_err(malformed)? > MAX_BYTES {
        return Err(TOO_LARGE);
    }
    snap::raw::Decoder::new().decompress_vec(body).map_err(malformed)
}

/// Translates a `WriteRequest` (`prompb/remote.proto` of Prometheus).
pub(crate) fn translate(request: &[u8]) -> Result<Lines, Fault> {
    let mut lines = Lines::default();
    let mut head = Vec::new();
    for field in Fields::of(request) {
        match field? {
            field if field.number == 1 => series(field.bytes()?, &mut head, &mut lines)?,
            field if field.number == 3 => lines.metadata += 1,
            // `symbols` and `timeseries` of `io.prometheus.write.v2.Request`.
            field if matches!(field.number, 4 | 5) => {
                return Err(Fault::Untranslatable("remote write 2.0 is not taken; send remote write 1.0"));
            }
            _ => {}
        }
    }
    Ok(lines)
}

/// A `TimeSeries`. `head` is a buffer for what all its lines begin with.
fn series(series: &[u8], head: &mut Vec<u8>, lines: &mut Lines) -> Result<(), Fault> {
    write_head(series, head)?;
    for field in Fields::of(series) {
        let field = field?;
        match field.number {
            2 => sample(field.bytes()?, head, lines)?,
            3 => lines.exemplars += 1,
            4 => return Err(Fault::Untranslatable("native histograms have no import lines; send classic histograms")),
            _ => {}
        }
    }
    Ok(())
}

/// Name and labels. Labels may stand behind the samples, so that they are read first.
fn write_head(series: &[u8], head: &mut Vec<u8>) -> Result<(), Fault> {
    head.clear();
    let mut name = None;
    for field in Fields::of(series) {
        if let Some(("__name__", value)) = label(field?)?
            && name.replace(value).is_some()
        {
            return Err(Fault::Malformed);
        }
    }
    let name = name.ok_or(Fault::Untranslatable("a series without a name has no import line"))?;
    write_name(head, name)?;
    let mut before = b'{';
    for field in Fields::of(series) {
        // An empty value is that of a label which is not there.
        let Some((name, value)) = label(field?)?.filter(|(name, value)| *name != "__name__" && !value.is_empty())
        else {
            continue;
        };
        head.push(before);
        before = b',';
        write_name(head, name)?;
        head.extend_from_slice(b"=\"");
        write_escaped(head, value);
        head.push(b'"');
    }
    if before == b',' {
        head.push(b'}');
    }
    Ok(())
}

/// The name and value of a label, if the field is one.
fn label(field: Field<'_>) -> Result<Option<(&str, &str)>, Fault> {
    if field.number == 1 { label_of(field.bytes()?).map(Some) } else { Ok(None) }
}

fn label_of(label: &[u8]) -> Result<(&str, &str), Fault> {
    let mut texts = [""; 2];
    for field in Fields::of(label) {
        let field = field?;
        let slot = match field.number {
            1 => &mut texts[0],
            2 => &mut texts[1],
            _ => continue,
        };
        *slot = field.text()?;
    }
    Ok((texts[0], texts[1]))
}

/// Names keep their every byte, or there are no lines: the stores' own grammar takes a few more than that of Prometheus.
fn write_name(out: &mut Vec<u8>, name: &str) -> Result<(), Fault> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':' | b'.');
    if name.is_empty() || name.as_bytes()[0].is_ascii_digit() || !name.bytes().all(is_plain) {
        return Err(Fault::Untranslatable("a name has other characters than letters, digits, _, : and ."));
    }
    out.extend_from_slice(name.as_bytes());
    Ok(())
}

/// A `Sample`.
fn sample(sample: &[u8], head: &[u8], lines: &mut Lines) -> Result<(), Fault> {
    let (mut value, mut timestamp_ms) = (0.0, 0_i64);
    for field in Fields::of(sample) {
        let field = field?;
        match field.number {
            1 => value = f64::from_bits(field.fixed64()?),
            2 => timestamp_ms = field.varint()?.cast_signed(),
            _ => {}
        }
    }
    if value.is_nan() {
        let is_marker = value.to_bits() == STALE_NAN;
        *(if is_marker { &mut lines.stale_markers } else { &mut lines.not_numbers }) += 1;
        return Ok(());
    }
    lines.body.extend_from_slice(head);
    lines.body.push(b' ');
    write_value(&mut lines.body, value);
    // A Vec takes every write.
    let _ = writeln!(lines.body, " {timestamp_ms}");
    lines.points += 1;
    if lines.body.len() > MAX_BYTES { Err(Fault::TooLarge) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct WriteRequest {
        #[prost(message, repeated, tag = "1")]
        timeseries: Vec<TimeSeries>,
        #[prost(message, repeated, tag = "3")]
        metadata: Vec<Unread>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct TimeSeries {
        #[prost(message, repeated, tag = "1")]
        labels: Vec<Label>,
        #[prost(message, repeated, tag = "2")]
        samples: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        exemplars: Vec<Unread>,
        #[prost(message, repeated, tag = "4")]
        histograms: Vec<Unread>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Label {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(string, tag = "2")]
        value: String,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Sample {
        #[prost(double, tag = "1")]
        value: f64,
        #[prost(int64, tag = "2")]
        timestamp: i64,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Unread {
        #[prost(uint64, tag = "7")]
        anything: u64,
    }

    fn series(labels: &[(&str, &str)], samples: &[(f64, i64)]) -> TimeSeries {
        let label = |(name, value): &(&str, &str)| Label { name: (*name).into(), value: (*value).into() };
        TimeSeries {
            labels: labels.iter().map(label).collect(),
            samples: samples.iter().map(|(value, timestamp)| Sample { value: *value, timestamp: *timestamp }).collect(),
            ..TimeSeries::default()
        }
    }

    fn request(timeseries: Vec<TimeSeries>) -> Vec<u8> {
        WriteRequest { timeseries, metadata: Vec::new() }.encode_to_vec()
    }

    fn lines(timeseries: Vec<TimeSeries>) -> Result<String, Fault> {
        Ok(String::from_utf8(translate(&request(timeseries))?.body).unwrap())
    }

    #[test]
    fn series_become_lines_that_say_the_same() {
        let labels = [("job", "a\"b\\c\nd"), ("__name__", "up"), ("empty", "")];
        assert_eq!(
            lines(vec![
                series(&labels, &[(1.0, 1_700_000_000_123), (0.1 + 0.2, -5), (f64::NEG_INFINITY, 0)]),
                series(&[("__name__", "a.b:c")], &[(0.0, 7)]),
                series(&[("__name__", "none")], &[]),
            ])
            .unwrap(),
            "up{job=\"a\\\"b\\\\c\\nd\"} 1 1700000000123\n\
             up{job=\"a\\\"b\\\\c\\nd\"} 0.30000000000000004 -5\n\
             up{job=\"a\\\"b\\\\c\\nd\"} -Inf 0\n\
             a.b:c 0 7\n"
        );
    }

    #[test]
    fn what_lines_have_no_word_for_is_counted() {
        let mut timeseries = series(
            &[("__name__", "up")],
            &[(f64::from_bits(STALE_NAN), 1), (f64::NAN, 2), (f64::from_bits(STALE_NAN), 3), (2.0, 4)],
        );
        timeseries.exemplars = vec![Unread { anything: 1 }; 3];
        let metadata = vec![Unread { anything: 1 }; 2];
        let read = translate(&WriteRequest { timeseries: vec![timeseries], metadata }.encode_to_vec()).unwrap();
        let body = b"up 2 4\n".to_vec();
        assert_eq!(read, Lines { body, points: 1, stale_markers: 2, not_numbers: 1, exemplars: 3, metadata: 2 });
    }

    #[test]
    fn what_a_store_would_have_kept_is_refused() {
        let mut histogram = series(&[("__name__", "h")], &[]);
        histogram.histograms = vec![Unread { anything: 1 }];
        for refused in [
            histogram,
            series(&[("job", "a")], &[(1.0, 1)]),
            series(&[("__name__", "größe")], &[(1.0, 1)]),
            series(&[("__name__", "a b")], &[(1.0, 1)]),
            series(&[("__name__", "up"), ("l\"", "x")], &[(1.0, 1)]),
            series(&[("__name__", "up"), ("", "x")], &[(1.0, 1)]),
        ] {
            let told = lines(vec![refused.clone()]);
            assert!(matches!(told, Err(Fault::Untranslatable(_))), "{refused:?}: {told:?}");
        }
        // `symbols` of version 2.0.
        assert!(matches!(translate(&[0x22, 0]), Err(Fault::Untranslatable(_))));
    }

    #[test]
    fn what_is_no_remote_write_is_told() {
        let whole = request(vec![series(&[("__name__", "up"), ("a", "b")], &[(1.0, 1)])]);
        for cut in 1..whole.len() {
            assert_eq!(translate(&whole[..cut]), Err(Fault::Malformed), "{cut}");
        }
        let twice = series(&[("__name__", "up"), ("__name__", "down")], &[(1.0, 1)]);
        assert_eq!(translate(&request(vec![twice])), Err(Fault::Malformed));
        assert_eq!(translate(&[0x0a, 4, 0x0a, 2, 0x0a, 9]), Err(Fault::Malformed));
        assert_eq!(translate(&[0x0a, 8, 0x0a, 6, 0x0a, 1, 0xff, 0x12, 1, b'x']), Err(Fault::Malformed));
    }

    #[test]
    fn labels_that_many_samples_repeat_do_not_burst_the_limit() {
        let value = "x".repeat(1 << 20);
        let repeated = |times| {
            let samples = vec![(1.0, 1); times];
            translate(&request(vec![series(&[("__name__", "up"), ("l", &value)], &samples)]))
        };
        assert_eq!(repeated(31).unwrap().points, 31);
        assert_eq!(repeated(32), Err(Fault::TooLarge));
    }

    #[test]
    fn a_block_that_claims_to_be_huge_is_refused_before_it_is_decoded() {
        let block = snap::raw::Encoder::new().compress_vec(&[b'x'; 1_000]).unwrap();
        assert_eq!(decompress(&block).unwrap(), [b'x'; 1_000]);
        assert_eq!(decompress(&block[..20]).unwrap_err().0, StatusCode::BAD_REQUEST);
        // A varint of 4 GiB - 1, and nothing behind it.
        assert_eq!(decompress(&[0xff, 0xff, 0xff, 0xff, 0x0f]).unwrap_err().0, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(decompress(b"").unwrap_err().0, StatusCode::BAD_REQUEST);
    }

    proptest! {
        #[test]
        fn every_point_reads_back_as_it_was(
            points in prop::collection::vec(
                ("[a-z_:][a-z0-9_:]{0,8}", prop::collection::btree_map("[a-z_]{1,6}x", ".{1,9}", 0..4), any::<f64>(), any::<i64>()),
                0..8,
            )
        ) {
            let timeseries = points.iter().map(|(name, labels, value, at)| {
                let named = [("__name__", name.as_str())];
                let labels: Vec<_> = named.into_iter().chain(labels.iter().map(|(n, v)| (n.as_str(), v.as_str()))).collect();
                series(&labels, &[(*value, *at)])
            });
            let read = translate(&request(timeseries.collect())).unwrap();
            let text = String::from_utf8(read.body).unwrap();
            let kept: Vec<_> = points.iter().filter(|(_, _, value, _)| !value.is_nan()).collect();
            let parsed: Vec<_> = text.lines().map(|line| telemetry_proto::exposition::parse_line(line.as_bytes()).unwrap().unwrap()).collect();
            prop_assert_eq!(kept.len(), parsed.len());
            for ((name, labels, value, at), point) in kept.into_iter().zip(parsed) {
                prop_assert_eq!(name.as_str(), &*point.name);
                prop_assert_eq!(*value, point.value);
                prop_assert_eq!(Some(*at), point.timestamp_ms);
                prop_assert_eq!(labels.len(), point.labels.len());
                for (label, text) in labels {
                    prop_assert_eq!(point.get(label), Some(text.as_str()));
                }
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = translate(&bytes);
            let _ = decompress(&bytes);
        }
    }
}
