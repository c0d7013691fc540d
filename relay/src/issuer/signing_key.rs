//! A private key that tokens are signed with.

use std::fmt;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{EncodingKey, Header};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use telemetry_proto::claims::Claims;

use crate::gate::{KeyFault, KeySet, KeySetError, PublicKey, SignatureAlgorithm, choose_cryptography};

/// A private key, its public half, and the `kid` that tokens name it by. Its `Debug` does not show the key.
pub struct SigningKey {
    kid: String,
    public: PublicKey,
    private: EncodingKey,
}

/// Why there is no signing key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SigningKeyError {
    /// The text holds no PEM section `PRIVATE KEY`, `RSA PRIVATE KEY` or `EC PRIVATE KEY`.
    #[error("there is no PEM section PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY")]
    Pem,
    /// The key is none of RSA with 2048 to 8192 bits, EC with P-256, Ed25519; or it is damaged or encrypted.
    #[error("the private key is damaged, or none of RSA (2048 to 8192 bits), EC with P-256, Ed25519")]
    Unsupported,
    /// Its public half is refused.
    #[error("the public half of the key is refused: {0}")]
    Public(#[from] KeyFault),
    /// The `kid` is refused.
    #[error(transparent)]
    Kid(#[from] KeySetError),
    /// The cryptography library failed. It gives no reason.
    #[error("the cryptography library failed")]
    Crypto,
}

impl SigningKey {
    /// Makes a new key. Its `kid` is its thumbprint (RFC 7638).
    ///
    /// RSA keys have 2048 bits and take up to a second; Ed25519 is the choice where verifiers allow it.
    ///
    /// # Errors
    /// [`SigningKeyError::Crypto`].
    pub fn generate(algorithm: SignatureAlgorithm) -> Result<Self, SigningKeyError> {
        let pair = match algorithm {
            SignatureAlgorithm::EdDsa => Ed25519KeyPair::generate().map(KeyPair::Ed25519),
            SignatureAlgorithm::Es256 => EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map(KeyPair::P256),
            SignatureAlgorithm::Rs256 => RsaKeyPair::generate(KeySize::Rsa2048).map(KeyPair::Rsa),
        };
        Self::from_pair(&pair.map_err(|_| SigningKeyError::Crypto)?)
    }

    /// Reads a key from PEM: PKCS#8 (`PRIVATE KEY`), PKCS#1 (`RSA PRIVATE KEY`) or SEC 1 (`EC PRIVATE KEY`). Its `kid` is its
    /// thumbprint (RFC 7638), so that a key is known by the same name after every start.
    ///
    /// # Errors
    /// [`SigningKeyError`].
    pub fn from_pem(pem: &[u8]) -> Result<Self, SigningKeyError> {
        let der = PrivateKeyDer::from_pem_slice(pem).map_err(|_| SigningKeyError::Pem)?;
        Self::from_pair(&KeyPair::read(&der).ok_or(SigningKeyError::Unsupported)?)
    }

    /// The same key under another name, for clusters that name their keys themselves.
    ///
    /// # Errors
    /// [`SigningKeyError::Kid`] when the name is not usable.
    pub fn with_kid(self, kid: &str) -> Result<Self, SigningKeyError> {
        KeySet::of(kid, self.public.clone())?;
        Ok(Self { kid: kid.to_owned(), ..self })
    }

    /// Writes the key as PKCS#8 PEM. Whoever stores it must keep it from others.
    ///
    /// # Errors
    /// [`SigningKeyError::Crypto`].
    pub fn to_pem(&self) -> Result<String, SigningKeyError> {
        match self.algorithm() {
            SignatureAlgorithm::EdDsa | SignatureAlgorithm::Es256 => Ok(pem(self.private.as_bytes())),
            SignatureAlgorithm::Rs256 => {
                let pair = RsaKeyPair::from_der(self.private.as_bytes()).map_err(|_| SigningKeyError::Crypto)?;
                Ok(pem(&KeyPair::Rsa(pair).to_pkcs8()?))
            }
        }
    }

    /// The name that tokens carry in `kid`.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The algorithm that the key signs with.
    #[must_use]
    pub const fn algorithm(&self) -> SignatureAlgorithm {
        self.public.algorithm()
    }

    /// The public half.
    #[must_use]
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs claims: a JWT in compact form (RFC 7515 section 7.1).
    pub(super) fn sign(&self, claims: &Claims) -> Result<String, SigningKeyError> {
        let header = Header { kid: Some(self.kid.clone()), ..Header::new(self.algorithm().into()) };
        jsonwebtoken::encode(&header, claims, &self.private).map_err(|_| SigningKeyError::Crypto)
    }

    fn from_pair(pair: &KeyPair) -> Result<Self, SigningKeyError> {
        choose_cryptography();
        let public = pair.public()?;
        Ok(Self { kid: public.thumbprint(), private: pair.encoding_key()?, public })
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("kid", &self.kid).field("public", &self.public).finish_non_exhaustive()
    }
}

enum KeyPair {
    Ed25519(Ed25519KeyPair),
    P256(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl KeyPair {
    fn read(der: &PrivateKeyDer<'_>) -> Option<Self> {
        match der {
            PrivateKeyDer::Pkcs8(der) => {
                let der = der.secret_pkcs8_der();
                let ed25519 = Ed25519KeyPair::from_pkcs8(der).map(Self::Ed25519);
                let p256 = || EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der).map(Self::P256);
                let rsa = || RsaKeyPair::from_pkcs8(der).map(Self::Rsa);
                ed25519.or_else(|_| p256()).or_else(|_| rsa()).ok()
            }
            PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()).map(Self::Rsa).ok(),
            PrivateKeyDer::Sec1(der) => {
                let der = der.secret_sec1_der();
                EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, der).map(Self::P256).ok()
            }
            _ => None,
        }
    }

    fn public(&self) -> Result<PublicKey, KeyFault> {
        match self {
            Self::Ed25519(pair) => PublicKey::ed25519(pair.public_key().as_ref()),
            Self::P256(pair) => PublicKey::p256(pair.public_key().as_ref()),
            Self::Rsa(pair) => PublicKey::from_rsa_der(pair.public_key().as_ref()),
        }
    }

    fn to_pkcs8(&self) -> Result<Vec<u8>, SigningKeyError> {
        let der = match self {
            Self::Ed25519(pair) => pair.to_pkcs8v1().map(|der| der.as_ref().to_vec()),
            Self::P256(pair) => pair.to_pkcs8v1().map(|der| der.as_ref().to_vec()),
            Self::Rsa(pair) => AsDer::<Pkcs8V1Der<'_>>::as_der(pair).map(|der| der.as_ref().to_vec()),
        };
        der.map_err(|_| SigningKeyError::Crypto)
    }

    fn encoding_key(&self) -> Result<EncodingKey, SigningKeyError> {
        let der = self.to_pkcs8()?;
        match self {
            Self::Ed25519(_) => Ok(EncodingKey::from_ed_der(&der)),
            Self::P256(_) => Ok(EncodingKey::from_ec_der(&der)),
            // For RSA it wants the PKCS#1 structure inside, which it finds only in PEM.
            Self::Rsa(_) => EncodingKey::from_rsa_pem(pem(&der).as_bytes()).map_err(|_| SigningKeyError::Crypto),
        }
    }
}

