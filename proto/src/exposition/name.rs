//! Metric and label names: which bytes they may hold, and how others are made to fit.

use std::borrow::Cow;

/// Makes any text a metric name, `[A-Za-z_:][A-Za-z0-9_:]*`: another character becomes `_`, a digit in front gets a `_`
/// before it, and nothing at all becomes `_`.
#[must_use]
pub fn sanitize_metric_name(name: &str) -> Cow<'_, str> {
    sanitize(name, is_metric_name_byte)
}

/// Makes any text a label name, `[A-Za-z_][A-Za-z0-9_]*`, in the way of [`sanitize_metric_name`].
#[must_use]
pub fn sanitize_label_name(name: &str) -> Cow<'_, str> {
    sanitize(name, is_label_name_byte)
}

pub(super) const fn is_metric_name_byte(byte: u8) -> bool {
    is_label_name_byte(byte) || byte == b':'
}

pub(super) const fn is_label_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether a non-empty run of name bytes may stand as a name.
pub(super) fn starts_like_a_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with(|first: char| first.is_ascii_digit())
}

fn sanitize(name: &str, allowed: fn(u8) -> bool) -> Cow<'_, str> {
    if starts_like_a_name(name) && name.bytes().all(allowed) {
        return Cow::Borrowed(name);
    }
    let mut clean = String::with_capacity(name.len() + 1);
    if !starts_like_a_name(name) {
        clean.push('_');
    }
    clean.extend(name.chars().map(|c| if u8::try_from(c).is_ok_and(allowed) { c } else { '_' }));
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_are_left_alone_without_a_copy() {
        for name in ["up", "_", "a:b", ":a", "A9_"] {
            assert!(matches!(sanitize_metric_name(name), Cow::Borrowed(same) if same == name));
        }
        assert!(matches!(sanitize_label_name("le"), Cow::Borrowed("le")));
    }

    #[test]
    fn other_names_are_made_to_fit() {
        for (name, clean) in [("", "_"), ("9a", "_9a"), ("a.b-c", "a_b_c"), ("größe", "gr__e"), ("\u{9f}", "_")] {
            assert_eq!(sanitize_metric_name(name), clean);
            assert_eq!(sanitize_label_name(name), clean);
        }
        assert_eq!(sanitize_metric_name("a:b"), "a:b");
        assert_eq!(sanitize_label_name("a:b"), "a_b");
    }
}
