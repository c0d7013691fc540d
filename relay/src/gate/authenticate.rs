//! Form and signature of a token: what comes before its claims are looked at.

use telemetry_proto::claims::Claims;
use telemetry_proto::{Reason, limits};

use super::keys::{KeySet, VerifyingKey};
use super::unique_claims::UniqueClaims;

/// One thing that is checked before the claims are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum FormCheck {
    /// It is not longer than a token may be.
    Size,
    /// It is visible ASCII, as the header's value must be.
    Characters,
    /// It has three segments.
    Segments,
    /// The first is a header.
    Header,
    /// The header insists on nothing that we do not understand.
    Extensions,
    /// The header names a key.
    KeyName,
    /// The key is known.
    Key,
    /// The header's algorithm is the key's.
    Algorithm,
    /// The signature verifies.
    Signature,
    /// The claims have the contract's shape, and each occurs once.
    Shape,
}

impl FormCheck {
    /// Every check, in the order in which they are made.
    pub(super) const ALL: [Self; 10] = [
        Self::Size,
        Self::Characters,
        Self::Segments,
        Self::Header,
        Self::Extensions,
        Self::KeyName,
        Self::Key,
        Self::Algorithm,
        Self::Signature,
        Self::Shape,
    ];
}

/// Checks form and signature, and tells `witness` the outcome of each check that is made, up to the first that fails. What
/// this returns was signed by one of `keys`, and is not checked otherwise.
///
/// The verifier and whoever explains a token to a person both come here, so that they can't disagree.
pub(super) fn authenticate(
    token: &str,
    keys: &KeySet,
    witness: &mut impl FnMut(FormCheck, Result<(), Reason>),
) -> Result<Claims, Reason> {
    noted(witness, FormCheck::Size, check_size(token))?;
    let visible = token.bytes().all(|byte| byte.is_ascii_graphic());
    noted(witness, FormCheck::Characters, require(visible, Reason::TokenMalformed))?;
    let key = key_of(token, keys, witness)?;
    let decoded = jsonwebtoken::decode::<UniqueClaims>(token, key.decoding_key(), key.signature_only());
    let signature = match decoded.as_ref().map_err(|error| error.kind()) {
        // The claims are read only after the signature was verified.
        Ok(_) | Err(jsonwebtoken::errors::ErrorKind::Json(_)) => Ok(()),
        Err(jsonwebtoken::errors::ErrorKind::InvalidSignature) => Err(Reason::TokenBadSignature),
        Err(_) => Err(Reason::TokenMalformed),
    };
    noted(witness, FormCheck::Signature, signature)?;
    let claims = decoded.map(|token| token.claims.0).map_err(|_| Reason::TokenMalformed);
    noted(witness, FormCheck::Shape, claims)
}

/// Refuses what is too long to be a token, before anything is done with it.
pub(super) fn check_size(token: &str) -> Result<(), Reason> {
    require(token.len() <= limits::MAX_TOKEN_BYTES, Reason::TokenMalformed)
}

/// Finds the key that the header names. Of a header that is not verified yet nothing but `kid` is used: keys and
/// places of keys that come with the token (`jwk`, `jku`, `x5c`, `x5u`) are ignored, and `alg` must be what the key is
/// pinned to (RFC 8725 section 3.1).
fn key_of<'a>(
    token: &str,
    keys: &'a KeySet,
    witness: &mut impl FnMut(FormCheck, Result<(), Reason>),
) -> Result<&'a VerifyingKey, Reason> {
    let dots = token.bytes().filter(|byte| *byte == b'.').count();
    noted(witness, FormCheck::Segments, require(dots == 2, Reason::TokenMalformed))?;
    let header = jsonwebtoken::decode_header(token).map_err(|_| Reason::TokenMalformed);
    let header = noted(witness, FormCheck::Header, header)?;
    // We understand no extension, so a token that insists on one must be refused (RFC 7515 section 4.1.11).
    noted(witness, FormCheck::Extensions, require(header.crit.is_none(), Reason::TokenMalformed))?;
    let kid = noted(witness, FormCheck::KeyName, header.kid.ok_or(Reason::TokenMalformed))?;
    let key = noted(witness, FormCheck::Key, keys.get(&kid).ok_or(Reason::TokenUnknownKey))?;
    let same = header.alg == key.algorithm().into();
    noted(witness, FormCheck::Algorithm, require(same, Reason::TokenBadSignature))?;
    Ok(key)
}

fn require(holds: bool, reason: Reason) -> Result<(), Reason> {
    if holds { Ok(()) } else { Err(reason) }
}

fn noted<T>(
    witness: &mut impl FnMut(FormCheck, Result<(), Reason>),
    check: FormCheck,
    outcome: Result<T, Reason>,
) -> Result<T, Reason> {
    witness(check, outcome.as_ref().map(drop).map_err(|reason| *reason));
    outcome
}
