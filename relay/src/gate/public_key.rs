//! One public key of a token issuer.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey, RsaPublicKeyComponents};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use rustls::pki_types::pem::{PemObject, SectionKind};
use serde::Deserialize;

use super::algorithm::{SignatureAlgorithm, choose_cryptography};
use super::key_error::KeyFault;

/// The smallest RSA modulus that is accepted, in bits (RFC 7518 section 3.3).
pub const MIN_RSA_BITS: usize = 2048;
/// The largest RSA modulus that is accepted, in bits: beyond it a verification costs more than it gives.
pub const MAX_RSA_BITS: usize = 8192;

/// A public key that was found to be one: the point is on its curve, the modulus is long enough.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(Parameters);

/// The values of RFC 7518 section 6 and RFC 8037 section 2, decoded.
#[derive(Clone, PartialEq, Eq)]
enum Parameters {
    /// Modulus and exponent, big-endian, without leading zeros.
    Rsa { n: Vec<u8>, e: Vec<u8> },
    /// Two coordinates of 32 bytes each.
    P256 { x: [u8; 32], y: [u8; 32] },
    /// The 32 bytes of RFC 8032.
    Ed25519 { x: [u8; 32] },
}

impl PublicKey {
    /// Takes an RSA modulus and exponent, big-endian, without leading zeros.
    pub(crate) fn rsa(n: &[u8], e: &[u8]) -> Result<Self, KeyFault> {
        if n.first().is_none_or(|byte| *byte == 0) {
            return Err(KeyFault::Member("n"));
        }
        if e.first().is_none_or(|byte| *byte == 0) {
            return Err(KeyFault::Member("e"));
        }
        let bits = n.len() * 8 - n.first().map_or(0, |byte| byte.leading_zeros() as usize);
        if !(MIN_RSA_BITS..=MAX_RSA_BITS).contains(&bits) {
            return Err(KeyFault::RsaSize { bits });
        }
        let key = Self(Parameters::Rsa { n: n.to_vec(), e: e.to_vec() });
        rsa_public_key(n, e).map(|_| key)
    }

