use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue};
use jsonwebtoken::EncodingKey;
use proptest::prelude::*;
use serde_json::{Value, json};
use telemetry_proto::{Signal, header, limits};

use super::*;
use crate::gate::fixtures::{Forger, ISSUER, NOW, TestClock, good_claims, peer, sign};
use crate::gate::{Principal, SignatureAlgorithm, workload_token};

fn ed25519() -> (Forger, JwtVerifier) {
    let forger = Forger::new(SignatureAlgorithm::EdDsa);
    let verifier = forger.verifier(TestClock::new());
    (forger, verifier)
}

#[track_caller]
fn assert_refused(verifier: &JwtVerifier, token: &str, reason: Reason) {
    assert_eq!(verifier.verify(token).map(drop), Err(reason));
    assert_eq!(verifier.verify(token).map(drop), Err(reason), "asked again");
}

#[test]
fn every_algorithm_of_the_contract_is_verified() {
    for algorithm in SignatureAlgorithm::ALL {
        let forger = Forger::new(algorithm);
        let verifier = forger.verifier(TestClock::new());
        let claims = verifier.verify(&forger.claims(|_| ())).unwrap();
        assert_eq!(claims.runner.as_ref().unwrap().as_str(), "r7", "{algorithm}");
        assert!(claims.grants.allows(Signal::Metrics) && !claims.grants.allows(Signal::Traces));
    }
}

#[test]
fn every_token_reason_is_given_for_a_real_token() {
    let (forger, verifier) = ed25519();
    let stranger = Forger::new(SignatureAlgorithm::EdDsa);
    let principal = |token: &str, signal| {
        let mut headers = HeaderMap::new();
        headers.insert(header::WORKLOAD_TOKEN, HeaderValue::from_str(token).unwrap());
        let claims = verifier.verify(workload_token(&headers)?)?;
        Principal::bind(&peer("r7"), claims, signal).map(drop)
    };
    let cases = [
        (forger.claims(|c| c["exp"] = json!("soon")), Reason::TokenMalformed),
        (stranger.claims(|_| ()), Reason::TokenUnknownKey),
        (stranger.header_with(|h| h["kid"] = json!(forger.key.kid())), Reason::TokenBadSignature),
        (forger.claims(|c| c["exp"] = json!(NOW - 30)), Reason::TokenExpired),
        (forger.claims(|c| c["nbf"] = json!(NOW + 31)), Reason::TokenNotYetValid),
        (forger.claims(|c| c["exp"] = json!(NOW + 86_431)), Reason::TokenTooLongLived),
        (forger.claims(|c| c["iss"] = json!("https://coordinator.example.evil")), Reason::TokenWrongIssuer),
        (forger.claims(|c| c["aud"] = json!(["miren"])), Reason::TokenWrongAudience),
        (forger.claims(|c| c["identity_type"] = json!("user")), Reason::TokenNotSystem),
        (forger.claims(|c| c["system_workload"] = json!("imagebuilder")), Reason::TokenWrongWorkload),
        (forger.claims(|c| c["runner_id"] = json!("r8")), Reason::TokenRunnerMismatch),
        (forger.claims(|c| c["signals"] = json!(["traces"])), Reason::TokenSignalNotGranted),
    ];
    let mut seen = BTreeSet::from([Reason::TokenMissing]);
    assert_eq!(workload_token(&HeaderMap::new()), Err(Reason::TokenMissing));
    for (token, reason) in cases {
        assert_eq!(principal(&token, Signal::Metrics), Err(reason));
        seen.insert(reason);
    }
    assert_eq!(principal(&forger.claims(|_| ()), Signal::Metrics), Ok(()));
    // A writer that is no runner shows a static token, which is nothing for this verifier.
    let is_of_runners = |reason: &Reason| reason.as_str().starts_with("token-") && *reason != Reason::TokenWrongWriter;
    let all: BTreeSet<_> = Reason::ALL.iter().copied().filter(is_of_runners).collect();
    assert_eq!(seen, all);
}

