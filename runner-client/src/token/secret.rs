//! The token itself.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderValue;
use telemetry_proto::limits::MAX_TOKEN_BYTES;

/// A workload token, ready to be put into a request. Cheap to clone; its `Debug` does not show the secret.
#[derive(Clone)]
pub struct Token(Arc<Inner>);

struct Inner {
    header: HeaderValue,
    expires_at: Option<SystemTime>,
}

/// The text can't be a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidToken {
    /// There is nothing but white space.
    #[error("the token is empty")]
    Empty,
    /// More than [`MAX_TOKEN_BYTES`].
    #[error("the token is larger than 8 KiB")]
    TooLarge,
    /// A character that no JWT has and no header may carry.
    #[error("the token has a character that no token has")]
    Charset,
}

impl Token {
    /// Takes a token that ends at `expires_at`, by its issuer's clock. `None`: unknown. White space around it is
    /// ignored.
    ///
    /// # Errors
    /// The text is empty, larger than 8 KiB, or holds something other than visible ASCII.
    pub fn new(secret: &str, expires_at: Option<SystemTime>) -> Result<Self, InvalidToken> {
        let secret = secret.trim();
        if secret.is_empty() {
            return Err(InvalidToken::Empty);
        }
        if secret.len() > MAX_TOKEN_BYTES {
            return Err(InvalidToken::TooLarge);
        }
        if !secret.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(InvalidToken::Charset);
        }
        let mut header = HeaderValue::from_str(secret).map_err(|_| InvalidToken::Charset)?;
        header.set_sensitive(true);
        Ok(Self(Arc::new(Inner { header, expires_at })))
    }

    /// When the token ends, by its issuer's clock, if that is known.
    #[must_use]
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.0.expires_at
    }

    /// Whether both are the one token: clones of each other, not merely equal text.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The value of the header `Miren-Workload-Token`, marked as sensitive.
    #[must_use]
    pub fn header(&self) -> HeaderValue {
        self.0.header.clone()
    }

    pub(super) fn has_secret(&self, secret: &str) -> bool {
        self.0.header.as_bytes() == secret.trim().as_bytes()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("expires_at", &self.0.expires_at).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_no_token_is_refused() {
        assert_eq!(Token::new("\n \t", None).unwrap_err(), InvalidToken::Empty);
        assert_eq!(Token::new(&"a".repeat(MAX_TOKEN_BYTES + 1), None).unwrap_err(), InvalidToken::TooLarge);
        for text in ["a b", "a\r\nx: y", "ä", "a\0"] {
            assert_eq!(Token::new(text, None).unwrap_err(), InvalidToken::Charset, "{text:?}");
        }
        assert!(Token::new(&"a".repeat(MAX_TOKEN_BYTES), None).is_ok());
    }

    #[test]
    fn no_debug_print_shows_the_secret() {
        let token = Token::new(" SECRET\n", None).unwrap();
        assert_eq!(token.header(), "SECRET");
        assert!(!format!("{token:?} {:?}", token.header()).contains("SECRET"));
    }
}
