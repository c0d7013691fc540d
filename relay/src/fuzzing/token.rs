//! Workload tokens: as they come, and with a good signature over anything.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Map, Value};
use telemetry_proto::Clock;
use telemetry_proto::claims::Expectations;
use telemetry_proto::fuzzing::Target;

use crate::gate::{JwtVerifier, KeySet, SignatureAlgorithm, TokenVerifier};
use crate::issuer::SigningKey;

pub(super) const TARGET: Target = Target {
    name: "token",
    run,
    seeds,
    words: &[
        "none",
        "HS256",
        "RS256",
        "\"alg\":",
        "\"kid\":",
        "\"crit\":[\"x\"]",
        "\"jwk\":{}",
        "\"b64\":false",
        "\"exp\":",
        "\"aud\":",
        "null",
        "1e3",
        "-1",
        "1.5",
        ".",
        "\u{0}",
        "{",
        "}",
        "\"exp\":9999999999,",
    ],
};

const NOW: u64 = 1_900_000_000;
const ISSUER: &str = "https://c.example";

/// A key of this process, and who verifies by it.
struct Issuing {
    kid: String,
    private: EncodingKey,
    verifier: JwtVerifier,
}

static ISSUING: LazyLock<Option<Issuing>> = LazyLock::new(|| {
    let key = SigningKey::generate(SignatureAlgorithm::EdDsa).ok()?;
    let private = EncodingKey::from_ed_pem(key.to_pem().ok()?.as_bytes()).ok()?;
    let keys = KeySet::of(key.kid(), key.public().clone()).ok()?;
    let verifier = JwtVerifier::with_cache(keys, Expectations::new(ISSUER), Arc::new(Standing), 64);
    Some(Issuing { kid: key.kid().to_owned(), private, verifier })
});

struct Standing;

impl Clock for Standing {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(NOW)
    }
}

/// The first byte says whether the rest is a token, or a header and a payload, with a zero byte between them, to be signed.
/// `KID` in a header stands for the key's, which no two processes share.
fn run(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    let Some(issuing) = &*ISSUING else { panic!("no key can be made") };
    if choice % 2 == 0 {
        let verified = std::str::from_utf8(rest).is_ok_and(|token| issuing.verifier.verify(token).is_ok());
        assert!(!verified, "a signature of nobody's");
        return;
    }
    let Some(middle) = rest.iter().position(|byte| *byte == 0) else { return };
    let header = String::from_utf8_lossy(&rest[..middle]).replace("KID", &issuing.kid);
    let payload = &rest[middle + 1..];
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(&header), URL_SAFE_NO_PAD.encode(payload));
    let Ok(signature) = jsonwebtoken::crypto::sign(message.as_bytes(), &issuing.private, Algorithm::EdDSA) else {
        return;
    };
    let token = format!("{message}.{signature}");
    let verified = issuing.verifier.verify(&token);
    assert_eq!(issuing.verifier.verify(&token), verified, "the second time is as the first");
    let Ok(claims) = verified else { return };
    let (header, payload) = (object(header.as_bytes()), object(payload));
    let is = |from: &Map<String, Value>, key: &str, value: &str| from.get(key).and_then(Value::as_str) == Some(value);
    assert!(is(&header, "alg", "EdDSA") && is(&header, "kid", &issuing.kid) && !header.contains_key("crit"));
    assert!(is(&payload, "iss", ISSUER) && is(&payload, "identity_type", "system"));
    assert!(is(&payload, "system_workload", "telemetrywriter"));
    assert_eq!(payload.get("exp").and_then(Value::as_u64), Some(claims.expires_at));
    assert!(claims.expires_at + 30 > NOW && claims.expires_at <= NOW + 86_400 + 60);
    assert_eq!(payload.get("runner_id").and_then(Value::as_str), claims.runner.as_ref().map(|runner| runner.as_str()));
}

fn object(json: &[u8]) -> Map<String, Value> {
    match serde_json::from_slice(json) {
        Ok(Value::Object(object)) => object,
        other => panic!("verified, and no object: {other:?}"),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let payload = format!(
        r#"{{"iss":"{ISSUER}","sub":"system:telemetrywriter","aud":["miren-telemetry"],"exp":{},"nbf":{NOW},"iat":{NOW},"identity_type":"system","system_workload":"telemetrywriter","runner_id":"r7","signals":["traces"]}}"#,
        NOW + 3_600
    );
    let signed = [b"\x01{\"typ\":\"JWT\",\"alg\":\"EdDSA\",\"kid\":\"KID\"}\0", payload.as_bytes()].concat();
    let raw = format!(
        "\0{}.{}.AAAA",
        URL_SAFE_NO_PAD.encode("{\"alg\":\"EdDSA\",\"kid\":\"k\"}"),
        URL_SAFE_NO_PAD.encode(&payload)
    );
    vec![signed, raw.into_bytes()]
}
