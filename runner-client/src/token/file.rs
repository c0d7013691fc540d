//! Tokens from a file that someone else keeps fresh.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::Deserialize;
use telemetry_proto::limits::MAX_TOKEN_BYTES;
use tokio::io::AsyncReadExt as _;

use super::{InvalidToken, IssueError, IssuedToken, Token, TokenIssuer};

/// How often the file is looked at by default.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// How often it is looked whether the file is another one.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Room for white space around the token.
const MAX_FILE_BYTES: u64 = 2 * MAX_TOKEN_BYTES as u64;

/// Reads tokens from a file: trimmed, not empty, at most 8 KiB. The file is read again within a second or two of a change, and every
/// 10 s in any case, so that a token that is put there is used soon, whatever became of the old one.
///
/// Where the token is a JWT its end is read from the claim `exp`. The signature is not verified: that is the relay's
/// business, and the end only tells when to look for a newer one.
#[derive(Debug)]
pub struct FileIssuer {
    path: PathBuf,
    check_every: Duration,
    last: Mutex<Option<Token>>,
    /// The file that was read last; the inner `None`: there was none.
    seen: Mutex<Option<Option<Fingerprint>>>,
}

/// What tells a file's content from its content before. Not the time alone: two writes may share a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    modified: Option<SystemTime>,
    len: u64,
    inode: u64,
}

impl FileIssuer {
    /// Reads tokens from `path`. The file need not exist yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), check_every: CHECK_EVERY, last: Mutex::default(), seen: Mutex::default() }
    }

    /// Sets how often the file is looked at.
    #[must_use]
    pub const fn check_every(mut self, interval: Duration) -> Self {
        self.check_every = interval;
        self
    }

    fn take(&self, text: &str) -> Result<IssuedToken, InvalidToken> {
        let mut last = self.last.lock();
        let token = match last.as_ref().filter(|last| last.has_secret(text)) {
            Some(last) => last.clone(),
            None => Token::new(text, jwt_expiry(text))?,
        };
        *last = Some(token.clone());
        Ok(IssuedToken { check_again: Some(self.check_every), ..token.into() })
    }
}

impl TokenIssuer for FileIssuer {
    fn issue(&self) -> BoxFuture<'_, Result<IssuedToken, IssueError>> {
        async {
            // Before it is read: what changes meanwhile is seen the next time.
            let fingerprint = look(&self.path).await;
            *self.seen.lock() = Some(fingerprint);
            let text = read(&self.path).await.map_err(|error| IssueError::File(Arc::new(error)))?;
            Ok(self.take(&text)?)
        }
        .boxed()
    }

    fn news(&self) -> Option<BoxFuture<'_, ()>> {
        let changed = async {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let now = look(&self.path).await;
                if self.seen.lock().is_some_and(|seen| seen != now) {
                    return;
                }
            }
        };
        Some(changed.boxed())
    }
}

async fn look(path: &Path) -> Option<Fingerprint> {
    let metadata = tokio::fs::metadata(path).await.ok()?;
    Some(Fingerprint { modified: metadata.modified().ok(), len: metadata.len(), inode: metadata.ino() })
}

async fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = tokio::fs::File::open(path).await?;
    // One byte more than may be there: what is cut would pass for a whole token.
    let length = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).await?;
    if length as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the token file is too large"));
    }
    Ok(text)
}

/// The claim `exp` of a JWT (RFC 7519 section 4.1.4), unverified.
fn jwt_expiry(text: &str) -> Option<SystemTime> {
    #[derive(Deserialize)]
    struct Expiry {
        exp: u64,
    }
    let mut parts = text.trim().split('.');
    let (_, payload, _, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else { return None };
    let json = BASE64_URL_SAFE_NO_PAD.decode(payload).ok()?;
    let Expiry { exp } = serde_json::from_slice(&json).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(exp))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jwt(claims: &str) -> String {
        format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[tokio::test]
    async fn a_token_is_read_anew_when_the_file_changes_and_is_the_same_one_otherwise() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let issuer = FileIssuer::new(file.path());
        std::fs::write(file.path(), "\n  first \n").unwrap();
        let first = issuer.issue().await.unwrap().token;
        assert_eq!(first.header(), "first");
        assert!(issuer.issue().await.unwrap().token.is_same(&first));
        std::fs::write(file.path(), "other").unwrap();
        assert_eq!(issuer.issue().await.unwrap().token.header(), "other");
    }

    #[tokio::test]
    async fn a_change_is_news_until_it_was_read_good_or_bad() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let issuer = FileIssuer::new(&path);
        let is_news = async || tokio::time::timeout(3 * LOOK_EVERY, issuer.news().unwrap()).await.is_ok();
        assert!(issuer.issue().await.is_err(), "there is no file yet");
        assert!(!is_news().await);
        for (text, is_good) in [("first", true), ("two words", false), ("second", true)] {
            std::fs::write(&path, text).unwrap();
            assert!(is_news().await, "{text}");
            assert_eq!(issuer.issue().await.is_ok(), is_good, "{text}");
        }
        assert!(!is_news().await);
    }

    #[tokio::test]
    async fn files_without_a_token_are_errors_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let issuer = FileIssuer::new(&path);
        assert!(matches!(issuer.issue().await, Err(IssueError::File(_))));
        let issue_from = async |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            issuer.issue().await.map(drop).unwrap_err()
        };
        assert!(matches!(issue_from(b" \n").await, IssueError::Invalid(InvalidToken::Empty)));
        assert!(matches!(issue_from(&[b'a'; MAX_TOKEN_BYTES + 1]).await, IssueError::Invalid(InvalidToken::TooLarge)));
        assert!(matches!(issue_from(&[b'a'; 1 << 20]).await, IssueError::File(_)));
        assert!(matches!(issue_from(&[0xff]).await, IssueError::File(_)));
        assert!(matches!(issue_from(b"two words").await, IssueError::Invalid(InvalidToken::Charset)));
    }

    #[test]
    fn the_end_is_read_from_a_jwt_and_from_nothing_else() {
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
        assert_eq!(jwt_expiry(&jwt(r#"{"exp":1900000000,"iss":"x"}"#)), Some(end));
        for text in [
            "opaque".to_owned(),
            jwt("{}"),
            jwt(r#"{"exp":"1900000000"}"#),
            jwt(r#"{"exp":-1}"#),
            jwt(r#"{"exp":1e300}"#),
            jwt(r#"{"exp":18446744073709551615}"#),
            format!("{}.x", jwt(r#"{"exp":1900000000}"#)),
            "a.!.b".to_owned(),
        ] {
            assert_eq!(jwt_expiry(&text), None, "{text}");
        }
    }
}
