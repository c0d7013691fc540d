//! Tokens whose form, header or signature is forged (RFC 7515, RFC 8725).

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD};
use telemetry_proto::Reason;
use telemetry_relay::gate::SignatureAlgorithm;
use telemetry_relay::issuer::SigningKey;
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::Suite;

use crate::arena::ATTACKER;
use crate::forge::{Forgery, add_forgeries, also, claims, header, message, sign, sign_with, sign_with_secret, with};

macro_rules! forgery {
    ($name:literal, $reason:ident, $token:expr) => {
        Forgery { name: $name, reason: Reason::$reason, token: $token }
    };
}

pub(crate) fn add(suite: Suite) -> Suite {
    let suite = add_forgeries(suite, "tokens", algorithms());
    let suite = add_forgeries(suite, "tokens", keys());
    let suite = add_forgeries(suite, "tokens", encodings());
    add_forgeries(suite, "tokens", signatures())
}

fn algorithms() -> Vec<Forgery> {
    vec![
        forgery!("alg_none", TokenMalformed, |rig| unsigned(rig, "\"none\"")),
        forgery!("alg_none_in_capitals", TokenMalformed, |rig| unsigned(rig, "\"NONE\"")),
        forgery!("alg_none_mixed", TokenMalformed, |rig| unsigned(rig, "\"nOnE\"")),
        forgery!("alg_empty", TokenMalformed, |rig| unsigned(rig, "\"\"")),
        forgery!("alg_null", TokenMalformed, |rig| unsigned(rig, "null")),
        forgery!("alg_as_a_list", TokenMalformed, |rig| unsigned(rig, "[\"EdDSA\"]")),
        forgery!("alg_none_with_a_good_signature", TokenMalformed, |rig| {
            sign(rig, &with(&header(rig), "alg", "\"none\""), claims(rig))
        }),
        forgery!("alg_of_another_key", TokenBadSignature, |rig| {
            sign(rig, &with(&header(rig), "alg", "\"RS256\""), claims(rig))
        }),
        forgery!("alg_twice", TokenMalformed, |rig| sign(rig, &also(&header(rig), "alg", "\"none\""), claims(rig))),
        // The public key is known to everyone, and might serve as a secret.
        forgery!("hs256_with_the_jwks", TokenBadSignature, |rig| {
            hs256(rig, rig.issuer().public_keys().to_jwks().as_bytes())
        }),
        forgery!("hs256_with_the_bytes_of_the_public_key", TokenBadSignature, |rig| hs256(rig, &public_key(rig))),
        forgery!("hs256_with_the_public_key_as_base64", TokenBadSignature, |rig| {
            hs256(rig, BASE64_URL_SAFE_NO_PAD.encode(public_key(rig)).as_bytes())
        }),
        forgery!("hs256_with_nothing", TokenBadSignature, |rig| hs256(rig, b"")),
    ]
}

fn keys() -> Vec<Forgery> {
    vec![
        forgery!("kid_of_nobody", TokenUnknownKey, |rig| kid(rig, "\"nobody\"")),
        forgery!("kid_of_a_file", TokenUnknownKey, |rig| kid(rig, "\"../../../../dev/null\"")),
        forgery!("kid_of_a_query", TokenUnknownKey, |rig| kid(rig, "\"' or 1=1 --\"")),
        forgery!("kid_empty", TokenUnknownKey, |rig| kid(rig, "\"\"")),
        forgery!("kid_of_5_000_bytes", TokenUnknownKey, |rig| kid(rig, &format!("\"{}\"", "k".repeat(5_000)))),
        forgery!("kid_with_nul", TokenUnknownKey, |rig| {
            kid(rig, &format!("\"{}\\u0000\"", rig.signing_key().kid()))
        }),
        forgery!("kid_null", TokenMalformed, |rig| kid(rig, "null")),
        forgery!("kid_as_a_number", TokenMalformed, |rig| kid(rig, "1")),
        forgery!("kid_as_a_list", TokenMalformed, |rig| kid(rig, &format!("[\"{}\"]", rig.signing_key().kid()))),
        forgery!("kid_twice", TokenMalformed, |rig| sign(rig, &also(&header(rig), "kid", "\"x\""), claims(rig))),
        forgery!("a_key_of_its_own", TokenBadSignature, |rig| own_key(rig, |_| header(rig))),
        forgery!("a_key_of_its_own_as_jwk", TokenBadSignature, |rig| {
            own_key(rig, |key| with(&header(rig), "jwk", &jwk(key)))
        }),
        forgery!("a_key_of_its_own_behind_jku", TokenBadSignature, |rig| {
            own_key(rig, |_| with(&header(rig), "jku", "\"http://127.0.0.1:1/jwks.json\""))
        }),
        forgery!("a_key_of_its_own_behind_x5u", TokenBadSignature, |rig| {
            own_key(rig, |_| with(&header(rig), "x5u", "\"http://127.0.0.1:1/chain.pem\""))
        }),
        forgery!("a_key_of_its_own_as_x5c", TokenBadSignature, |rig| {
            own_key(rig, |_| with(&header(rig), "x5c", "[\"MIIB\"]"))
        }),
        forgery!("crit", TokenMalformed, |rig| sign(rig, &with(&header(rig), "crit", "[\"exp\"]"), claims(rig))),
        forgery!("header_as_a_list", TokenMalformed, |rig| sign(rig, "[]", claims(rig))),
        forgery!("header_empty", TokenMalformed, |rig| sign(rig, "", claims(rig))),
        forgery!("header_of_nested_lists", TokenMalformed, |rig| {
            sign(rig, &with(&header(rig), "x", &"[".repeat(3_000)), claims(rig))
        }),
    ]
}

