use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use telemetry_proto::claims::{Expectations, Grants};

use super::*;
use crate::gate::fixtures::{ISSUER, NOW, TestClock, peer, runner};
use crate::gate::{AllRegistered, JwtVerifier, Principal, RemovedRunners, SignatureAlgorithm, TokenVerifier};
use crate::issuer::MintRate;

struct Bench {
    issuer: Issuer,
    clock: Arc<TestClock>,
    removed: Arc<RemovedRunners>,
}

impl Bench {
    fn new(algorithm: SignatureAlgorithm, edit: impl FnOnce(&mut IssuerConfig)) -> Self {
        let mut config = IssuerConfig::new(ISSUER);
        config.rate = MintRate { per_minute: 6, burst: 3 };
        edit(&mut config);
        let (clock, removed) = (TestClock::new(), Arc::new(RemovedRunners::default()));
        let keys = KeyRing::new(SigningKey::generate(algorithm).unwrap(), &KeySet::default()).unwrap();
        let issuer = Issuer::new(config, keys, Arc::clone(&clock) as _, Arc::clone(&removed) as _).unwrap();
        Self { issuer, clock, removed }
    }

    fn verifier(&self) -> JwtVerifier {
        JwtVerifier::new(self.issuer.public_keys(), Expectations::new(ISSUER), Arc::clone(&self.clock) as _)
    }

    /// Mints for `r7` in process, and reads the claims.
    fn claims(&self, request: &MintRequest) -> Value {
        claims_of(&self.issuer.mint_for(request, &runner("r7")).unwrap().token)
    }
}

fn ed25519() -> Bench {
    Bench::new(SignatureAlgorithm::EdDsa, |_| ())
}

fn request() -> MintRequest {
    MintRequest::telemetry_writer(&Signal::ALL)
}

fn claims_of(token: &str) -> Value {
    let payload = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap()
}

#[test]
fn what_is_minted_is_verified_and_bound_with_every_algorithm() {
    for algorithm in SignatureAlgorithm::ALL {
        let bench = Bench::new(algorithm, |_| ());
        let minted = bench.issuer.mint(&request(), &peer("r7")).unwrap();
        let from_document = KeySet::from_jwks(&bench.issuer.jwks()).unwrap();
        let elsewhere = JwtVerifier::new(from_document, Expectations::new(ISSUER), Arc::clone(&bench.clock) as _);
        for verifier in [bench.verifier(), elsewhere] {
            let claims = verifier.verify(&minted.token).unwrap();
            assert_eq!(claims.grants, Grants::of(&Signal::ALL));
            for signal in Signal::ALL {
                assert!(Principal::bind(&peer("r7"), Arc::clone(&claims), signal).is_ok());
                let stolen = Principal::bind(&peer("r8"), Arc::clone(&claims), signal).map(drop);
                assert_eq!(stolen, Err(Reason::TokenRunnerMismatch));
            }
        }
    }
}

#[test]
fn the_claims_are_those_of_the_contract() {
    let bench = Bench::new(SignatureAlgorithm::EdDsa, |c| {
        (c.organization, c.cluster) = (Some("acme".to_owned()), Some("eu-1".to_owned()));
    });
    let mut claims = bench.claims(&request());
    let jti = claims.as_object_mut().unwrap().remove("jti").unwrap();
    let jti = jti.as_str().unwrap();
    assert!(jti.len() == 32 && jti.bytes().all(|byte| byte.is_ascii_hexdigit()), "{jti}");
    assert_ne!(bench.claims(&request())["jti"], jti);
    assert_eq!(
        claims,
        json!({
            "iss": ISSUER, "sub": "org:acme:cluster:eu-1:system:telemetrywriter", "aud": ["miren-telemetry"],
            "exp": NOW + 3_600, "nbf": NOW, "iat": NOW, "identity_type": "system", "system_workload": "telemetrywriter",
            "signals": ["metrics", "logs", "traces"], "organization_id": "acme", "cluster_id": "eu-1", "runner_id": "r7",
        })
    );
}

