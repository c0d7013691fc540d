//! Is this token good? Signature, claims, time.

use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::digest::{SHA256, digest};
use quick_cache::sync::Cache;
use telemetry_proto::claims::{Expectations, VerifiedClaims};
use telemetry_proto::{Clock, Reason};

use super::authenticate::{authenticate, check_size};
use super::keys::KeySet;

/// How many verified tokens are remembered by default. With tokens of our own issuer one takes some 300 bytes by
/// estimate, a full cache some 5 MiB; the limit on a token's size keeps any other below 8 KiB.
pub const DEFAULT_CACHE_ENTRIES: usize = 16 * 1024;

/// Decides whether a token is good. Whether it belongs to the peer that shows it is asked later, by
/// [`Principal::bind`](super::Principal::bind).
///
/// It is called once per request and must neither block nor wait.
pub trait TokenVerifier: Send + Sync + 'static {
    /// Verifies a token.
    ///
    /// # Errors
    /// The [`Reason`] of the first check that fails: one of `token-*`.
    fn verify(&self, token: &str) -> Result<Arc<VerifiedClaims>, Reason>;
}

impl<V: TokenVerifier + ?Sized> TokenVerifier for Arc<V> {
    fn verify(&self, token: &str) -> Result<Arc<VerifiedClaims>, Reason> {
        (**self).verify(token)
    }
}

/// Verifies JWTs (RFC 7519, RFC 8725) against a set of keys, and remembers the good ones.
///
/// Keys, expectations and memory are one snapshot behind one handle. To publish other keys is to begin with an empty
/// memory, and a verification that still runs against the old keys can only write into the old memory.
///
/// Only good tokens are remembered: bad ones cost their own verification, and neither memory nor a place in the cache.
pub struct JwtVerifier {
    snapshot: ArcSwap<Snapshot>,
    clock: Arc<dyn Clock>,
    cache_entries: usize,
}

/// The SHA-256 of a token. Tokens themselves are not kept.
type TokenHash = [u8; 32];

struct Snapshot {
    keys: KeySet,
    expected: Expectations,
    verified: Cache<TokenHash, Arc<VerifiedClaims>>,
}

impl JwtVerifier {
    /// A verifier that remembers [`DEFAULT_CACHE_ENTRIES`] tokens.
    #[must_use]
    pub fn new(keys: KeySet, expected: Expectations, clock: Arc<dyn Clock>) -> Self {
        Self::with_cache(keys, expected, clock, DEFAULT_CACHE_ENTRIES)
    }

    /// A verifier that remembers about `entries` tokens.
    #[must_use]
    pub fn with_cache(keys: KeySet, expected: Expectations, clock: Arc<dyn Clock>, entries: usize) -> Self {
        let snapshot = ArcSwap::from_pointee(Snapshot::new(keys, expected, entries));
        Self { snapshot, clock, cache_entries: entries }
    }

    /// Replaces keys and expectations, and forgets every token that was verified before.
    pub fn publish(&self, keys: KeySet, expected: Expectations) {
        self.snapshot.store(Arc::new(Snapshot::new(keys, expected, self.cache_entries)));
    }

    /// Replaces the keys, keeps the expectations, and forgets every token that was verified before.
    pub fn publish_keys(&self, keys: &KeySet) {
        self.snapshot.rcu(|old| Snapshot::new(keys.clone(), old.expected.clone(), self.cache_entries));
    }

    /// The keys in use.
    #[must_use]
    pub fn keys(&self) -> KeySet {
        self.snapshot.load().keys.clone()
    }

    /// How many verified tokens are remembered now.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.snapshot.load().verified.len()
    }
}

impl TokenVerifier for JwtVerifier {
    fn verify(&self, token: &str) -> Result<Arc<VerifiedClaims>, Reason> {
        check_size(token)?;
        self.snapshot.load().verify(token, self.clock.unix_seconds())
    }
}

impl std::fmt::Debug for JwtVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let snapshot = self.snapshot.load();
        f.debug_struct("JwtVerifier")
            .field("keys", &snapshot.keys)
            .field("expected", &snapshot.expected)
            .field("cached", &snapshot.verified.len())
            .finish_non_exhaustive()
    }
}

impl Snapshot {
    fn new(keys: KeySet, expected: Expectations, entries: usize) -> Self {
        Self { keys, expected, verified: Cache::new(entries) }
    }

    fn verify(&self, token: &str, now: u64) -> Result<Arc<VerifiedClaims>, Reason> {
        let hash = hash(token);
        if let Some(claims) = self.verified.get(&hash) {
            return match claims.check_time(now, self.expected.leeway) {
                Ok(()) => Ok(claims),
                Err(reason) => {
                    self.verified.remove(&hash);
                    Err(reason)
                }
            };
        }
        let claims = Arc::new(authenticate(token, &self.keys, &mut |_, _| ())?.verify(&self.expected, now)?);
        self.verified.insert(hash, Arc::clone(&claims));
        Ok(claims)
    }
}

fn hash(token: &str) -> TokenHash {
    let mut hash = TokenHash::default();
    hash.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    hash
}

#[cfg(test)]
mod tests;
