//! One pass over a body: the rules it goes by, and what comes out.

use telemetry_proto::protobuf::{Field, Writer};

use super::{KeyClass, RemovedCounts, RewriteError, TraceLimits, TraceRules};

/// One pass over a body.
pub(super) struct Pass<'r> {
    pub(super) rules: &'r TraceRules,
    pub(super) limits: &'r TraceLimits,
    pub(super) out: Writer,
    pub(super) removed: RemovedCounts,
}

impl Pass<'_> {
    /// Reads a text that is removed. It counts unless it is empty, which is as good as absent.
    pub(super) fn remove_text(&mut self, field: Field<'_>, class: KeyClass) -> Result<(), RewriteError> {
        if !self.limits.text(field)?.is_empty() {
            self.removed.add(class);
        }
        Ok(())
    }

    /// The text, or as much of its beginning as `max_bytes` allow without cutting a character.
    pub(super) fn cut<'a>(&mut self, text: &'a str, max_bytes: usize) -> &'a str {
        if text.len() <= max_bytes {
            return text;
        }
        self.removed.add(KeyClass::Truncated);
        let mut end = max_bytes;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        &text[..end]
    }

    /// The value of an enum (an `int32` on the wire), or 0 for one above `max`, which OTLP does not know.
    pub(super) const fn known(&mut self, value: u64, max: u64) -> u64 {
        let value = value & 0xffff_ffff;
        if value <= max {
            return value;
        }
        self.removed.add(KeyClass::Unknown);
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        let (rules, limits) = (TraceRules::default(), TraceLimits::default());
        let (out, removed) = (Writer::with_capacity(0), RemovedCounts::default());
        let mut pass = Pass { rules: &rules, limits: &limits, out, removed };
        for (max, expected) in [(0, ""), (1, "a"), (2, "a"), (3, "aä"), (4, "aä"), (6, "aä"), (7, "aä😀"), (8, "aä😀")]
        {
            assert_eq!(pass.cut("aä😀", max), expected, "{max}");
        }
        assert_eq!(pass.removed.get(KeyClass::Truncated), 6);
    }
}