fn encodings() -> Vec<Forgery> {
    vec![
        forgery!("no_dots", TokenMalformed, |_| "x".repeat(100)),
        forgery!("dots_only", TokenMalformed, |_| "..".to_owned()),
        forgery!("four_parts", TokenMalformed, |rig| format!("{}.x", rig.token(ATTACKER))),
        forgery!("five_parts_as_if_encrypted", TokenMalformed, |rig| format!("{}.x.x", rig.token(ATTACKER))),
        forgery!("no_header", TokenMalformed, |rig| edited(rig, |parts| parts[0].clear())),
        forgery!("no_claims", TokenBadSignature, |rig| edited(rig, |parts| parts[1].clear())),
        forgery!("padded", TokenBadSignature, |rig| {
            let claims = BASE64_URL_SAFE.encode(format!("{} ", claims(rig)));
            let padded = if claims.ends_with('=') { claims } else { format!("{claims}==") };
            edited(rig, |parts| parts[1] = padded)
        }),
        forgery!("another_alphabet", TokenMalformed, |rig| {
            edited(rig, |parts| parts[2] = BASE64_STANDARD.encode([0xff; 64]))
        }),
        forgery!("signature_with_loose_bits", TokenMalformed, |rig| {
            // The last character of 64 octets holds two bits and four that must be zero: another text, the same octets.
            edited(rig, |parts| {
                let last = parts[2].pop().unwrap_or('A');
                parts[2].push(char::from(u8::try_from(last).unwrap_or(b'A') + 1));
            })
        }),
        forgery!("as_large_as_allowed", TokenBadSignature, |rig| {
            edited(rig, |parts| parts[1] = BASE64_URL_SAFE_NO_PAD.encode(claims(rig) + &" ".repeat(5_000)))
        }),
    ]
}

fn signatures() -> Vec<Forgery> {
    vec![
        forgery!("signature_missing", TokenBadSignature, |rig| edited(rig, |parts| parts[2].clear())),
        forgery!("signature_of_zeros", TokenBadSignature, |rig| signature(rig, |octets| octets.fill(0))),
        forgery!("signature_cut", TokenBadSignature, |rig| signature(rig, |octets| octets.truncate(63))),
        forgery!("signature_extended", TokenBadSignature, |rig| signature(rig, |octets| octets.push(0))),
        forgery!("signature_with_a_bit_flipped", TokenBadSignature, |rig| signature(rig, |octets| octets[10] ^= 1)),
        // Adding the group's order to S makes another signature of the same message (RFC 8032 section 5.1.7).
        forgery!("signature_with_another_s", TokenBadSignature, |rig| signature(rig, |octets| add_order(
            &mut octets[32..]
        ))),
        forgery!("signature_of_another_token", TokenBadSignature, |rig| {
            let other = sign(rig, &header(rig), with(&claims(rig), "jti", "\"x\""));
            edited(rig, |parts| parts[2] = other.rsplit('.').next().unwrap_or_default().to_owned())
        }),
        forgery!("claims_changed", TokenBadSignature, |rig| {
            let other = with(&claims(rig), "runner_id", "\"r2\"");
            edited(rig, |parts| parts[1] = BASE64_URL_SAFE_NO_PAD.encode(other))
        }),
    ]
}

fn unsigned(rig: &Rig, algorithm: &str) -> String {
    format!("{}.", message(&with(&header(rig), "alg", algorithm), claims(rig)))
}

fn hs256(rig: &Rig, secret: &[u8]) -> String {
    sign_with_secret(secret, &with(&header(rig), "alg", "\"HS256\""), &claims(rig))
}

fn kid(rig: &Rig, raw: &str) -> String {
    sign(rig, &with(&header(rig), "kid", raw), claims(rig))
}

fn own_key(rig: &Rig, header: impl FnOnce(&SigningKey) -> String) -> String {
    match SigningKey::generate(SignatureAlgorithm::EdDsa) {
        Ok(key) => sign_with(&key, &header(&key), claims(rig)),
        Err(error) => panic!("{error}"),
    }
}

fn jwk(key: &SigningKey) -> String {
    let keys = telemetry_relay::gate::KeySet::of(key.kid(), key.public().clone());
    let document = keys.map(|keys| keys.to_jwks()).unwrap_or_default();
    let document: serde_json::Value = serde_json::from_str(&document).unwrap_or_default();
    document["keys"][0].to_string()
}

/// The public key's 32 octets.
fn public_key(rig: &Rig) -> Vec<u8> {
    let jwk: serde_json::Value = serde_json::from_str(&jwk(rig.signing_key())).unwrap_or_default();
    BASE64_URL_SAFE_NO_PAD.decode(jwk["x"].as_str().unwrap_or_default()).unwrap_or_default()
}

/// A good token with one of its three parts changed.
fn edited(rig: &Rig, edit: impl FnOnce(&mut Vec<String>)) -> String {
    let mut parts = rig.token(ATTACKER).split('.').map(str::to_owned).collect();
    edit(&mut parts);
    parts.join(".")
}

fn signature(rig: &Rig, edit: impl FnOnce(&mut Vec<u8>)) -> String {
    edited(rig, |parts| {
        let mut octets = BASE64_URL_SAFE_NO_PAD.decode(&parts[2]).unwrap_or_default();
        edit(&mut octets);
        parts[2] = BASE64_URL_SAFE_NO_PAD.encode(octets);
    })
}

/// Adds 2^252 + 27742317777372353535851937790883648493, little-endian.
fn add_order(scalar: &mut [u8]) {
    const ORDER: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let mut carry = 0_u16;
    for (octet, addend) in scalar.iter_mut().zip(ORDER) {
        let sum = u16::from(*octet) + u16::from(addend) + carry;
        *octet = sum.to_le_bytes()[0];
        carry = sum >> 8;
    }
}