/// PKCS#8 as PEM (RFC 7468 section 10), lines of 64 characters.
fn pem(pkcs8: &[u8]) -> String {
    let base64 = STANDARD.encode(pkcs8);
    let mut text = String::with_capacity(base64.len() + base64.len() / 64 + 64);
    text.push_str("-----BEGIN PRIVATE KEY-----\n");
    let mut rest = base64.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = tail;
    }
    text.push_str("-----END PRIVATE KEY-----\n");
    text
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::encoding::EcPrivateKeyRfc5915Der;
    use aws_lc_rs::signature::ECDSA_P384_SHA384_FIXED_SIGNING;

    use super::*;

    fn section(label: &str, der: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
    }

    #[test]
    fn a_key_survives_its_own_pem_under_the_same_kid() {
        for algorithm in SignatureAlgorithm::ALL {
            let key = SigningKey::generate(algorithm).unwrap();
            let pem = key.to_pem().unwrap();
            assert!(pem.lines().all(|line| line.len() <= 64));
            let again = SigningKey::from_pem(pem.as_bytes()).unwrap();
            assert_eq!((again.kid(), again.algorithm()), (key.kid(), algorithm));
            assert_eq!(key.kid(), key.public().thumbprint());
            assert_eq!(again.to_pem().unwrap(), pem);
        }
    }

    #[test]
    fn the_older_forms_of_rsa_and_ec_keys_are_read() {
        let rsa = SigningKey::generate(SignatureAlgorithm::Rs256).unwrap();
        let pkcs1 = section("RSA PRIVATE KEY", rsa.private.as_bytes());
        assert_eq!(SigningKey::from_pem(pkcs1.as_bytes()).unwrap().kid(), rsa.kid());
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let sec1: EcPrivateKeyRfc5915Der<'_> = pair.private_key().as_der().unwrap();
        let key = SigningKey::from_pem(section("EC PRIVATE KEY", sec1.as_ref()).as_bytes()).unwrap();
        assert_eq!(key.public(), &PublicKey::p256(pair.public_key().as_ref()).unwrap());
    }

    #[test]
    fn what_is_no_usable_private_key_is_refused() {
        let p384 = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap().to_pkcs8v1().unwrap();
        for der in [p384.as_ref(), b"no DER", b""] {
            let error = SigningKey::from_pem(section("PRIVATE KEY", der).as_bytes()).unwrap_err();
            assert!(matches!(error, SigningKeyError::Unsupported), "{error}");
        }
        for label in ["PUBLIC KEY", "CERTIFICATE", "ENCRYPTED PRIVATE KEY"] {
            let error = SigningKey::from_pem(section(label, p384.as_ref()).as_bytes()).unwrap_err();
            assert!(matches!(error, SigningKeyError::Pem), "{label}: {error}");
        }
        assert!(matches!(SigningKey::from_pem(b"\xff").unwrap_err(), SigningKeyError::Pem));
        let key = SigningKey::generate(SignatureAlgorithm::EdDsa).unwrap();
        assert!(matches!(key.with_kid("a b").unwrap_err(), SigningKeyError::Kid(_)));
    }

    #[test]
    fn a_debug_print_does_not_show_the_key() {
        for algorithm in SignatureAlgorithm::ALL {
            let key = SigningKey::generate(algorithm).unwrap().with_kid("k1").unwrap();
            let shown = format!("{key:?}");
            assert!(shown.contains("k1"));
            let pem = key.to_pem().unwrap();
            assert!(pem.lines().all(|line| !shown.contains(line)), "{shown}");
            assert!(!shown.contains(&format!("{:?}", &key.private.as_bytes()[..8])[1..20]), "{shown}");
        }
    }
}
