//! The public keys that tokens are verified with.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;

use jsonwebtoken::{DecodingKey, Validation};
use serde::Deserialize;

use super::key_error::{KeyError, KeyFault, KeySetError};
use super::public_key::{Jwk, PublicKey, SignatureAlgorithm, choose_cryptography};

/// The largest JWKS document that is read: 64 KiB.
pub const MAX_JWKS_BYTES: usize = 64 * 1024;
/// The most keys of a set. A rotation needs two for each issuer.
pub const MAX_KEYS: usize = 32;
/// The longest `kid`.
pub const MAX_KID_BYTES: usize = 128;

/// Public keys by `kid`, each pinned to one algorithm. Immutable, and cheap to clone.
#[derive(Clone, Default)]
pub struct KeySet {
    keys: Arc<BTreeMap<String, Arc<VerifyingKey>>>,
}

/// A public key under its `kid`, ready to verify with.
pub struct VerifyingKey {
    public: PublicKey,
    decoding: DecodingKey,
    signature_only: Validation,
}

impl VerifyingKey {
    fn new(public: PublicKey) -> Self {
        choose_cryptography();
        let mut signature_only = Validation::new(public.algorithm().into());
        // The claims are the contract's business, with our clock: `Claims::verify`.
        signature_only.required_spec_claims.clear();
        signature_only.validate_exp = false;
        signature_only.validate_nbf = false;
        signature_only.validate_aud = false;
        Self { decoding: public.decoding_key(), signature_only, public }
    }

    /// The key itself.
    #[must_use]
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The one algorithm that it verifies.
    #[must_use]
    pub const fn algorithm(&self) -> SignatureAlgorithm {
        self.public.algorithm()
    }

    pub(super) const fn decoding_key(&self) -> &DecodingKey {
        &self.decoding
    }

    /// Checks the signature with the pinned algorithm, and nothing else.
    pub(super) const fn signature_only(&self) -> &Validation {
        &self.signature_only
    }
}