/// RFC 8725 section 2.1: the header never chooses the algorithm.
#[test]
fn a_public_key_is_no_shared_secret_and_none_is_no_algorithm() {
    for algorithm in SignatureAlgorithm::ALL {
        let forger = Forger::new(algorithm);
        let verifier = forger.verifier(TestClock::new());
        let jwk = forger.key.public().to_jwk(forger.key.kid());
        let mut secrets = vec![forger.keys().to_jwks().into_bytes(), jwk.to_string().into_bytes()];
        for member in ["n", "x", "y"] {
            if let Some(value) = jwk[member].as_str() {
                secrets.push(value.as_bytes().to_vec());
                secrets.push(URL_SAFE_NO_PAD.decode(value).unwrap());
            }
        }
        for alg in ["HS256", "HS384", "HS512"] {
            let header = json!({ "alg": alg, "kid": forger.key.kid() }).to_string();
            for secret in &secrets {
                let secret = EncodingKey::from_secret(secret).unwrap();
                let token = sign(&header, good_claims().to_string(), &secret, alg.parse().unwrap());
                assert_refused(&verifier, &token, Reason::TokenBadSignature);
            }
        }
        for none in ["none", "None", "NONE", "nOnE", ""] {
            let header = json!({ "alg": none, "kid": forger.key.kid() }).to_string();
            let token = forger.raw(header, good_claims().to_string());
            let unsigned = format!("{}.", token.rsplit_once('.').unwrap().0);
            assert_refused(&verifier, &token, Reason::TokenMalformed);
            assert_refused(&verifier, &unsigned, Reason::TokenMalformed);
        }
        let unsigned = forger.claims(|_| ());
        let unsigned = format!("{}.", unsigned.rsplit_once('.').unwrap().0);
        assert_refused(&verifier, &unsigned, Reason::TokenBadSignature);
    }
}

#[test]
fn an_rsa_key_is_for_rs256_only() {
    let forger = Forger::new(SignatureAlgorithm::Rs256);
    let verifier = forger.verifier(TestClock::new());
    for alg in ["RS384", "RS512", "PS256", "PS384", "PS512"] {
        let header = json!({ "alg": alg, "kid": forger.key.kid() }).to_string();
        let token = sign(header, good_claims().to_string(), &forger.private, alg.parse().unwrap());
        assert_refused(&verifier, &token, Reason::TokenBadSignature);
    }
}

#[test]
fn each_key_verifies_only_what_it_signed() {
    let forgers: Vec<_> = SignatureAlgorithm::ALL
        .into_iter()
        .flat_map(|algorithm| [Forger::new(algorithm), Forger::new(algorithm)])
        .collect();
    let keys = forgers.iter().fold(KeySet::default(), |keys, forger| keys.merge(&forger.keys()).unwrap());
    let verifier = JwtVerifier::new(keys, Expectations::new(ISSUER), TestClock::new());
    for forger in &forgers {
        assert!(verifier.verify(&forger.claims(|_| ())).is_ok());
        for other in forgers.iter().filter(|other| other.key.kid() != forger.key.kid()) {
            let swapped = forger.header_with(|h| h["kid"] = json!(other.key.kid()));
            assert_refused(&verifier, &swapped, Reason::TokenBadSignature);
            let renamed = forger.header_with(|h| {
                h["kid"] = json!(other.key.kid());
                h["alg"] = json!(other.key.algorithm().as_str());
            });
            assert_refused(&verifier, &renamed, Reason::TokenBadSignature);
        }
    }
}

/// RFC 8725 section 3.10: keys and places of keys that a token brings along are worth nothing.
#[test]
fn a_key_that_comes_with_the_token_is_never_used() {
    let (forger, verifier) = ed25519();
    let attacker = Forger::new(SignatureAlgorithm::EdDsa);
    let inject = |h: &mut Value| {
        h["jwk"] = attacker.key.public().to_jwk(attacker.key.kid());
        h["jku"] = json!("https://attacker.example/jwks.json");
        h["x5u"] = json!("https://attacker.example/chain.pem");
        h["x5c"] = json!(["MIIB"]);
    };
    assert_refused(&verifier, &attacker.header_with(inject), Reason::TokenUnknownKey);
    let posing = attacker.header_with(|h| {
        inject(h);
        h["kid"] = json!(forger.key.kid());
    });
    assert_refused(&verifier, &posing, Reason::TokenBadSignature);
    assert!(verifier.verify(&forger.header_with(inject)).is_ok(), "ignored, not refused");
}

