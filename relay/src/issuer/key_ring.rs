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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::SignatureAlgorithm;

    fn key(kid: &str) -> SigningKey {
        SigningKey::generate(SignatureAlgorithm::EdDsa).unwrap().with_kid(kid).unwrap()
    }

    fn ring() -> KeyRing {
        KeyRing::new(key("k1"), &KeySet::default()).unwrap()
    }

    fn kids(keys: &KeySet) -> Vec<&str> {
        keys.iter().map(|(kid, _)| kid).collect()
    }

    #[test]
    fn a_key_is_announced_then_signs_then_is_retired() {
        let ring = ring();
        assert_eq!(kids(&ring.announce(key("k2")).unwrap()), ["k1", "k2"]);
        assert_eq!(ring.signing().kid(), "k1", "not before it is promoted");
        ring.promote().unwrap();
        assert_eq!(ring.signing().kid(), "k2");
        assert_eq!(kids(&ring.public_keys()), ["k1", "k2"], "side by side");
        assert_eq!(kids(&ring.retire("k1").unwrap()), ["k2"]);
        assert_eq!(kids(&ring.public_keys()), ["k2"]);
    }

    #[test]
    fn the_document_follows_the_keys_and_is_written_once_per_change() {
        let ring = ring();
        let document = ring.jwks();
        assert_eq!(document.as_ptr(), ring.jwks().as_ptr());
        ring.announce(key("k2")).unwrap();
        assert_eq!(kids(&KeySet::from_jwks(&ring.jwks()).unwrap()), ["k1", "k2"]);
        assert_eq!(kids(&KeySet::from_jwks(&document).unwrap()), ["k1"]);
    }

    #[test]
    fn steps_out_of_order_change_nothing() {
        let ring = ring();
        assert_eq!(ring.promote(), Err(RotationError::NothingAnnounced));
        let kid = || "k1".to_owned();
        assert_eq!(ring.retire("k1").map(drop), Err(RotationError::Signing { kid: kid() }));
        assert_eq!(ring.retire("k9").map(drop), Err(RotationError::Unknown { kid: "k9".to_owned() }));
        assert_eq!(ring.announce(key("k1")).map(drop), Err(RotationError::AlreadyUsed { kid: kid() }));
        ring.announce(key("k2")).unwrap();
        let waiting = RotationError::AlreadyAnnounced { kid: "k2".to_owned() };
        assert_eq!(ring.announce(key("k3")).map(drop), Err(waiting));
        ring.retire("k2").unwrap();
        assert_eq!(ring.promote(), Err(RotationError::NothingAnnounced), "an announced key can be taken back");
        assert_eq!((ring.signing().kid(), kids(&ring.public_keys())), ("k1", vec!["k1"]));
    }

    #[test]
    fn verifiers_have_the_new_key_before_it_signs() {
        let ring = ring();
        let mut published = false;
        ring.rotate(key("k2"), |keys| {
            published = keys.get("k2").is_some() && ring.signing().kid() == "k1";
        })
        .unwrap();
        assert!(published);
        assert_eq!(ring.signing().kid(), "k2");
    }

    #[test]
    fn former_keys_are_known_from_the_start_and_never_pile_up() {
        let former = KeySet::of("k0", key("k0").public().clone()).unwrap();
        let ring = KeyRing::new(key("k1"), &former).unwrap();
        assert_eq!(kids(&ring.public_keys()), ["k0", "k1"]);
        assert!(KeyRing::new(key("k0"), &former).is_err(), "one name for two keys");
        let refused = (2..100).find_map(|i| ring.rotate(key(&format!("k{i}")), |_| ()).err());
        assert!(matches!(refused, Some(RotationError::Add(KeySetError::TooManyKeys { .. }))), "{refused:?}");
        ring.retire("k0").unwrap();
        assert_eq!(ring.rotate(key("k100"), |_| ()), Ok(()));
    }
}