#[test]
fn the_subject_has_only_the_parts_that_are_set() {
    let subject = |organization: Option<&str>, cluster: Option<&str>| {
        let bench = Bench::new(SignatureAlgorithm::EdDsa, |c| {
            (c.organization, c.cluster) = (organization.map(Into::into), cluster.map(Into::into));
        });
        bench.claims(&request())["sub"].as_str().unwrap().to_owned()
    };
    assert_eq!(subject(None, None), "system:telemetrywriter");
    assert_eq!(subject(Some("acme"), None), "org:acme:system:telemetrywriter");
    assert_eq!(subject(None, Some("eu-1")), "cluster:eu-1:system:telemetrywriter");
}

#[test]
fn a_lifetime_is_clamped_whatever_is_asked_for() {
    let bench = ed25519();
    for (asked, given) in [(0, 60), (59, 60), (60, 60), (3_600, 3_600), (86_401, 86_400), (u64::MAX, 86_400)] {
        let minted = bench.issuer.mint_for(&MintRequest { ttl_seconds: asked, ..request() }, &runner("r7")).unwrap();
        assert_eq!(claims_of(&minted.token)["exp"], NOW + given, "{asked}");
        assert_eq!(minted.expires_at.unix_timestamp(), i64::try_from(NOW + given).unwrap());
        assert_eq!(minted.server_time.unix_timestamp(), i64::try_from(NOW).unwrap());
        assert!(bench.verifier().verify(&minted.token).is_ok(), "{asked}");
    }
}

#[test]
fn only_what_is_listed_is_minted() {
    let bench = Bench::new(SignatureAlgorithm::EdDsa, |c| c.signals = vec![Signal::Metrics]);
    let ask = |edit: fn(&mut MintRequest)| {
        let mut request = MintRequest::telemetry_writer(&[Signal::Metrics]);
        edit(&mut request);
        bench.issuer.mint_for(&request, &runner("r7")).map(|minted| claims_of(&minted.token))
    };
    let refused: [fn(&mut MintRequest); 10] = [
        |r| r.system_workload = "imagebuilder".to_owned(),
        |r| r.system_workload.clear(),
        |r| r.system_workload.push(' '),
        |r| r.audience = vec!["miren".to_owned()],
        |r| r.audience.push("miren".to_owned()),
        |r| r.audience.clear(),
        |r| r.signals = Some(vec![Signal::Metrics, Signal::Traces]),
        |r| r.signals = Some(vec![Signal::Logs]),
        |r| r.signals = Some(Vec::new()),
        // Without the claim a token grants logs too.
        |r| r.signals = None,
    ];
    for (i, edit) in refused.into_iter().enumerate() {
        assert_eq!(ask(edit), Err(Reason::MintNotAllowed), "case {i}");
    }
    assert_eq!(ask(|_| ()).unwrap()["signals"], json!(["metrics"]));
}

#[test]
fn a_request_without_signals_gets_a_token_without_the_claim() {
    let claims = ed25519().claims(&MintRequest { signals: None, ..request() });
    assert!(claims.get("signals").is_none());
}

#[test]
fn what_is_asked_for_many_times_is_written_once() {
    let request = MintRequest {
        audience: vec!["miren-telemetry".to_owned(); 3_000],
        signals: Some([Signal::Logs, Signal::Metrics].repeat(3_000)),
        ..request()
    };
    let claims = ed25519().claims(&request);
    assert_eq!((&claims["aud"], &claims["signals"]), (&json!(["miren-telemetry"]), &json!(["logs", "metrics"])));
}

#[test]
fn the_runner_is_the_one_of_the_certificate_under_the_name_that_is_set() {
    let bench = Bench::new(SignatureAlgorithm::EdDsa, |c| c.runner_id_claim = "node".to_owned());
    let claims = claims_of(&bench.issuer.mint(&request(), &peer("r9")).unwrap().token);
    assert_eq!(claims["node"], "r9");
    assert!(claims.get("runner_id").is_none());
}

#[test]
fn a_removed_runner_gets_no_token_and_a_returned_one_does() {
    let bench = ed25519();
    bench.removed.publish(HashSet::from([runner("r7")]));
    assert_eq!(bench.issuer.mint(&request(), &peer("r7")), Err(Reason::RunnerRemoved));
    assert_eq!(bench.issuer.mint_for(&request(), &runner("r7")), Err(Reason::RunnerRemoved));
    assert!(bench.issuer.mint(&request(), &peer("r8")).is_ok());
    bench.removed.publish(HashSet::new());
    assert!(bench.issuer.mint(&request(), &peer("r7")).is_ok());
}

