//! How much one body of spans may hold.

use serde::Deserialize;
use telemetry_proto::limits::MAX_BODY_BYTES;
use telemetry_proto::protobuf::Field;

use super::RewriteError;

/// Arrays and maps in each other, at most: 7 messages surround an attribute's value and each map adds 3, which stays
/// below the 100 messages in each other that protobuf decoders customarily take.
const NESTING_CEILING: usize = 30;

/// What a resource may grow by: the runner's attribute with the longest ID, and the lengths of what is around it.
const GROWTH_PER_RESOURCE_BYTES: usize = 192;

/// The smallest span that is accepted: its two IDs, and the field that it is.
const MIN_SPAN_BYTES: usize = 30;

/// How much one body of spans may hold. More is 413 for the whole body; what is removed counts as well. The last two
/// cut what is kept instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TraceLimits {
    /// The body after decompression, in bytes. Default 32 MiB; VictoriaTraces takes 64 MiB.
    pub max_body_bytes: usize,
    /// Spans, and resources that they come from. Default 65,536: far above the 512 of a runner and the 8,192 of an
    /// OpenTelemetry collector.
    pub max_spans: usize,
    /// Attributes of one span, and of one resource. Default 256: twice what an OpenTelemetry SDK records.
    pub max_attributes: usize,
    /// Links of one span. Default 128, which is what an OpenTelemetry SDK records. The store makes up to five fields of
    /// each, and with 256 attributes a span stays within the 1,000 fields that it keeps.
    pub max_links: usize,
    /// Arrays and maps in each other, in the value of an attribute; 0 allows scalars only. Default 16, at most 30.
    pub max_nesting: usize,
    /// The longest string or byte string, in bytes. Default 1 MiB.
    pub max_string_bytes: usize,
    /// The name of a span is cut at so many bytes. Default 256.
    pub max_name_bytes: usize,
    /// A string that is the value of an attribute is cut at so many bytes. Default 1,024.
    pub max_value_bytes: usize,
}

impl Default for TraceLimits {
    fn default() -> Self {
        Self {
            max_body_bytes: usize::try_from(MAX_BODY_BYTES).unwrap_or(usize::MAX),
            max_spans: 65_536,
            max_attributes: 256,
            max_links: 128,
            max_nesting: 16,
            max_string_bytes: 1024 * 1024,
            max_name_bytes: 256,
            max_value_bytes: 1_024,
        }
    }
}

impl TraceLimits {
    /// The most that a body of `len` bytes becomes, in bytes: what to reserve before it is rewritten.
    #[must_use]
    pub fn max_rewritten_bytes(&self, len: usize) -> usize {
        rewritten_bytes(len, self.max_spans)
    }

    /// The limits that are zero and must not be, by the names of their keys below `traces`.
    pub(super) fn zeros(&self) -> impl Iterator<Item = &'static str> + use<> {
        // Zero as the nesting means scalars only.
        let Self {
            max_body_bytes,
            max_spans,
            max_attributes,
            max_links,
            max_nesting: _,
            max_string_bytes,
            max_name_bytes,
            max_value_bytes,
        } = *self;
        let limits = [
            ("limits.max_body_bytes", max_body_bytes),
            ("limits.max_spans", max_spans),
            ("limits.max_attributes", max_attributes),
            ("limits.max_links", max_links),
            ("limits.max_string_bytes", max_string_bytes),
            ("limits.max_name_bytes", max_name_bytes),
            ("limits.max_value_bytes", max_value_bytes),
        ];
        limits.into_iter().filter(|(_, limit)| *limit == 0).map(|(key, _)| key)
    }

    /// How deep arrays and maps may nest.
    pub(super) fn nesting(&self) -> usize {
        self.max_nesting.min(NESTING_CEILING)
    }

    pub(super) fn text<'a>(&self, field: Field<'a>) -> Result<&'a str, RewriteError> {
        self.bytes(field)?;
        Ok(field.text()?)
    }

    pub(super) fn bytes<'a>(&self, field: Field<'a>) -> Result<&'a [u8], RewriteError> {
        let bytes = field.bytes()?;
        if bytes.len() > self.max_string_bytes {
            return Err(RewriteError::StringBytes(self.max_string_bytes));
        }
        Ok(bytes)
    }
}

/// The most that a body of `len` bytes with so many resources becomes, or is on the way there. One without spans is taken
/// back.
pub(super) fn rewritten_bytes(len: usize, resources: usize) -> usize {
    let with_spans = resources.min(len / MIN_SPAN_BYTES + 1);
    len.saturating_add(with_spans.saturating_mul(GROWTH_PER_RESOURCE_BYTES))
}

/// `Err(error(max))` if there are more than `max`.
pub(super) fn at_most(max: usize, count: usize, error: fn(usize) -> RewriteError) -> Result<(), RewriteError> {
    if count > max { Err(error(max)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_toml_and_unknown_ones_refused() {
        let limits: TraceLimits = toml::from_str("max_spans = 7").unwrap();
        assert_eq!(limits, TraceLimits { max_spans: 7, ..TraceLimits::default() });
        assert!(toml::from_str::<TraceLimits>("max_spam = 7").is_err());
    }

    #[test]
    fn nesting_has_a_ceiling() {
        let limits = TraceLimits { max_nesting: usize::MAX, ..TraceLimits::default() };
        assert_eq!(limits.nesting(), NESTING_CEILING);
    }
}
