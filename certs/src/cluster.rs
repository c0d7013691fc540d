//! The name of a cluster.

use std::fmt;
use std::str::FromStr;

/// The longest cluster name in bytes.
const MAX_BYTES: usize = 63;

/// A cluster's name: 1 to 63 of `a-z 0-9 . _ -`, a letter or digit first, with something before, between and after
/// dots.
///
/// It is the trust domain of the SPIFFE IDs in this cluster's certificates (SPIFFE-ID, section 2.1), hence the charset.
/// Empty labels are not allowed because Go does not parse a certificate with a URI whose host has one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClusterName(String);

/// The text is no cluster name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a cluster name: expected 1 to 63 of a-z 0-9 . _ -, a letter or digit first, no dot at the end or after a dot"
)]
pub struct ClusterNameError;

impl ClusterName {
    /// Parses a name.
    ///
    /// # Errors
    /// [`ClusterNameError`] when the text is anything else.
    pub fn new(name: &str) -> Result<Self, ClusterNameError> {
        let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let bytes = name.as_bytes();
        let starts_well = bytes.first().is_some_and(alphanumeric);
        let all_allowed = bytes.iter().all(|b| alphanumeric(b) || matches!(b, b'.' | b'_' | b'-'));
        let no_empty_label = name.split('.').all(|label| !label.is_empty());
        if starts_well && all_allowed && no_empty_label && bytes.len() <= MAX_BYTES {
            Ok(Self(name.to_owned()))
        } else {
            Err(ClusterNameError)
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ClusterName {
    type Err = ClusterNameError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::new(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charset_is_that_of_a_trust_domain() {
        let longest = "a".repeat(MAX_BYTES);
        for good in ["c", "7", "prod.eu-1_a", &longest] {
            assert_eq!(ClusterName::new(good).unwrap().as_str(), good);
        }
        let too_long = "a".repeat(MAX_BYTES + 1);
        for bad in
            ["", "-a", ".a", "a.", "a..b", "Prod", "a b", "a/b", "a:1", "a@b", "a%20", "ä", "a\0", "*", &too_long]
        {
            assert_eq!(ClusterName::new(bad), Err(ClusterNameError), "{bad:?}");
        }
    }
}
