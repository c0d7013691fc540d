//! The name of a tenant.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest name of a tenant.
const MAX_BYTES: usize = 64;

/// A tenant's name: `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`.
///
/// The charset is strict because the name becomes a label value, in the store and in the relay's own metrics, and a log word.
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantName(Arc<str>);

/// The text is no name of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a tenant's name: expected 1 to 64 of A-Z a-z 0-9 . _ - and a letter or digit first")]
pub struct TenantNameError;

impl TenantName {
    /// The name of the one tenant that there is where none is configured.
    #[must_use]
    pub fn default_tenant() -> Self {
        Self("default".into())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TenantName {
    type Err = TenantNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let starts_well = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        let all_allowed = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if starts_well && all_allowed && text.len() <= MAX_BYTES { Ok(Self(text.into())) } else { Err(TenantNameError) }
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TenantName({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charset_is_strict() {
        let longest = "a".repeat(MAX_BYTES);
        for good in ["acme", "7", "acme.eu-1_x", &longest] {
            assert_eq!(good.parse::<TenantName>().unwrap().as_str(), good);
        }
        let too_long = "a".repeat(MAX_BYTES + 1);
        for bad in ["", "-a", "a b", "a=b", "a&b", "a,b", "ä", "a\n", "*", &too_long] {
            assert_eq!(bad.parse::<TenantName>(), Err(TenantNameError), "{bad:?}");
        }
    }
}
