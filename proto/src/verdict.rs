//! What a response means for the batch.

use std::fmt;

/// What a response means for the batch: the value of `Miren-Telemetry-Verdict`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// The store acknowledged the whole batch. Forget it.
    Delivered,
    /// This batch ID was acknowledged before. Forget it.
    Duplicate,
    /// Nothing is wrong with the batch. Keep it and try again, not before `Retry-After`.
    Retry,
    /// This batch will never be accepted. Put it aside.
    Reject,
    /// The token is missing or not valid. Keep the batch and send it with a new token.
    RefreshToken,
    /// Someone must change something (a grant, a tenant, a certificate). Keep the batch and try at a slow pace.
    Forbidden,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 6] =
        [Self::Delivered, Self::Duplicate, Self::Retry, Self::Reject, Self::RefreshToken, Self::Forbidden];

    /// The value of the header.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Duplicate => "duplicate",
            Self::Retry => "retry",
            Self::Reject => "reject",
            Self::RefreshToken => "refresh-token",
            Self::Forbidden => "forbidden",
        }
    }

    /// Reads the header's value; `None` for a verdict that we do not know.
    #[must_use]
    pub fn from_header(value: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|verdict| verdict.as_str().as_bytes() == value)
    }

    /// Whether the batch needs no further care.
    #[must_use]
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Delivered | Self::Duplicate)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_round_trips() {
        for verdict in Verdict::ALL {
            assert_eq!(Verdict::from_header(verdict.as_str().as_bytes()), Some(verdict));
        }
        assert_eq!(Verdict::from_header(b"Delivered"), None);
        assert_eq!(Verdict::from_header(b""), None);
    }
}