#[test]
fn an_expired_certificate_gets_no_token() {
    let bench = ed25519();
    bench.clock.set(NOW + 3_601);
    assert_eq!(bench.issuer.mint(&request(), &peer("r7")), Err(Reason::CertificateExpired));
}

#[test]
fn a_runner_that_asks_too_often_is_told_how_long_to_wait() {
    let bench = ed25519();
    let ask = |id: &str| bench.issuer.mint(&request(), &peer(id)).map(drop);
    let not_allowed = MintRequest { system_workload: "imagebuilder".to_owned(), ..request() };
    for _ in 0..10 {
        assert_eq!(bench.issuer.mint(&not_allowed, &peer("r7")), Err(Reason::MintNotAllowed), "costs nothing");
    }
    assert_eq!([ask("r7"), ask("r7"), ask("r7")], [Ok(()); 3]);
    assert_eq!(ask("r7"), Err(Reason::MintRateLimited));
    assert_eq!(bench.issuer.retry_after(&runner("r7")), Duration::from_secs(10));
    assert_eq!(ask("r8"), Ok(()));
    assert_eq!(bench.issuer.retry_after(&runner("r9")), Duration::from_secs(1), "never zero");
    assert!(bench.issuer.mint_for(&request(), &runner("r7")).is_ok(), "in process there is no rate");
    bench.clock.advance(Duration::from_millis(8_500));
    assert_eq!(bench.issuer.retry_after(&runner("r7")), Duration::from_secs(2), "rounded up");
    bench.clock.advance(Duration::from_millis(1_500));
    assert_eq!(ask("r7"), Ok(()));
}

#[test]
fn no_token_is_refused_while_keys_are_rotated() {
    let bench = ed25519();
    let verifier = bench.verifier();
    let mint_and_verify = || {
        let token = bench.issuer.mint_for(&request(), &runner("r7")).unwrap().token;
        verifier.verify(&token).unwrap();
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..500).for_each(|_| mint_and_verify()));
        }
        for _ in 0..25 {
            let next = SigningKey::generate(SignatureAlgorithm::EdDsa).unwrap();
            let publish = |keys: &KeySet| {
                mint_and_verify();
                verifier.publish_keys(keys);
            };
            bench.issuer.rotate(next, publish).unwrap();
            mint_and_verify();
        }
    });
    assert_eq!(bench.issuer.public_keys().len(), 26);
}

#[test]
fn a_retired_key_is_not_accepted_any_more() {
    let bench = ed25519();
    let verifier = bench.verifier();
    let old_kid = bench.issuer.keys().signing().kid().to_owned();
    let old = bench.issuer.mint_for(&request(), &runner("r7")).unwrap().token;
    let next = SigningKey::generate(SignatureAlgorithm::Es256).unwrap();
    bench.issuer.rotate(next, |keys| verifier.publish_keys(keys)).unwrap();
    let new = bench.issuer.mint_for(&request(), &runner("r7")).unwrap().token;
    assert!(verifier.verify(&old).is_ok() && verifier.verify(&new).is_ok());
    verifier.publish_keys(&bench.issuer.retire(&old_kid).unwrap());
    assert_eq!(verifier.verify(&old).map(drop), Err(Reason::TokenUnknownKey));
    assert!(verifier.verify(&new).is_ok());
}

#[test]
fn a_bad_setting_stops_the_start_and_a_debug_print_shows_no_key() {
    let keys = || KeyRing::new(SigningKey::generate(SignatureAlgorithm::EdDsa).unwrap(), &KeySet::default()).unwrap();
    let start = |config| Issuer::new(config, keys(), TestClock::new(), Arc::new(AllRegistered));
    assert_eq!(start(IssuerConfig::new("")).unwrap_err(), IssuerConfigError::Name { setting: "issuer" });
    let issuer = start(IssuerConfig::new(ISSUER)).unwrap();
    let pem = issuer.keys().signing().to_pem().unwrap();
    let shown = format!("{issuer:?}");
    assert!(shown.contains(ISSUER) && pem.lines().all(|line| !shown.contains(line)), "{shown}");
}