#[test]
fn a_header_that_is_not_ours_to_understand_is_malformed() {
    let (forger, verifier) = ed25519();
    let edits: [fn(&mut Value); 10] = [
        |h| drop(h.as_object_mut().unwrap().remove("kid")),
        |h| drop(h.as_object_mut().unwrap().remove("alg")),
        |h| h["kid"] = json!(7),
        |h| h["kid"] = Value::Null,
        |h| h["crit"] = json!(["exp"]),
        |h| h["crit"] = json!([]),
        |h| (h["b64"], h["crit"]) = (json!(true), json!(["b64"])),
        |h| h["b64"] = json!(false),
        |h| h["alg"] = json!(["EdDSA"]),
        |h| *h = json!([]),
    ];
    for edit in edits {
        assert_refused(&verifier, &forger.header_with(edit), Reason::TokenMalformed);
    }
    let twice = forger.header().to_string().replacen('{', r#"{"kid":"other","#, 1);
    assert_refused(&verifier, &forger.raw(twice, good_claims().to_string()), Reason::TokenMalformed);
    assert_refused(&verifier, &forger.header_with(|h| h["kid"] = json!("")), Reason::TokenUnknownKey);
}

#[test]
fn claims_of_the_wrong_shape_are_malformed() {
    let (forger, verifier) = ed25519();
    let edits: [fn(&mut Value); 14] = [
        |c| c["aud"] = json!([["miren-telemetry"]]),
        |c| c["aud"] = json!({ "miren-telemetry": true }),
        |c| c["aud"] = json!(["miren-telemetry", 7]),
        |c| c["exp"] = json!((NOW + 60).to_string()),
        |c| c["exp"] = json!(1.900_000_060_5e9),
        |c| c["exp"] = json!(-1),
        |c| c["nbf"] = json!(true),
        |c| c["iat"] = Value::Null,
        |c| c["iss"] = json!([ISSUER]),
        |c| c["runner_id"] = json!(["r7"]),
        |c| c["runner_id"] = json!("r7\nr8"),
        |c| c["signals"] = json!("metrics"),
        |c| drop(c.as_object_mut().unwrap().remove("runner_id")),
        |c| *c = json!([]),
    ];
    for (i, edit) in edits.into_iter().enumerate() {
        let token = forger.claims(edit);
        assert_eq!(verifier.verify(&token).map(drop), Err(Reason::TokenMalformed), "case {i}");
    }
    let good = good_claims().to_string();
    let payloads = [
        String::new(),
        "null".to_owned(),
        format!("{good}{good}"),
        format!("{good},"),
        good.replacen("1900003600", "1e999", 1),
        good.replacen("1900003600", "99999999999999999999", 1),
        "[".repeat(4_000),
    ];
    for payload in payloads {
        assert_refused(&verifier, &forger.raw(forger.header().to_string(), payload), Reason::TokenMalformed);
    }
    let not_utf8 = good.replace("r7", "r\u{fffd}").into_bytes();
    let at = not_utf8.windows(3).position(|bytes| bytes == "\u{fffd}".as_bytes()).unwrap();
    let not_utf8 = [&not_utf8[..at], &[0xff], &not_utf8[at + 3..]].concat();
    assert_refused(&verifier, &forger.raw(forger.header().to_string(), not_utf8), Reason::TokenMalformed);
}

#[test]
fn a_claim_that_occurs_twice_is_malformed_even_with_one_value() {
    let (forger, verifier) = ed25519();
    for name in ["iss", "aud", "exp", "nbf", "iat", "identity_type", "system_workload", "runner_id", "unknown"] {
        let mut claims = good_claims();
        claims["unknown"] = json!(1);
        let again = format!("{{{}:{},", json!(name), claims[name]);
        let payload = claims.to_string().replacen('{', &again, 1);
        assert_refused(&verifier, &forger.raw(forger.header().to_string(), payload), Reason::TokenMalformed);
    }
    let other_runner = good_claims().to_string().replacen('{', r#"{"runner_id":"r8","#, 1);
    assert_refused(&verifier, &forger.raw(forger.header().to_string(), other_runner), Reason::TokenMalformed);
}

#[test]
fn a_token_is_three_base64url_segments_and_nothing_else() {
    let (forger, verifier) = ed25519();
    let good = forger.claims(|_| ());
    let parts: Vec<_> = good.split('.').collect();
    let [header, payload, signature] = parts[..] else { panic!("three segments") };
    let variants = [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        "...".to_owned(),
        header.to_owned(),
        format!("{header}.{payload}"),
        format!("{good}."),
        format!(".{good}"),
        format!("{good}.{signature}"),
        format!("{good}="),
        format!("{header}=.{payload}.{signature}"),
        format!(" {good}"),
        format!("{good}\n"),
        format!("Bearer {good}"),
        format!("{good},{good}"),
        format!("{header}.{payload}.ä"),
        format!("{header}.{payload}.\0"),
    ];
    for variant in variants {
        assert_refused(&verifier, &variant, Reason::TokenMalformed);
    }
    assert!(verifier.verify(&good).is_ok());
}

#[test]
fn a_token_over_8_kib_is_malformed_however_good() {
    let (forger, verifier) = ed25519();
    let padded = |bytes: usize| forger.claims(|c| c["padding"] = json!("x".repeat(bytes)));
    let fits = (5_000..6_200).rev().map(padded).find(|token| token.len() <= limits::MAX_TOKEN_BYTES).unwrap();
    assert!(fits.len() > limits::MAX_TOKEN_BYTES - 4);
    assert!(verifier.verify(&fits).is_ok());
    let over = (5_000..6_200).map(padded).find(|token| token.len() > limits::MAX_TOKEN_BYTES).unwrap();
    assert_refused(&verifier, &over, Reason::TokenMalformed);
}

#[test]
fn a_remembered_token_ends_by_the_clock_and_is_forgotten() {
    let forger = Forger::new(SignatureAlgorithm::EdDsa);
    let clock = TestClock::new();
    let verifier = forger.verifier(Arc::clone(&clock) as _);
    let token = forger.claims(|c| c["exp"] = json!(NOW + 60));
    let first = verifier.verify(&token).unwrap();
    clock.set(NOW + 89);
    assert!(Arc::ptr_eq(&first, &verifier.verify(&token).unwrap()), "remembered, within the leeway");
    assert_eq!(verifier.cached(), 1);
    clock.set(NOW + 90);
    assert_refused(&verifier, &token, Reason::TokenExpired);
    assert_eq!(verifier.cached(), 0);
    clock.set(NOW - 31);
    assert_refused(&verifier, &token, Reason::TokenNotYetValid);
}

#[test]
fn other_keys_or_expectations_empty_the_memory() {
    let (forger, verifier) = ed25519();
    let token = forger.claims(|_| ());
    assert!(verifier.verify(&token).is_ok());
    verifier.publish_keys(&Forger::new(SignatureAlgorithm::EdDsa).keys());
    assert_eq!(verifier.cached(), 0);
    assert_refused(&verifier, &token, Reason::TokenUnknownKey);
    verifier.publish(forger.keys(), Expectations::new("https://another.example"));
    assert_refused(&verifier, &token, Reason::TokenWrongIssuer);
    verifier.publish(forger.keys(), Expectations::new(ISSUER));
    assert!(verifier.verify(&token).is_ok());
}

#[test]
fn a_verification_that_began_before_a_publish_is_not_remembered_after_it() {
    let (forger, verifier) = ed25519();
    let token = forger.claims(|_| ());
    let before = verifier.snapshot.load_full();
    verifier.publish_keys(&KeySet::default());
    assert!(before.verify(&token, NOW).is_ok());
    assert_eq!(verifier.cached(), 0);
    assert_refused(&verifier, &token, Reason::TokenUnknownKey);
}

#[test]
fn old_and_new_keys_verify_side_by_side() {
    let (old, verifier) = ed25519();
    let new = Forger::new(SignatureAlgorithm::Es256);
    verifier.publish_keys(&old.keys().merge(&new.keys()).unwrap());
    assert!(verifier.verify(&old.claims(|_| ())).is_ok());
    assert!(verifier.verify(&new.claims(|_| ())).is_ok());
    verifier.publish_keys(&verifier.keys().without(old.key.kid()));
    assert_refused(&verifier, &old.claims(|_| ()), Reason::TokenUnknownKey);
    assert!(verifier.verify(&new.claims(|_| ())).is_ok());
}

#[test]
fn a_flood_of_bad_tokens_leaves_the_remembered_ones_alone() {
    let (forger, _) = ed25519();
    let verifier = JwtVerifier::with_cache(forger.keys(), Expectations::new(ISSUER), TestClock::new(), 256);
    let good: Vec<_> = (0..100).map(|i| forger.claims(|c| c["jti"] = json!(i.to_string()))).collect();
    let verified: Vec<_> = good.iter().map(|token| verifier.verify(token).unwrap()).collect();
    let (signed, signature) = good[0].rsplit_once('.').unwrap();
    let (header, _) = signed.split_once('.').unwrap();
    for i in 0_u32..100_000 {
        let bad = match i % 100 {
            // A signature check each.
            0 => format!("{header}.{}.{signature}", URL_SAFE_NO_PAD.encode(i.to_string())),
            _ => format!("{}.x.y", URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"EdDSA","kid":"{i}"}}"#))),
        };
        assert!(verifier.verify(&bad).is_err());
    }
    // Well signed, and refused for its claims.
    for i in 0..1_000 {
        let expired = forger.claims(|c| (c["exp"], c["jti"]) = (json!(NOW - 60), json!(i.to_string())));
        assert_eq!(verifier.verify(&expired).map(drop), Err(Reason::TokenExpired));
    }
    assert_eq!(verifier.cached(), good.len());
    for (token, claims) in good.iter().zip(&verified) {
        assert!(Arc::ptr_eq(claims, &verifier.verify(token).unwrap()), "not verified again");
    }
}

#[test]
fn the_memory_is_bounded() {
    let (forger, _) = ed25519();
    let verifier = JwtVerifier::with_cache(forger.keys(), Expectations::new(ISSUER), TestClock::new(), 64);
    for i in 0..1_000 {
        assert!(verifier.verify(&forger.claims(|c| c["jti"] = json!(i.to_string()))).is_ok());
    }
    assert!((1..=64).contains(&verifier.cached()), "{}", verifier.cached());
}

#[test]
fn a_verifier_without_keys_refuses_everything() {
    let (forger, _) = ed25519();
    let verifier = JwtVerifier::new(KeySet::default(), Expectations::new(ISSUER), TestClock::new());
    assert_refused(&verifier, &forger.claims(|_| ()), Reason::TokenUnknownKey);
}

#[test]
fn a_debug_print_shows_no_token() {
    let (forger, verifier) = ed25519();
    let token = forger.claims(|_| ());
    verifier.verify(&token).unwrap();
    let shown = format!("{verifier:?}");
    assert!(shown.contains("cached: 1") && token.split('.').all(|part| !shown.contains(part)), "{shown}");
}

proptest! {
    #[test]
    fn any_text_gets_a_reason(text in any::<String>()) {
        let (_, verifier) = ed25519();
        prop_assert!(verifier.verify(&text).is_err());
    }

    #[test]
    fn any_bytes_in_place_of_a_segment_get_a_reason(bytes in any::<Vec<u8>>(), place in 0_usize..3) {
        let (forger, verifier) = ed25519();
        let good = forger.claims(|_| ());
        let encoded = URL_SAFE_NO_PAD.encode(&bytes);
        let mut parts: Vec<_> = good.split('.').collect();
        prop_assume!(parts[place] != encoded);
        parts[place] = &encoded;
        prop_assert!(verifier.verify(&parts.join(".")).is_err());
    }

    #[test]
    fn any_signed_bytes_get_a_reason(header in any::<Vec<u8>>(), payload in any::<Vec<u8>>()) {
        let (forger, verifier) = ed25519();
        prop_assert!(verifier.verify(&forger.raw(&header, good_claims().to_string())).is_err());
        prop_assert!(verifier.verify(&forger.raw(forger.header().to_string(), &payload)).is_err());
    }

    /// Not one character may be another: base64 has no second spelling that passes.
    #[test]
    fn a_changed_character_is_refused(at in any::<prop::sample::Index>(), to in "[A-Za-z0-9_.=-]") {
        let (forger, verifier) = ed25519();
        let good = forger.claims(|_| ());
        let at = at.index(good.len());
        let changed = format!("{}{to}{}", &good[..at], &good[at + 1..]);
        prop_assume!(changed != good);
        prop_assert!(verifier.verify(&changed).is_err());
    }

    #[test]
    fn time_decides_alike_for_fresh_and_remembered_tokens(offset in -200_000_i64..200_000) {
        let forger = Forger::new(SignatureAlgorithm::EdDsa);
        let clock = TestClock::new();
        let remembering = forger.verifier(Arc::clone(&clock) as _);
        let token = forger.claims(|_| ());
        remembering.verify(&token).unwrap();
        clock.set(NOW.checked_add_signed(offset).unwrap());
        let fresh = forger.verifier(Arc::clone(&clock) as _);
        prop_assert_eq!(remembering.verify(&token), fresh.verify(&token));
    }
}

#[test]
fn a_wait_for_time_costs_no_new_token() {
    let forger = Forger::new(SignatureAlgorithm::EdDsa);
    let clock = TestClock::new();
    let verifier = forger.verifier(Arc::clone(&clock) as _);
    let token = forger.claims(|c| c["nbf"] = json!(NOW + 40));
    assert_refused(&verifier, &token, Reason::TokenNotYetValid);
    clock.advance(Duration::from_secs(10));
    assert!(verifier.verify(&token).is_ok());
}