impl KeySet {
    /// Reads a JWKS document (RFC 7517 section 5).
    ///
    /// Where the RFC would have unusable keys ignored, we refuse the document: a key that silently does not count shows
    /// only when it is needed.
    ///
    /// # Errors
    /// [`KeySetError`], which names every key that is refused.
    pub fn from_jwks(document: &[u8]) -> Result<Self, KeySetError> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<serde_json::Value>,
        }
        if document.len() > MAX_JWKS_BYTES {
            return Err(KeySetError::TooLarge { bytes: document.len() });
        }
        let Document { keys } = serde_json::from_slice(document).map_err(|_| KeySetError::NotAKeySet)?;
        if keys.is_empty() {
            return Err(KeySetError::NoKeys);
        }
        if keys.len() > MAX_KEYS {
            return Err(KeySetError::TooManyKeys { keys: keys.len() });
        }
        let mut set = BTreeMap::new();
        let mut errors = Vec::new();
        for (index, jwk) in keys.into_iter().enumerate() {
            if let Err(error) = read_jwk(index, jwk).and_then(|(kid, key)| insert(&mut set, index, kid, key)) {
                errors.push(error);
            }
        }
        if errors.is_empty() { Ok(Self { keys: Arc::new(set) }) } else { Err(KeySetError::Keys(errors)) }
    }

    /// Reads one public key from PEM (`PUBLIC KEY`, RFC 7468 section 13), to be known as `kid`.
    ///
    /// # Errors
    /// [`KeySetError::Keys`] with the one fault.
    pub fn from_pem(kid: &str, pem: &[u8]) -> Result<Self, KeySetError> {
        let refuse = |fault| KeySetError::Keys(vec![KeyError { index: 0, kid: usable_kid(kid), fault }]);
        Self::of(kid, PublicKey::from_pem(pem).map_err(refuse)?)
    }

    /// The set of this one key.
    ///
    /// # Errors
    /// [`KeySetError::Keys`] when `kid` is not usable.
    pub fn of(kid: &str, key: PublicKey) -> Result<Self, KeySetError> {
        let mut set = BTreeMap::new();
        insert(&mut set, 0, kid.to_owned(), key).map_err(|error| KeySetError::Keys(vec![error]))?;
        Ok(Self { keys: Arc::new(set) })
    }

    /// The keys of both sets. The same key under the same `kid` in both counts once.
    ///
    /// # Errors
    /// [`KeySetError::Keys`] names each `kid` that stands for two keys; [`KeySetError::TooManyKeys`].
    pub fn merge(&self, other: &Self) -> Result<Self, KeySetError> {
        let mut set = (*self.keys).clone();
        let mut errors = Vec::new();
        for (index, (kid, key)) in other.keys.iter().enumerate() {
            match set.entry(kid.clone()) {
                Entry::Vacant(place) => drop(place.insert(Arc::clone(key))),
                Entry::Occupied(same) if same.get().public == key.public => {}
                Entry::Occupied(_) => {
                    errors.push(KeyError { index, kid: Some(kid.clone()), fault: KeyFault::DuplicateKid });
                }
            }
        }
        if !errors.is_empty() {
            return Err(KeySetError::Keys(errors));
        }
        if set.len() > MAX_KEYS {
            return Err(KeySetError::TooManyKeys { keys: set.len() });
        }
        Ok(Self { keys: Arc::new(set) })
    }

    /// The set without the key `kid`.
    #[must_use]
    pub fn without(&self, kid: &str) -> Self {
        let mut set = (*self.keys).clone();
        set.remove(kid);
        Self { keys: Arc::new(set) }
    }

    /// The key `kid`.
    #[must_use]
    pub fn get(&self, kid: &str) -> Option<&VerifyingKey> {
        self.keys.get(kid).map(AsRef::as_ref)
    }

    /// Every key with its `kid`, in the order of the latter.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &VerifyingKey)> {
        self.keys.iter().map(|(kid, key)| (kid.as_str(), key.as_ref()))
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no key, so that every token would be refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The set as a JWKS document (RFC 7517 section 5).
    #[must_use]
    pub fn to_jwks(&self) -> String {
        let keys: Vec<_> = self.iter().map(|(kid, key)| key.public.to_jwk(kid)).collect();
        serde_json::json!({ "keys": keys }).to_string()
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(kid, key)| (kid, key.public()))).finish()
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VerifyingKey").field(&self.public).finish()
    }
}

fn read_jwk(index: usize, jwk: serde_json::Value) -> Result<(String, PublicKey), KeyError> {
    let refuse = |kid: Option<&str>, fault| KeyError { index, kid: kid.and_then(usable_kid), fault };
    let jwk: Jwk = serde_json::from_value(jwk).map_err(|_| refuse(None, KeyFault::NotAJwk))?;
    let kid = jwk.kid.as_deref();
    let key = PublicKey::from_jwk(&jwk).map_err(|fault| refuse(kid, fault))?;
    kid.map(|kid| (kid.to_owned(), key)).ok_or_else(|| refuse(None, KeyFault::MissingKid))
}

fn insert(
    set: &mut BTreeMap<String, Arc<VerifyingKey>>,
    index: usize,
    kid: String,
    key: PublicKey,
) -> Result<(), KeyError> {
    if usable_kid(&kid).is_none() {
        return Err(KeyError { index, kid: None, fault: KeyFault::BadKid });
    }
    match set.entry(kid) {
        Entry::Vacant(place) => {
            place.insert(Arc::new(VerifyingKey::new(key)));
            Ok(())
        }
        Entry::Occupied(other) => {
            Err(KeyError { index, kid: Some(other.key().clone()), fault: KeyFault::DuplicateKid })
        }
    }
}

/// A `kid` that can be shown and compared without surprises.
fn usable_kid(kid: &str) -> Option<String> {
    let usable = (1..=MAX_KID_BYTES).contains(&kid.len()) && kid.bytes().all(|byte| byte.is_ascii_graphic());
    usable.then(|| kid.to_owned())
}
