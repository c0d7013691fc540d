use http::{HeaderMap, HeaderValue};
use jsonwebtoken::EncodingKey;
use proptest::prelude::*;
use serde_json::json;
use telemetry_proto::header;

use super::*;
use crate::gate::fixtures::{Forger, ISSUER, NOW, TestClock, good_claims, peer, runner, sign};
use crate::gate::{JwtVerifier, Principal, RemovedRunners, SignatureAlgorithm, TokenVerifier, workload_token};

/// What a relay says to a token that `r7` shows for metrics.
fn verdict(verifier: &JwtVerifier, token: &str) -> Result<(), Reason> {
    // A value that HTTP can't carry never gets as far as the verifier, which refuses it as well.
    let claims = match HeaderValue::from_str(token) {
        Ok(value) => {
            let headers = HeaderMap::from_iter([(header::WORKLOAD_TOKEN, value)]);
            verifier.verify(workload_token(&headers)?)?
        }
        Err(_) => verifier.verify(token)?,
    };
    Principal::bind(&peer("r7"), claims, Signal::Metrics).map(drop)
}

fn explained(forger: &Forger, token: &str) -> Explanation {
    let (keys, expected, r7) = (forger.keys(), Expectations::new(ISSUER), runner("r7"));
    let (runner, signal) = (Some(&r7), Some(Signal::Metrics));
    explain(token, &Question { keys: &keys, expected: &expected, now: NOW, runner, signal, registry: None })
}

/// Explanation and verifier agree, and nothing is shown that could be used.
#[track_caller]
fn assert_agree(forger: &Forger, token: &str) {
    let explanation = explained(forger, token);
    let said = explanation.reason.map_or(Ok(()), Err);
    assert_eq!(said, verdict(&forger.verifier(TestClock::new()), token), "{explanation:#?}");
    assert_eq!(explanation.ok, said.is_ok());
    let first = explanation.steps.iter().find(|step| step.outcome != Outcome::Holds);
    assert_eq!(first.is_none(), said.is_ok());
    assert!(first.is_none_or(|step| step.outcome == Outcome::Fails && step.remedy.is_some()), "{first:?}");
    let shown = serde_json::to_string(&explanation).unwrap();
    for segment in token.split('.').filter(|segment| segment.len() > 40) {
        assert!(!shown.contains(segment), "{segment} is in {shown}");
    }
}