    /// Takes a P-256 point in its uncompressed form: `04 || X || Y` (SEC 1 section 2.3.3).
    pub(crate) fn p256(point: &[u8]) -> Result<Self, KeyFault> {
        let [0x04, coordinates @ ..] = point else { return Err(KeyFault::Member("x")) };
        let (x, y) = coordinates.split_at_checked(32).ok_or(KeyFault::Member("x"))?;
        let (x, y) = (fixed(x, "x")?, fixed(y, "y")?);
        ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).map_err(|_| KeyFault::NotAKey)?;
        Ok(Self(Parameters::P256 { x, y }))
    }

    /// Takes the 32 bytes of an Ed25519 key (RFC 8032 section 5.1.5).
    pub(crate) fn ed25519(x: &[u8]) -> Result<Self, KeyFault> {
        let x = fixed(x, "x")?;
        ParsedPublicKey::new(&ED25519, x).map_err(|_| KeyFault::NotAKey)?;
        Ok(Self(Parameters::Ed25519 { x }))
    }

    /// Reads the one `PUBLIC KEY` section of a PEM text (RFC 7468 section 13).
    ///
    /// # Errors
    /// [`KeyFault`]: a private key in the text, none or several public ones, or a key that we do not take.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyFault> {
        let mut found = None;
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
            let (kind, der) = section.map_err(|_| KeyFault::Pem)?;
            match kind {
                SectionKind::PublicKey if found.is_none() => found = Some(der),
                SectionKind::PublicKey => return Err(KeyFault::SeveralKeys),
                SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey => {
                    return Err(KeyFault::Private);
                }
                _ => {}
            }
        }
        Self::from_spki(&found.ok_or(KeyFault::Pem)?)
    }

    /// Reads a SubjectPublicKeyInfo. For the two curves its DER is a constant and the key.
    fn from_spki(der: &[u8]) -> Result<Self, KeyFault> {
        if let Some(x) = der.strip_prefix(ED25519_SPKI) {
            return Self::ed25519(x);
        }
        if let Some(point) = der.strip_prefix(P256_SPKI) {
            return Self::p256(point);
        }
        let key = aws_lc_rs::rsa::PublicKey::from_der(der).map_err(|_| KeyFault::UnsupportedType)?;
        Self::from_rsa_der(key.as_ref())
    }

    /// Reads the `RSAPublicKey` of RFC 8017 appendix A.1.1.
    pub(crate) fn from_rsa_der(der: &[u8]) -> Result<Self, KeyFault> {
        use jsonwebtoken::jwk::{AlgorithmParameters, Jwk};
        choose_cryptography();
        let jwk = Jwk::from_decoding_key(&DecodingKey::from_rsa_der(der), None).map_err(|_| KeyFault::NotAKey)?;
        let AlgorithmParameters::RSA(members) = jwk.algorithm else { return Err(KeyFault::NotAKey) };
        Self::rsa(&decode(&members.n, "n")?, &decode(&members.e, "e")?)
    }

    /// Reads the members of a JWK.
    pub(super) fn from_jwk(jwk: &Jwk) -> Result<Self, KeyFault> {
        jwk.refuse_what_is_not_a_public_signature_key()?;
        let key = match (jwk.kty.as_deref(), jwk.crv.as_deref()) {
            (Some("RSA"), _) => Self::rsa(&member(&jwk.n, "n")?, &member(&jwk.e, "e")?)?,
            (Some("EC"), Some("P-256")) => {
                let (x, y): ([u8; 32], [u8; 32]) =
                    (fixed(&member(&jwk.x, "x")?, "x")?, fixed(&member(&jwk.y, "y")?, "y")?);
                Self::p256(&uncompressed(&x, &y))?
            }
            (Some("OKP"), Some("Ed25519")) => Self::ed25519(&member(&jwk.x, "x")?)?,
            (Some("EC" | "OKP"), _) => return Err(KeyFault::UnsupportedCurve),
            _ => return Err(KeyFault::UnsupportedType),
        };
        match jwk.alg.as_deref() {
            Some(alg) if alg != key.algorithm().as_str() => Err(KeyFault::AlgorithmMismatch { fits: key.algorithm() }),
            _ => Ok(key),
        }
    }

    /// The one algorithm that this key is for.
    #[must_use]
    pub const fn algorithm(&self) -> SignatureAlgorithm {
        match &self.0 {
            Parameters::Rsa { .. } => SignatureAlgorithm::Rs256,
            Parameters::P256 { .. } => SignatureAlgorithm::Es256,
            Parameters::Ed25519 { .. } => SignatureAlgorithm::EdDsa,
        }
    }

    /// The SHA-256 thumbprint, base64url (RFC 7638 section 3): the required members in lexicographic order.
    #[must_use]
    pub fn thumbprint(&self) -> String {
        let canonical = match &self.0 {
            Parameters::Rsa { n, e } => format!(r#"{{"e":"{}","kty":"RSA","n":"{}"}}"#, encode(e), encode(n)),
            Parameters::P256 { x, y } => {
                format!(r#"{{"crv":"P-256","kty":"EC","x":"{}","y":"{}"}}"#, encode(x), encode(y))
            }
            Parameters::Ed25519 { x } => format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{}"}}"#, encode(x)),
        };
        encode(digest(&SHA256, canonical.as_bytes()).as_ref())
    }

    /// The key as a JWK (RFC 7517 section 4).
    pub(super) fn to_jwk(&self, kid: &str) -> serde_json::Value {
        let alg = self.algorithm().as_str();
        match &self.0 {
            Parameters::Rsa { n, e } => serde_json::json!({
                "kty": "RSA", "use": "sig", "alg": alg, "kid": kid, "n": encode(n), "e": encode(e),
            }),
            Parameters::P256 { x, y } => serde_json::json!({
                "kty": "EC", "use": "sig", "alg": alg, "kid": kid, "crv": "P-256", "x": encode(x), "y": encode(y),
            }),
            Parameters::Ed25519 { x } => serde_json::json!({
                "kty": "OKP", "use": "sig", "alg": alg, "kid": kid, "crv": "Ed25519", "x": encode(x),
            }),
        }
    }

    pub(super) fn decoding_key(&self) -> DecodingKey {
        match &self.0 {
            Parameters::Rsa { n, e } => DecodingKey::from_rsa_raw_components(n, e),
            Parameters::P256 { x, y } => DecodingKey::from_ec_der(&uncompressed(x, y)),
            Parameters::Ed25519 { x } => DecodingKey::from_ed_der(x),
        }
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({}, {})", self.algorithm(), self.thumbprint())
    }
}

/// The members of a JWK that we look at (RFC 7517 section 4, RFC 7518 section 6, RFC 8037 section 2).
#[derive(Deserialize)]
pub(super) struct Jwk {
    pub(super) kid: Option<String>,
    kty: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    public_key_use: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    /// The private part of every asymmetric key type.
    d: Option<serde::de::IgnoredAny>,
    /// The secret of a symmetric key.
    k: Option<serde::de::IgnoredAny>,
}

impl Jwk {
    fn refuse_what_is_not_a_public_signature_key(&self) -> Result<(), KeyFault> {
        if self.kty.as_deref() == Some("oct") || self.k.is_some() {
            return Err(KeyFault::Symmetric);
        }
        if self.d.is_some() {
            return Err(KeyFault::Private);
        }
        let for_other_use = self.public_key_use.as_deref().is_some_and(|usage| usage != "sig");
        let for_other_operations = self.key_ops.as_ref().is_some_and(|ops| !ops.iter().any(|op| op == "verify"));
        if for_other_use || for_other_operations {
            return Err(KeyFault::NotForSignatures);
        }
        Ok(())
    }
}

/// SubjectPublicKeyInfo of Ed25519 up to the key (RFC 8410 section 4).
const ED25519_SPKI: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// SubjectPublicKeyInfo of an uncompressed P-256 point up to the point (RFC 5480 section 2).
const P256_SPKI: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The check of the exponent and of their fit is in the DER parser, not in the type that holds the components.
fn rsa_public_key(n: &[u8], e: &[u8]) -> Result<aws_lc_rs::rsa::PublicKey, KeyFault> {
    let spki: PublicKeyX509Der<'_> = RsaPublicKeyComponents { n, e }.as_der().map_err(|_| KeyFault::NotAKey)?;
    aws_lc_rs::rsa::PublicKey::from_der(spki.as_ref()).map_err(|_| KeyFault::NotAKey)
}

fn uncompressed(x: &[u8; 32], y: &[u8; 32]) -> [u8; 65] {
    let mut point = [0x04; 65];
    point[1..33].copy_from_slice(x);
    point[33..].copy_from_slice(y);
    point
}

fn member(value: &Option<String>, name: &'static str) -> Result<Vec<u8>, KeyFault> {
    decode(value.as_deref().ok_or(KeyFault::Member(name))?, name)
}

fn fixed(bytes: &[u8], name: &'static str) -> Result<[u8; 32], KeyFault> {
    bytes.try_into().map_err(|_| KeyFault::Member(name))
}

fn decode(text: &str, name: &'static str) -> Result<Vec<u8>, KeyFault> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| KeyFault::Member(name))
}

fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
        RsaKeyPair,
    };
    use base64::engine::general_purpose::STANDARD;
    use serde_json::json;

    use super::*;

    fn read(jwk: serde_json::Value) -> Result<PublicKey, KeyFault> {
        PublicKey::from_jwk(&serde_json::from_value(jwk).unwrap())
    }

    fn public_pem<'a>(key: &impl AsDer<PublicKeyX509Der<'a>>) -> String {
        let body = STANDARD.encode(key.as_der().unwrap().as_ref());
        format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n")
    }

    #[test]
    fn thumbprints_are_those_of_the_rfcs() {
        // RFC 7638 section 3.1.
        let rsa = read(
            json!({ "kty": "RSA", "e": "AQAB", "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw" }),
        );
        assert_eq!(rsa.unwrap().thumbprint(), "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs");
        // RFC 8037 appendix A.3.
        let ed = read(json!({ "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" }));
        assert_eq!(ed.unwrap().thumbprint(), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    }

    /// RFC 8037 appendix A.4 and RFC 7515 appendix A.3: made by others, with keys of others.
    #[test]
    fn signatures_of_the_rfcs_verify() {
        use jsonwebtoken::{Algorithm, crypto::verify};
        let ed = json!({ "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" });
        let ec = json!({ "kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0" });
        let cases = [
            (
                ed,
                "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc",
                "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
            ),
            (
                ec,
                "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ",
                "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
            ),
        ];
        choose_cryptography();
        for (jwk, message, signature) in cases {
            let key = read(jwk).unwrap();
            let algorithm = Algorithm::from(key.algorithm());
            assert!(verify(signature, message.as_bytes(), &key.decoding_key(), algorithm).unwrap(), "{algorithm:?}");
            assert!(!verify(signature, b"another message", &key.decoding_key(), algorithm).unwrap());
        }
    }

    #[test]
    fn a_thumbprint_is_the_one_that_the_jwt_library_computes() {
        use jsonwebtoken::jwk::{Jwk, ThumbprintHash};
        choose_cryptography();
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let key = PublicKey::p256(pair.public_key().as_ref()).unwrap();
        let theirs: Jwk = serde_json::from_value(key.to_jwk("k")).unwrap();
        assert_eq!(key.thumbprint(), theirs.thumbprint(ThumbprintHash::SHA256).unwrap());
    }

    #[test]
    fn a_key_reads_the_same_from_pem_and_from_its_jwk() {
        let ed = Ed25519KeyPair::generate().unwrap();
        let ec = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let rsa = RsaKeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
        let cases = [
            (public_pem(ed.public_key()), PublicKey::ed25519(ed.public_key().as_ref())),
            (public_pem(ec.public_key()), PublicKey::p256(ec.public_key().as_ref())),
            (public_pem(rsa.public_key()), PublicKey::from_rsa_der(rsa.public_key().as_ref())),
        ];
        for (pem, key) in cases {
            let key = key.unwrap();
            assert_eq!(PublicKey::from_pem(pem.as_bytes()).unwrap(), key);
            assert_eq!(read(key.to_jwk("k")).unwrap(), key);
        }
    }

    #[test]
    fn a_pem_text_must_hold_one_public_key_and_no_private_one() {
        let pair = Ed25519KeyPair::generate().unwrap();
        let public = public_pem(pair.public_key());
        let private = crate::issuer::SigningKey::generate(SignatureAlgorithm::EdDsa).unwrap().to_pem().unwrap();
        let p384 = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap();
        let cases = [
            (private.clone(), KeyFault::Private),
            (format!("{public}{private}"), KeyFault::Private),
            (format!("{public}{public}"), KeyFault::SeveralKeys),
            (public_pem(p384.public_key()), KeyFault::UnsupportedType),
            (public.replace("PUBLIC", "NOBODY'S"), KeyFault::Pem),
            (public.replacen("MC", "!!", 1), KeyFault::Pem),
            (String::new(), KeyFault::Pem),
        ];
        for (i, (pem, fault)) in cases.into_iter().enumerate() {
            assert_eq!(PublicKey::from_pem(pem.as_bytes()), Err(fault), "case {i}");
        }
        assert!(PublicKey::from_pem(b"\xff\xfe").is_err());
    }

    /// With an exponent of 1 everybody can sign; an even one belongs to no key.
    #[test]
    fn a_weak_rsa_key_is_refused() {
        let mut n = vec![0xa5; 256];
        for e in [&[1_u8][..], &[2], &[1, 0, 0], &[1, 0, 0, 0, 0, 1]] {
            assert_eq!(PublicKey::rsa(&n, e), Err(KeyFault::NotAKey), "{e:?}");
        }
        assert!(PublicKey::rsa(&n, &[1, 0, 1]).is_ok());
        assert_eq!(PublicKey::rsa(&[&[0], &n[..]].concat(), &[1, 0, 1]), Err(KeyFault::Member("n")));
        assert_eq!(PublicKey::rsa(&[], &[1, 0, 1]), Err(KeyFault::Member("n")));
        assert_eq!(PublicKey::rsa(&n, &[]), Err(KeyFault::Member("e")));
        n[0] = 0x7f;
        assert_eq!(PublicKey::rsa(&n, &[1, 0, 1]), Err(KeyFault::RsaSize { bits: 2047 }));
        assert_eq!(PublicKey::rsa(&[0xa5; 1025], &[1, 0, 1]), Err(KeyFault::RsaSize { bits: 8200 }));
    }
}
