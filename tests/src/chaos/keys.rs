//! The issuer's keys, which change, and tokens with short lives that are signed with them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use telemetry_proto::RunnerId;
use telemetry_relay::gate::{KeySet, SignatureAlgorithm};
use telemetry_relay::issuer::SigningKey;
use telemetry_runner_client::{IssueError, IssuedToken, Token, TokenIssuer};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::ChaosError;
use crate::rig::{ISSUER, TokenBuilder};

/// The life of the tokens that are made here. The relay's leeway is a second.
const LIFE: Duration = Duration::from_secs(3);
/// How often a token in a file is replaced.
const REPLACE_EVERY: Duration = Duration::from_secs(1);

/// The keys that tokens are signed with.
pub(super) struct Keys {
    /// Keys of before, as the relay reads them.
    previous: PathBuf,
    state: Mutex<State>,
    /// Whether no token is made.
    are_paused: AtomicBool,
}

struct State {
    signing: Arc<SigningKey>,
    former: KeySet,
}

impl Keys {
    /// A first key.
    pub(super) fn new(folder: &Path) -> Result<Self, ChaosError> {
        let state = State { signing: Arc::new(generate()?), former: nobodys()? };
        let keys = Self {
            previous: folder.join("previous.json"),
            state: Mutex::new(state),
            are_paused: AtomicBool::new(false),
        };
        write(&keys.previous, &keys.state.lock().former.to_jwks())?;
        Ok(keys)
    }

    /// The file with the keys of before.
    pub(super) fn previous(&self) -> &Path {
        &self.previous
    }

    /// The key that signs.
    pub(super) fn signing(&self) -> Arc<SigningKey> {
        Arc::clone(&self.state.lock().signing)
    }

    /// Signs with a new key from now on, and writes it to `signing_key`, where the relay reads it. Tokens of the keys before are still
    /// good, or worthless.
    pub(super) fn change(&self, signing_key: &Path, keep: bool) -> Result<(), ChaosError> {
        let next = generate()?;
        let setup = |error: &dyn std::fmt::Display| ChaosError::Setup(error.to_string());
        let mut state = self.state.lock();
        let former = if keep {
            let last = KeySet::of(state.signing.kid(), state.signing.public().clone()).map_err(|e| setup(&e))?;
            state.former.merge(&last).map_err(|e| setup(&e))?
        } else {
            nobodys()?
        };
        // The keys of before first: in between, a relay that starts knows one key more, not one less.
        write(&self.previous, &former.to_jwks())?;
        write(signing_key, &next.to_pem().map_err(|e| setup(&e))?)?;
        *state = State { signing: Arc::new(next), former };
        Ok(())
    }

    /// Makes no tokens, or makes them again.
    pub(super) fn pause(&self, paused: bool) {
        self.are_paused.store(paused, Ordering::SeqCst);
    }

    fn mint(&self, runner: &RunnerId) -> Option<(String, SystemTime)> {
        if self.are_paused.load(Ordering::SeqCst) {
            return None;
        }
        let ends = SystemTime::now() + LIFE;
        let seconds = ends.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Some((TokenBuilder::good(ISSUER, runner).claim("exp", seconds).sign(&self.signing()), ends))
    }

    /// An issuer in this process for one runner.
    pub(super) fn issuer(self: &Arc<Self>, runner: &RunnerId) -> Arc<dyn TokenIssuer> {
        Arc::new(ShortLived { keys: Arc::clone(self), runner: runner.clone() })
    }

    /// Keeps a token of a runner in a file, until the handle is aborted.
    pub(super) fn keep_in(self: &Arc<Self>, file: PathBuf, runner: RunnerId) -> io::Result<AbortHandle> {
        if let Some((token, _)) = self.mint(&runner) {
            write(&file, &token)?;
        }
        let keys = Arc::clone(self);
        let task = tokio::spawn(async move {
            loop {
                sleep(REPLACE_EVERY).await;
                if let Some((token, _)) = keys.mint(&runner) {
                    // Missing one is what this is about.
                    let _ = write(&file, &token);
                }
            }
        });
        Ok(task.abort_handle())
    }
}

struct ShortLived {
    keys: Arc<Keys>,
    runner: RunnerId,
}

impl TokenIssuer for ShortLived {
    fn issue(&self) -> BoxFuture<'_, Result<IssuedToken, IssueError>> {
        async {
            let (token, ends) = self.keys.mint(&self.runner).ok_or(IssueError::Timeout)?;
            Ok(Token::new(&token, Some(ends))?.into())
        }
        .boxed()
    }
}

fn generate() -> Result<SigningKey, ChaosError> {
    SigningKey::generate(SignatureAlgorithm::EdDsa).map_err(|error| ChaosError::Setup(error.to_string()))
}

/// A key that has never signed anything: a file of keys is not empty.
fn nobodys() -> Result<KeySet, ChaosError> {
    let key = generate()?;
    KeySet::of(key.kid(), key.public().clone()).map_err(|error| ChaosError::Setup(error.to_string()))
}

/// Whole or not at all, as whoever replaces files that others read should.
pub(super) fn write(file: &Path, text: &str) -> io::Result<()> {
    let next = file.with_extension("next");
    fs::write(&next, text)?;
    fs::rename(next, file)
}
