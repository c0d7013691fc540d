//! The public keys that tokens are verified with.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;

use jsonwebtoken::{DecodingKey, Validation};
use serde::Deserialize;

use super::algorithm::{SignatureAlgorithm, choose_cryptography};
use super::key_error::{KeyError, KeyFault, KeySetError};
use super::public_key::{Jwk, PublicKey};

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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::issuer::SigningKey;

    const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    // RFC 7515 appendix A.3.1.
    const P256_X: &str = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU";
    const P256_Y: &str = "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0";

    fn ed() -> Value {
        json!({ "kty": "OKP", "crv": "Ed25519", "kid": "k1", "x": X })
    }

    fn ec() -> Value {
        json!({ "kty": "EC", "crv": "P-256", "kid": "k2", "x": P256_X, "y": P256_Y })
    }

    fn read(keys: &[Value]) -> Result<KeySet, KeySetError> {
        KeySet::from_jwks(json!({ "keys": keys, "more": 1 }).to_string().as_bytes())
    }

    fn fault(key: Value) -> (Option<String>, KeyFault) {
        match read(&[key]) {
            Err(KeySetError::Keys(mut errors)) => {
                let error = errors.remove(0);
                (error.kid, error.fault)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_key_is_pinned_to_the_algorithm_of_its_type() {
        let set = read(&[ed(), ec()]).unwrap();
        assert_eq!(set.get("k1").unwrap().algorithm(), SignatureAlgorithm::EdDsa);
        assert_eq!(set.get("k2").unwrap().algorithm(), SignatureAlgorithm::Es256);
        assert_eq!(set.get("k2").unwrap().signature_only().algorithms, [jsonwebtoken::Algorithm::ES256]);
        assert!(set.get("k3").is_none());
    }

    #[test]
    fn a_refused_key_is_named_with_its_fault() {
        let with = |mut key: Value, name: &str, value: Value| {
            key[name] = value;
            fault(key)
        };
        let of_k1 = |fault| (Some("k1".to_owned()), fault);
        let of_k2 = |fault| (Some("k2".to_owned()), fault);
        assert_eq!(with(ed(), "d", json!("AAAA")), of_k1(KeyFault::Private));
        assert_eq!(with(ed(), "k", json!("AAAA")), of_k1(KeyFault::Symmetric));
        assert_eq!(
            fault(json!({ "kty": "oct", "kid": "s", "k": "AAAA" })),
            (Some("s".to_owned()), KeyFault::Symmetric)
        );
        assert_eq!(with(ed(), "use", json!("enc")), of_k1(KeyFault::NotForSignatures));
        assert_eq!(with(ed(), "key_ops", json!(["sign"])), of_k1(KeyFault::NotForSignatures));
        assert_eq!(with(ed(), "crv", json!("Ed448")), of_k1(KeyFault::UnsupportedCurve));
        assert_eq!(with(ed(), "crv", Value::Null), of_k1(KeyFault::UnsupportedCurve));
        assert_eq!(with(ec(), "crv", json!("P-384")), of_k2(KeyFault::UnsupportedCurve));
        assert_eq!(with(ec(), "crv", json!("secp256k1")), of_k2(KeyFault::UnsupportedCurve));
        assert_eq!(with(ed(), "kty", json!("AKP")), of_k1(KeyFault::UnsupportedType));
        assert_eq!(with(ed(), "kty", Value::Null), of_k1(KeyFault::UnsupportedType));
        for alg in ["ES256", "HS256", "none", "RS256", ""] {
            let fits = SignatureAlgorithm::EdDsa;
            assert_eq!(with(ed(), "alg", json!(alg)), of_k1(KeyFault::AlgorithmMismatch { fits }));
        }
        assert_eq!(with(ed(), "x", json!("AAAA")), of_k1(KeyFault::Member("x")));
        assert_eq!(with(ed(), "x", json!(format!("{X}="))), of_k1(KeyFault::Member("x")));
        assert_eq!(with(ed(), "x", Value::Null), of_k1(KeyFault::Member("x")));
        assert_eq!(with(ec(), "y", json!(P256_X)), of_k2(KeyFault::NotAKey), "off the curve");
        assert_eq!(with(ed(), "kid", Value::Null), (None, KeyFault::MissingKid));
        for kid in [String::new(), "a b".to_owned(), "ä".to_owned(), "k".repeat(MAX_KID_BYTES + 1)] {
            assert_eq!(with(ed(), "kid", json!(kid)), (None, KeyFault::BadKid));
        }
        assert_eq!(with(ed(), "kid", json!(7)), (None, KeyFault::NotAJwk));
        assert_eq!(fault(json!("k1")), (None, KeyFault::NotAJwk));
        assert!(
            read(&[{
                let mut key = ed();
                (key["alg"], key["use"], key["key_ops"]) = (json!("EdDSA"), json!("sig"), json!(["verify"]));
                key
            }])
            .is_ok()
        );
    }

    #[test]
    fn all_that_is_wrong_is_said_and_nothing_is_taken() {
        let mut private = ec();
        private["d"] = json!("AAAA");
        let error = read(&[ed(), ed(), private, json!({ "kty": "oct", "k": "AAAA" })]).unwrap_err();
        let text = error.to_string();
        for part in [
            "key \"k1\": another key has the same kid",
            "key \"k2\": it is a private key",
            "key at index 3: it is a symmetric",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("AAAA"), "{text}");
    }

    #[test]
    fn a_document_is_bounded_and_must_hold_a_key() {
        let padding = "x".repeat(MAX_JWKS_BYTES);
        let large = json!({ "keys": [ed()], "padding": padding }).to_string();
        assert_eq!(KeySet::from_jwks(large.as_bytes()).unwrap_err(), KeySetError::TooLarge { bytes: large.len() });
        let many: Vec<_> =
            (0..=MAX_KEYS).map(|i| json!({ "kty": "OKP", "crv": "Ed25519", "kid": i.to_string(), "x": X })).collect();
        assert_eq!(read(&many).unwrap_err(), KeySetError::TooManyKeys { keys: MAX_KEYS + 1 });
        assert_eq!(read(&many[1..]).unwrap().len(), MAX_KEYS);
        assert_eq!(read(&[]).unwrap_err(), KeySetError::NoKeys);
        for document in ["", "[]", "{}", "null", r#"{"keys":{}}"#, r#"{"keys":[}"#, "\u{0}"] {
            assert_eq!(KeySet::from_jwks(document.as_bytes()).unwrap_err(), KeySetError::NotAKeySet, "{document}");
        }
        assert_eq!(KeySet::from_jwks(&[0xff; 100]).unwrap_err(), KeySetError::NotAKeySet);
        assert_eq!(KeySet::from_jwks("[".repeat(60_000).as_bytes()).unwrap_err(), KeySetError::NotAKeySet);
    }

    #[test]
    fn a_set_survives_its_own_document_without_private_members() {
        let keys: Vec<_> = SignatureAlgorithm::ALL.into_iter().map(|alg| SigningKey::generate(alg).unwrap()).collect();
        let set = keys.iter().fold(KeySet::default(), |set, key| {
            set.merge(&KeySet::of(key.kid(), key.public().clone()).unwrap()).unwrap()
        });
        let document = set.to_jwks();
        let again = KeySet::from_jwks(document.as_bytes()).unwrap();
        assert_eq!(again.len(), 3);
        for (kid, key) in set.iter() {
            assert_eq!(again.get(kid).unwrap().public(), key.public());
        }
        let document: Value = serde_json::from_str(&document).unwrap();
        for jwk in document["keys"].as_array().unwrap() {
            for private in ["d", "p", "q", "dp", "dq", "qi", "k"] {
                assert!(jwk.get(private).is_none(), "{private}");
            }
        }
    }

    #[test]
    fn sets_merge_unless_a_kid_stands_for_two_keys() {
        let (one, two) = (read(&[ed()]).unwrap(), read(&[ec()]).unwrap());
        let both = one.merge(&two).unwrap();
        assert_eq!((both.len(), both.merge(&one).unwrap().len()), (2, 2));
        assert_eq!((both.without("k1").len(), one.len()), (1, 1));
        let mut other = ec();
        other["kid"] = json!("k1");
        let error = both.merge(&read(&[other]).unwrap()).unwrap_err();
        let expected = KeyError { index: 0, kid: Some("k1".to_owned()), fault: KeyFault::DuplicateKid };
        assert_eq!(error, KeySetError::Keys(vec![expected]));
    }
}
