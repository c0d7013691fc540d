//! The issuer's keys: one that signs, others that still verify.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;

use super::SigningKey;
use crate::gate::{KeySet, KeySetError};

/// The keys of an issuer while they are rotated.
///
/// A key lives through three states, and the public half is in the JWKS document in all of them:
///
/// 1. *announced*: verifiers get to know it, nothing is signed by it yet;
/// 2. *signing*: tokens are signed by it, and there is exactly one such key;
/// 3. *former*: nothing is signed by it any more, but tokens that it signed are still accepted, until it is
///    [retired](Self::retire). Wait for the longest life of a token before that.
#[derive(Debug)]
pub struct KeyRing {
    current: ArcSwap<Keys>,
    /// Held by whoever computes the next state from the current one.
    change: Mutex<()>,
}

#[derive(Debug)]
struct Keys {
    signing: Arc<SigningKey>,
    announced: Option<Arc<SigningKey>>,
    public: KeySet,
    jwks: Bytes,
}

/// Why keys can't be rotated so. The state is what it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RotationError {
    /// The public half can't be added: its `kid` stands for another key, or there are too many keys.
    #[error("the new key can't be added: {0}")]
    Add(#[from] KeySetError),
    /// A key under this `kid` is signing, announced or former already.
    #[error("key {kid:?} is in use already")]
    AlreadyUsed {
        /// Its name.
        kid: String,
    },
    /// Another key is announced and does not sign yet.
    #[error("key {kid:?} is announced and waits to be promoted or retired")]
    AlreadyAnnounced {
        /// Its name.
        kid: String,
    },
    /// No key is announced.
    #[error("no key is announced")]
    NothingAnnounced,
    /// Tokens are signed by this key now.
    #[error("key {kid:?} signs tokens now; rotate first")]
    Signing {
        /// Its name.
        kid: String,
    },
    /// There is no such key.
    #[error("there is no key {kid:?}")]
    Unknown {
        /// Its name.
        kid: String,
    },
}

impl KeyRing {
    /// Signs with `signing`. Tokens that keys of `former` signed are still accepted.
    ///
    /// # Errors
    /// [`KeySetError`] when a `kid` stands for two keys, or there are too many.
    pub fn new(signing: SigningKey, former: &KeySet) -> Result<Self, KeySetError> {
        let public = KeySet::of(signing.kid(), signing.public().clone())?.merge(former)?;
        let keys = Keys { signing: Arc::new(signing), announced: None, jwks: public.to_jwks().into(), public };
        Ok(Self { current: ArcSwap::from_pointee(keys), change: Mutex::new(()) })
    }

    /// The key that signs now.
    #[must_use]
    pub fn signing(&self) -> Arc<SigningKey> {
        Arc::clone(&self.current.load().signing)
    }

    /// The public half of every key.
    #[must_use]
    pub fn public_keys(&self) -> KeySet {
        self.current.load().public.clone()
    }

    /// The JWKS document of [`public_keys`](Self::public_keys), written once per change.
    #[must_use]
    pub fn jwks(&self) -> Bytes {
        self.current.load().jwks.clone()
    }

    /// Publishes the public half of `next`; nothing is signed by it yet. Gives verifiers that fetch the JWKS document the
    /// time to do so before [`promote`](Self::promote).
    ///
    /// # Errors
    /// [`RotationError::AlreadyAnnounced`], [`RotationError::AlreadyUsed`], [`RotationError::Add`].
    pub fn announce(&self, next: SigningKey) -> Result<KeySet, RotationError> {
        let _change = self.change.lock();
        let keys = self.current.load();
        if let Some(waiting) = &keys.announced {
            return Err(RotationError::AlreadyAnnounced { kid: waiting.kid().to_owned() });
        }
        if keys.public.get(next.kid()).is_some() {
            return Err(RotationError::AlreadyUsed { kid: next.kid().to_owned() });
        }
        let public = keys.public.merge(&KeySet::of(next.kid(), next.public().clone())?)?;
        self.store(Arc::clone(&keys.signing), Some(Arc::new(next)), public.clone());
        Ok(public)
    }

    /// Signs with the announced key from now on.
    ///
    /// # Errors
    /// [`RotationError::NothingAnnounced`].
    pub fn promote(&self) -> Result<(), RotationError> {
        let _change = self.change.lock();
        let keys = self.current.load();
        let next = keys.announced.clone().ok_or(RotationError::NothingAnnounced)?;
        self.store(next, None, keys.public.clone());
        Ok(())
    }

    /// Announces, publishes and promotes in one go: for an issuer whose verifiers are all within reach of `publish`. It gets
    /// every public key, and what it returned from must accept them: only then is a token signed by the new key.
    ///
    /// # Errors
    /// Those of [`announce`](Self::announce); [`RotationError::NothingAnnounced`] when another thread promoted or retired the key
    /// in between.
    pub fn rotate(&self, next: SigningKey, publish: impl FnOnce(&KeySet)) -> Result<(), RotationError> {
        let public = self.announce(next)?;
        publish(&public);
        self.promote()
    }

    /// Takes a former or an announced key away: tokens that it signed are refused once verifiers have the set that is
    /// returned.
    ///
    /// # Errors
    /// [`RotationError::Signing`] for the key that signs; [`RotationError::Unknown`].
    pub fn retire(&self, kid: &str) -> Result<KeySet, RotationError> {
        let _change = self.change.lock();
        let keys = self.current.load();
        if keys.signing.kid() == kid {
            return Err(RotationError::Signing { kid: kid.to_owned() });
        }
        if keys.public.get(kid).is_none() {
            return Err(RotationError::Unknown { kid: kid.to_owned() });
        }
        let announced = keys.announced.clone().filter(|key| key.kid() != kid);
        let public = keys.public.without(kid);
        self.store(Arc::clone(&keys.signing), announced, public.clone());
        Ok(public)
    }

    fn store(&self, signing: Arc<SigningKey>, announced: Option<Arc<SigningKey>>, public: KeySet) {
        let jwks = public.to_jwks().into();
        self.current.store(Arc::new(Keys { signing, announced, public, jwks }));
    }
}
