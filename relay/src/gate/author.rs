//! Under whose name batches are filed.

use std::fmt;

use telemetry_proto::{RunnerId, WriterName};

/// Who a batch is from: under this name it is filed, counted and limited. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Author {
    /// A runner.
    Runner(RunnerId),
    /// A configured writer that is no runner.
    Writer(WriterName),
}

impl Author {
    /// What names it in stores and logs: a runner's ID, or `writer:NAME`, which no runner's ID can be. It needs no escaping:
    /// a colon is allowed in the query of a URL (RFC 3986 section 3.4).
    #[must_use]
    pub fn label(&self) -> &str {
        match self {
            Self::Runner(runner) => runner.as_str(),
            Self::Writer(name) => name.label(),
        }
    }

    /// The runner, if it is one.
    #[must_use]
    pub const fn runner(&self) -> Option<&RunnerId> {
        match self {
            Self::Runner(runner) => Some(runner),
            Self::Writer(_) => None,
        }
    }

    /// The writer, if it is one that is no runner.
    #[must_use]
    pub const fn writer(&self) -> Option<&WriterName> {
        match self {
            Self::Runner(_) => None,
            Self::Writer(name) => Some(name),
        }
    }
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl From<RunnerId> for Author {
    fn from(runner: RunnerId) -> Self {
        Self::Runner(runner)
    }
}

impl From<WriterName> for Author {
    fn from(name: WriterName) -> Self {
        Self::Writer(name)
    }
}
