//! The name of a writer that is no runner.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::RunnerId;
use crate::limits::MAX_RUNNER_ID_BYTES;

/// What a writer's [label](WriterName::label) begins with. No runner's ID has a colon in it.
const LABEL_PREFIX: &str = "writer:";

/// The name of a writer that is no runner, a gateway for example. Its charset is that of a [`RunnerId`]. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriterName(Arc<str>);

/// The text is no writer's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a writer's name: expected 1 to 128 of A-Z a-z 0-9 . _ - and a letter or digit first")]
pub struct WriterNameError;

impl WriterName {
    /// How long a [label](Self::label) is at most, in bytes.
    pub const MAX_LABEL_BYTES: usize = LABEL_PREFIX.len() + MAX_RUNNER_ID_BYTES;

    /// Parses a name.
    ///
    /// # Errors
    /// [`WriterNameError`] when the text is empty, too long, or has another character.
    pub fn new(name: &str) -> Result<Self, WriterNameError> {
        RunnerId::new(name).map_err(|_| WriterNameError)?;
        Ok(Self(format!("{LABEL_PREFIX}{name}").into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.strip_prefix(LABEL_PREFIX).unwrap_or(&self.0)
    }

    /// What stands where a runner's ID stands otherwise: `writer:NAME`. It is no runner's ID, so that neither can pass for the
    /// other.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WriterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for WriterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriterName({self})")
    }
}

impl FromStr for WriterName {
    type Err = WriterNameError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::new(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_runner_can_have_a_writers_label() {
        let name = WriterName::new("otel.gateway-1").unwrap();
        assert_eq!((name.as_str(), name.label()), ("otel.gateway-1", "writer:otel.gateway-1"));
        assert!(RunnerId::new(name.label()).is_err());
        for bad in ["", "-a", "a b", "a:b", "writer:a", "a\n", "a\"", "ä"] {
            assert_eq!(WriterName::new(bad), Err(WriterNameError), "{bad:?}");
        }
        let longest = WriterName::new(&"a".repeat(MAX_RUNNER_ID_BYTES)).unwrap();
        assert_eq!(longest.label().len(), WriterName::MAX_LABEL_BYTES);
    }
}
