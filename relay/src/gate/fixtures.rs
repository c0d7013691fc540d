//! What the tests of the gate and of the issuer share: a clock to set, a peer, and a forger of tokens.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::EncodingKey;
use serde_json::{Value, json};
use telemetry_certs::{IdentitySource, PeerIdentity};
use telemetry_proto::claims::Expectations;
use telemetry_proto::{Clock, RunnerId};

use super::{Author, JwtVerifier, KeySet, Peer, SignatureAlgorithm};
use crate::issuer::SigningKey;

pub(crate) const NOW: u64 = 1_900_000_000;
pub(crate) const ISSUER: &str = "https://coordinator.example";

/// A clock that stands until it is set. In milliseconds since 1970.
pub(crate) struct TestClock(AtomicU64);

impl TestClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(NOW * 1_000)))
    }

    pub(crate) fn set(&self, unix_seconds: u64) {
        self.0.store(unix_seconds * 1_000, Ordering::SeqCst);
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_millis().try_into().unwrap(), Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}

pub(crate) fn runner(id: &str) -> RunnerId {
    RunnerId::new(id).unwrap()
}

/// A runner, as the author of a batch.
pub(crate) fn author(id: &str) -> Author {
    runner(id).into()
}

/// The peer of a runner whose certificate ends in an hour.
pub(crate) fn peer(id: &str) -> Peer {
    let now = UNIX_EPOCH + Duration::from_secs(NOW);
    let identity = PeerIdentity {
        runner: runner(id),
        source: IdentitySource::SanUri,
        organization: None,
        not_before: now - Duration::from_secs(3_600),
        not_after: now + Duration::from_secs(3_600),
        serial: "01".to_owned(),
        fingerprint: [0; 32],
    };
    Peer::new(identity, SocketAddr::from(([127, 0, 0, 1], 4433)))
}

/// Good claims of the runner `r7`.
pub(crate) fn good_claims() -> Value {
    json!({
        "iss": ISSUER, "sub": "system:telemetrywriter", "aud": ["miren-telemetry"],
        "exp": NOW + 3_600, "nbf": NOW, "iat": NOW, "identity_type": "system",
        "system_workload": "telemetrywriter", "runner_id": "r7",
    })
}

/// Signs whatever it is told to, with the key of one algorithm.
pub(crate) struct Forger {
    pub(crate) key: SigningKey,
    pub(crate) private: EncodingKey,
}

impl Forger {
    pub(crate) fn new(algorithm: SignatureAlgorithm) -> Self {
        let key = SigningKey::generate(algorithm).unwrap();
        let pem = key.to_pem().unwrap();
        let private = match algorithm {
            SignatureAlgorithm::Rs256 => EncodingKey::from_rsa_pem(pem.as_bytes()),
            SignatureAlgorithm::Es256 => EncodingKey::from_ec_pem(pem.as_bytes()),
            SignatureAlgorithm::EdDsa => EncodingKey::from_ed_pem(pem.as_bytes()),
        };
        Self { key, private: private.unwrap() }
    }

    pub(crate) fn keys(&self) -> KeySet {
        KeySet::of(self.key.kid(), self.key.public().clone()).unwrap()
    }

    pub(crate) fn verifier(&self, clock: Arc<dyn Clock>) -> JwtVerifier {
        JwtVerifier::new(self.keys(), Expectations::new(ISSUER), clock)
    }

    pub(crate) fn header(&self) -> Value {
        json!({ "typ": "JWT", "alg": self.key.algorithm().as_str(), "kid": self.key.kid() })
    }

    /// A good token after `edit` had its way with the claims.
    pub(crate) fn claims(&self, edit: impl FnOnce(&mut Value)) -> String {
        let mut claims = good_claims();
        edit(&mut claims);
        self.raw(self.header().to_string(), claims.to_string())
    }

    /// A good token after `edit` had its way with the header.
    pub(crate) fn header_with(&self, edit: impl FnOnce(&mut Value)) -> String {
        let mut header = self.header();
        edit(&mut header);
        self.raw(header.to_string(), good_claims().to_string())
    }

    /// A correctly signed token of exactly these bytes.
    pub(crate) fn raw(&self, header: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> String {
        sign(header, payload, &self.private, self.key.algorithm().into())
    }
}

pub(crate) fn sign(
    header: impl AsRef<[u8]>,
    payload: impl AsRef<[u8]>,
    key: &EncodingKey,
    algorithm: jsonwebtoken::Algorithm,
) -> String {
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), key, algorithm).unwrap();
    format!("{message}.{signature}")
}
