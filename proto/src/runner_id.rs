//! The identity of a runner.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits::MAX_RUNNER_ID_BYTES;

/// A runner's ID: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.
///
/// The charset is strict because the ID becomes a label value, a field value, a query argument and a log word, and must
/// need no escaping in any of them. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunnerId(Arc<str>);

/// The text is no runner ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a runner ID: expected 1 to 128 of A-Z a-z 0-9 . _ - and a letter or digit first")]
pub struct RunnerIdError;

impl RunnerId {
    /// Parses an ID.
    ///
    /// # Errors
    /// [`RunnerIdError`] when the text is empty, too long, or has another character.
    pub fn new(id: &str) -> Result<Self, RunnerIdError> {
        let bytes = id.as_bytes();
        let starts_well = bytes.first().is_some_and(u8::is_ascii_alphanumeric);
        let all_allowed = bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if starts_well && all_allowed && bytes.len() <= MAX_RUNNER_ID_BYTES {
            Ok(Self(id.into()))
        } else {
            Err(RunnerIdError)
        }
    }

    /// The ID as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RunnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunnerId({})", self.0)
    }
}

impl AsRef<str> for RunnerId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for RunnerId {
    type Err = RunnerIdError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::new(s)
    }
}

impl TryFrom<String> for RunnerId {
    type Error = RunnerIdError;

    fn try_from(s: String) -> Result<Self, Self::Error> {
        Self::new(&s)
    }
}

impl From<RunnerId> for String {
    fn from(id: RunnerId) -> Self {
        id.0.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charset_is_strict() {
        let longest = "a".repeat(MAX_RUNNER_ID_BYTES);
        for good in ["r7", "0", "0b2e9a6c-3b1f-4a55-9a0f-0d7f7a4f8c11", "a._-", &longest] {
            assert_eq!(RunnerId::new(good).unwrap().as_str(), good);
        }
        let too_long = "a".repeat(MAX_RUNNER_ID_BYTES + 1);
        for bad in ["", "-a", ".a", "_a", "a b", "a\"", "a,b", "a=b", "a&b", "a\n", "ä", "a\0", "*", &too_long] {
            assert_eq!(RunnerId::new(bad), Err(RunnerIdError), "{bad:?}");
        }
    }
}
