//! Workload tokens made by hand, good and bad.

#![expect(clippy::expect_used, reason = "test support")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use telemetry_proto::RunnerId;
use telemetry_proto::claims::{AUDIENCE, IDENTITY_TYPE_SYSTEM, RUNNER_ID_CLAIM, WORKLOAD};
use telemetry_relay::issuer::SigningKey;

/// A token of the right form: every rule of the contract holds until an edit breaks it.
#[derive(Debug, Clone)]
#[must_use]
pub struct TokenBuilder {
    claims: Value,
    kid: Option<String>,
}

impl TokenBuilder {
    /// A good token for `runner`, from `issuer`, valid since a minute ago for an hour.
    pub fn good(issuer: &str, runner: &RunnerId) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let claims = json!({
            "iss": issuer, "sub": "system:telemetrywriter", "aud": [AUDIENCE],
            "exp": now + 3_600, "nbf": now - 60, "iat": now - 60,
            "identity_type": IDENTITY_TYPE_SYSTEM, "system_workload": WORKLOAD, RUNNER_ID_CLAIM: runner,
        });
        Self { claims, kid: None }
    }

    /// With another claim.
    pub fn claim(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.claims[name] = value.into();
        self
    }

    /// Without a claim.
    pub fn without(mut self, name: &str) -> Self {
        if let Some(claims) = self.claims.as_object_mut() {
            claims.remove(name);
        }
        self
    }

    /// Moves all three times by this many seconds.
    pub fn shifted(mut self, seconds: i64) -> Self {
        for name in ["exp", "nbf", "iat"] {
            self.claims[name] = self.claims[name].as_i64().map(|time| time + seconds).into();
        }
        self
    }

    /// Names another key than the one that signs.
    pub fn kid(mut self, kid: &str) -> Self {
        self.kid = Some(kid.to_owned());
        self
    }

    /// Signs it.
    ///
    /// # Panics
    /// When the key can't sign.
    #[must_use]
    pub fn sign(&self, key: &SigningKey) -> String {
        let algorithm = Algorithm::from(key.algorithm());
        let pem = key.to_pem().expect("a key that can be written");
        let encoding_key = match algorithm {
            Algorithm::EdDSA => EncodingKey::from_ed_pem(pem.as_bytes()),
            Algorithm::ES256 => EncodingKey::from_ec_pem(pem.as_bytes()),
            _ => EncodingKey::from_rsa_pem(pem.as_bytes()),
        };
        let kid = Some(self.kid.clone().unwrap_or_else(|| key.kid().to_owned()));
        let header = Header { kid, ..Header::new(algorithm) };
        jsonwebtoken::encode(&header, &self.claims, &encoding_key.expect("a key that can be read"))
            .expect("a signature")
    }
}