fn hostile(forger: &Forger) -> Vec<String> {
    let (kid, stranger) = (forger.key.kid().to_owned(), Forger::new(SignatureAlgorithm::EdDsa));
    let good = forger.claims(|_| ());
    let (message, signature) = good.rsplit_once('.').unwrap();
    let secret = EncodingKey::from_secret(forger.keys().to_jwks().as_bytes()).unwrap();
    let hs256 = json!({ "alg": "HS256", "kid": kid }).to_string();
    let twice = good_claims().to_string().replacen('{', r#"{"runner_id":"r8","#, 1);
    let mut tokens = vec![
        good.clone(),
        stranger.claims(|_| ()),
        stranger.header_with(|h| h["kid"] = json!(kid)),
        sign(hs256, good_claims().to_string(), &secret, jsonwebtoken::Algorithm::HS256),
        forger.raw(json!({ "alg": "none", "kid": kid }).to_string(), good_claims().to_string()),
        forger.raw(forger.header().to_string(), twice),
        forger.raw(forger.header().to_string(), "[".repeat(4_000)),
        forger.raw(forger.header().to_string(), [0xff, 0xfe]),
        forger.raw("\u{1b}[31m", "null"),
        format!("{message}."),
        format!("{message}.!"),
        format!("{message}.{}", "A".repeat(signature.len())),
        format!("Bearer {good}"),
        format!("{good}\n"),
        format!("{good}.{signature}"),
        format!("{good}="),
        "x".repeat(9_000),
        String::new(),
        "..".to_owned(),
        "\0.\0.\0".to_owned(),
    ];
    let claims: [fn(&mut Value); 21] = [
        |c| c["iss"] = json!("https://coordinator.example/"),
        |c| c["iss"] = json!("\u{1b}[2J\r\n".repeat(500)),
        |c| c["aud"] = json!("miren"),
        |c| c["aud"] = json!([]),
        |c| c["aud"] = json!([["miren-telemetry"]]),
        |c| c["exp"] = json!(NOW - 30),
        |c| c["exp"] = json!(u64::MAX),
        |c| c["exp"] = json!("soon"),
        |c| c["exp"] = json!(1.9e9),
        |c| c["nbf"] = json!(NOW + 31),
        |c| c["iat"] = json!(0),
        |c| c["identity_type"] = json!("user"),
        |c| c["system_workload"] = Value::Null,
        |c| c["runner_id"] = json!("r8"),
        |c| c["runner_id"] = json!("r7\n"),
        |c| c["runner_id"] = json!(["r7"]),
        |c| c["runner_id"] = Value::Null,
        |c| c["signals"] = json!(["traces", "profiles"]),
        |c| c["signals"] = json!([]),
        |c| c["signals"] = json!("metrics"),
        |c| *c = json!([]),
    ];
    tokens.extend(claims.into_iter().map(|edit| forger.claims(edit)));
    let headers: [fn(&mut Value); 8] = [
        |h| h["kid"] = json!(7),
        |h| h["kid"] = json!(""),
        |h| drop(h.as_object_mut().unwrap().remove("kid")),
        |h| drop(h.as_object_mut().unwrap().remove("alg")),
        |h| h["crit"] = json!(["exp"]),
        |h| h["jku"] = json!("https://attacker.example/jwks.json"),
        |h| h["alg"] = json!("PS512"),
        |h| *h = json!([]),
    ];
    tokens.extend(headers.into_iter().map(|edit| forger.header_with(edit)));
    tokens
}

#[test]
fn the_explanation_says_of_every_hostile_token_what_the_verifier_says() {
    for algorithm in SignatureAlgorithm::ALL {
        let forger = Forger::new(algorithm);
        for token in hostile(&forger) {
            assert_agree(&forger, &token);
        }
    }
}

#[test]
fn every_check_is_listed_in_order_with_what_was_expected_and_found() {
    let forger = Forger::new(SignatureAlgorithm::EdDsa);
    let good = explained(&forger, &forger.claims(|_| ()));
    let names: Vec<_> = good.steps.iter().map(|step| step.check).collect();
    let expected = "size characters segments header extensions key-name key-known algorithm signature claims-shape \
                    issuer audience not-expired already-valid lifetime identity-type workload runner-named \
                    runner-match signal-granted";
    assert_eq!(names.join(" "), expected);
    assert!(good.steps.iter().all(|step| !step.expected.is_empty() && !step.found.is_empty()), "{good:#?}");
    let late = explained(&forger, &forger.claims(|c| c["exp"] = json!(NOW - 90)));
    let step = late.steps.iter().find(|step| step.check == "not-expired").unwrap();
    assert_eq!((step.outcome, step.found.as_str()), (Outcome::Fails, "2030-03-17T17:45:10Z (1 min 30 s ago)"));
}

#[test]
fn all_that_is_wrong_with_the_claims_is_said_even_behind_a_bad_signature() {
    let forger = Forger::new(SignatureAlgorithm::EdDsa);
    let stranger = Forger::new(SignatureAlgorithm::EdDsa);
    let token = stranger.claims(|c| (c["iss"], c["aud"]) = (json!("elsewhere"), json!("other")));
    let explanation = explained(&forger, &token);
    let failed: Vec<_> = explanation.steps.iter().filter(|s| s.outcome == Outcome::Fails).map(|s| s.check).collect();
    assert_eq!((explanation.reason, failed), (Some(Reason::TokenUnknownKey), vec!["key-known", "issuer", "audience"]));
}

#[test]
fn a_removed_runner_is_told_first_as_a_relay_does() {
    let forger = Forger::new(SignatureAlgorithm::EdDsa);
    let (keys, expected, r7) = (forger.keys(), Expectations::new(ISSUER), runner("r7"));
    let removed = RemovedRunners::new([runner("r7")].into());
    let (runner, registry) = (Some(&r7), Some(&removed as &dyn RunnerRegistry));
    let question = Question { keys: &keys, expected: &expected, now: NOW, runner, signal: None, registry };
    let explanation = explain(&forger.claims(|_| ()), &question);
    assert_eq!((explanation.reason, explanation.steps[0].check), (Some(Reason::RunnerRemoved), "runner-registered"));
}

proptest! {
    #[test]
    fn any_text_is_explained_as_the_verifier_judges_it(text in any::<String>()) {
        assert_agree(&Forger::new(SignatureAlgorithm::EdDsa), &text);
    }

    #[test]
    fn any_signed_bytes_are_explained_as_the_verifier_judges_them(payload in any::<Vec<u8>>()) {
        let forger = Forger::new(SignatureAlgorithm::EdDsa);
        assert_agree(&forger, &forger.raw(forger.header().to_string(), &payload));
    }

    #[test]
    fn any_claim_of_any_kind_is_explained_as_the_verifier_judges_it(
        name in prop::sample::select(vec!["iss", "aud", "exp", "nbf", "iat", "identity_type", "system_workload",
            "runner_id", "signals", "sub"]),
        value in prop_oneof![
            Just(json!(null)), Just(json!(true)), any::<i64>().prop_map(|n| json!(n)), any::<f64>().prop_map(|n| json!(n)),
            (NOW - 100_000..NOW + 100_000).prop_map(|n| json!(n)), any::<String>().prop_map(|s| json!(s)),
            any::<Vec<String>>().prop_map(|list| json!(list)), Just(json!({ "a": [1] })),
        ],
    ) {
        let forger = Forger::new(SignatureAlgorithm::EdDsa);
        assert_agree(&forger, &forger.claims(|c| c[name] = value));
    }
}
