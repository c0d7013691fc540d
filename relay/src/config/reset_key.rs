//! The key of stateless resets, kept in a file.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file is not what this program wrote.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResetKeyError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("holds {0} bytes and not the 64 of a reset key; if nothing else needs it, remove it")]
    Length(usize),
}

/// Reads the key, or makes one that only the owner can read.
pub(super) fn load_or_make(path: &Path) -> Result<[u8; 64], ResetKeyError> {
    match std::fs::read(path) {
        Ok(bytes) => <[u8; 64]>::try_from(bytes).map_err(|bytes| ResetKeyError::Length(bytes.len())),
        Err(error) if error.kind() == ErrorKind::NotFound => make(path),
        Err(error) => Err(error.into()),
    }
}

fn make(path: &Path) -> Result<[u8; 64], ResetKeyError> {
    let mut key = [0; 64];
    aws_lc_rs::rand::fill(&mut key).map_err(|_| io::Error::other("the system gives no random bytes"))?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&key)?;
    file.sync_all()?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_outlives_a_restart_and_a_foreign_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reset-key");
        let made = load_or_make(&path).unwrap();
        assert_eq!(load_or_make(&path).unwrap(), made);
        assert_ne!(load_or_make(&dir.path().join("other")).unwrap(), made);
        std::fs::write(&path, "short").unwrap();
        assert!(matches!(load_or_make(&path), Err(ResetKeyError::Length(5))));
        assert!(load_or_make(&dir.path().join("no/such/folder")).is_err());
    }
}
