//! Why a key, or a set of keys, is refused.

use std::fmt;

use super::algorithm::SignatureAlgorithm;
use super::public_key::{MAX_RSA_BITS, MIN_RSA_BITS};

/// What is wrong with one key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFault {
    /// It has no `kid`.
    #[error("it has no kid")]
    MissingKid,
    /// Its `kid` is empty, too long, or not visible ASCII.
    #[error(
        "its kid is empty, longer than {} bytes, or has other characters than visible ASCII",
        super::keys::MAX_KID_BYTES
    )]
    BadKid,
    /// Another key of the set has the same `kid`.
    #[error("another key has the same kid")]
    DuplicateKid,
    /// It is a symmetric key: whoever may verify with it may also sign.
    #[error("it is a symmetric key; only public keys belong here")]
    Symmetric,
    /// It has private members, or is a private key.
    #[error("it is a private key; only public keys belong here")]
    Private,
    /// Its `use` or `key_ops` say that it is not for verifying signatures.
    #[error("its use or key_ops say that it is not for verifying signatures")]
    NotForSignatures,
    /// Its type is none of RSA, EC, OKP.
    #[error("its type is not supported; expected RSA, EC with P-256, or OKP with Ed25519")]
    UnsupportedType,
    /// Its curve is neither P-256 nor Ed25519.
    #[error("its curve is missing or not supported; expected P-256 for EC, Ed25519 for OKP")]
    UnsupportedCurve,
    /// Its `alg` is not the one that a key of its type is for here.
    #[error("its alg is not the one for its type, which is {fits}")]
    AlgorithmMismatch {
        /// The algorithm that the key would be for.
        fits: SignatureAlgorithm,
    },
    /// An RSA modulus that is too short to be safe or too long to be cheap.
    #[error("its modulus has {bits} bits; expected {MIN_RSA_BITS} to {MAX_RSA_BITS}")]
    RsaSize {
        /// The size of the modulus.
        bits: usize,
    },
    /// This member is missing, not base64url, or of the wrong size.
    #[error("its member {0:?} is missing, not base64url without padding, or of the wrong size")]
    Member(&'static str),
    /// The members are well-formed, but no key: off the curve, or an impossible exponent.
    #[error("its values are no valid key")]
    NotAKey,
    /// It is not a JSON object whose members have the types of RFC 7517.
    #[error("it is not a JSON object with members of the right types")]
    NotAJwk,
    /// The text has no section `PUBLIC KEY`, or is no PEM.
    #[error("there is no PEM section PUBLIC KEY")]
    Pem,
    /// The text has several sections `PUBLIC KEY`.
    #[error("there are several PEM sections PUBLIC KEY; expected one")]
    SeveralKeys,
}

/// One refused key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct KeyError {
    /// Its place in the document, from 0.
    pub index: usize,
    /// Its `kid`, where it has a usable one.
    pub kid: Option<String>,
    /// What is wrong.
    pub fault: KeyFault,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kid {
            Some(kid) => write!(f, "key {kid:?}: {}", self.fault),
            None => write!(f, "key at index {}: {}", self.index, self.fault),
        }
    }
}

/// Why a set of keys is refused. A set with one bad key is refused whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeySetError {
    /// The document is larger than [`MAX_JWKS_BYTES`](super::MAX_JWKS_BYTES).
    #[error("the document has {bytes} bytes; at most {} are read", super::keys::MAX_JWKS_BYTES)]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The document is not a JSON object with an array `keys`.
    #[error("the document is not a JSON object with an array \"keys\"")]
    NotAKeySet,
    /// There is no key in it: nothing could be verified.
    #[error("there is no key in the document")]
    NoKeys,
    /// More keys than [`MAX_KEYS`](super::MAX_KEYS).
    #[error("there would be {keys} keys; at most {} are held", super::keys::MAX_KEYS)]
    TooManyKeys {
        /// How many there would be.
        keys: usize,
    },
    /// These keys are refused.
    #[error("{}", Sentences(.0))]
    Keys(Vec<KeyError>),
}

struct Sentences<'a>(&'a [KeyError]);

impl fmt::Display for Sentences<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}
