//! The token of a writer that is no runner: one from a file, that stays the same.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{Digest, SHA256, digest};
use telemetry_proto::limits::MAX_TOKEN_BYTES;

/// A static bearer token. Only its hash is kept.
#[derive(Clone)]
pub struct StaticToken(Digest);

/// The token can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StaticTokenError {
    /// The file can't be read.
    #[error("can't be read: {0}")]
    Read(#[from] std::io::Error),
    /// There is nothing but white space.
    #[error("is empty")]
    Empty,
    /// It is larger than 8 KiB, with the white space around it.
    #[error("is larger than {MAX_TOKEN_BYTES} bytes")]
    TooLarge,
    /// It has something in it that a header can't carry.
    #[error("holds something else than visible ASCII characters")]
    NotVisible,
}

impl StaticToken {
    /// Takes a token, without the white space around it.
    ///
    /// # Errors
    /// [`StaticTokenError`]; it never quotes the token.
    pub fn new(text: &[u8]) -> Result<Self, StaticTokenError> {
        if text.len() > MAX_TOKEN_BYTES {
            return Err(StaticTokenError::TooLarge);
        }
        match text.trim_ascii() {
            [] => Err(StaticTokenError::Empty),
            token if token.iter().all(u8::is_ascii_graphic) => Ok(Self(digest(&SHA256, token))),
            _ => Err(StaticTokenError::NotVisible),
        }
    }

    /// Reads the token of a file. Blocks on the disk.
    ///
    /// # Errors
    /// [`StaticTokenError`]
    pub fn from_file(path: &Path) -> Result<Self, StaticTokenError> {
        let mut text = Vec::new();
        File::open(path)?.take(MAX_TOKEN_BYTES as u64 + 1).read_to_end(&mut text)?;
        Self::new(&text)
    }

    /// Whether `shown` is the token. How long that takes says nothing about it: hashes are compared, in constant time.
    #[must_use]
    pub fn is(&self, shown: &str) -> bool {
        let shown = digest(&SHA256, shown.as_bytes());
        verify_slices_are_equal(self.0.as_ref(), shown.as_ref()).is_ok()
    }
}

impl fmt::Debug for StaticToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StaticToken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_trimmed_and_must_be_there_and_be_small_and_visible() {
        let token = StaticToken::new(b" \n\ts3cret.token\r\n").unwrap();
        assert!(token.is("s3cret.token"));
        for other in ["", "s3cret.toke", "s3cret.tokens", "S3cret.token", " s3cret.token"] {
            assert!(!token.is(other), "{other:?}");
        }
        assert!(!format!("{token:?}").contains("s3cret"));
        let longest = vec![b'a'; MAX_TOKEN_BYTES];
        assert!(StaticToken::new(&longest).is_ok());
        for (bad, error) in [
            (&b""[..], "is empty"),
            (b" \n\t\r\n", "is empty"),
            (&[&longest[..], b"a"].concat(), "is larger than 8192 bytes"),
            (b"two tokens", "holds something else than visible ASCII characters"),
            (b"t\xc3\xa4ken", "holds something else than visible ASCII characters"),
            (b"a\0b", "holds something else than visible ASCII characters"),
        ] {
            assert_eq!(StaticToken::new(bad).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn a_file_is_read_within_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(matches!(StaticToken::from_file(&path), Err(StaticTokenError::Read(_))));
        std::fs::write(&path, "token\n").unwrap();
        assert!(StaticToken::from_file(&path).unwrap().is("token"));
        std::fs::write(&path, vec![b'a'; 1 << 20]).unwrap();
        assert!(matches!(StaticToken::from_file(&path), Err(StaticTokenError::TooLarge)));
    }
}
