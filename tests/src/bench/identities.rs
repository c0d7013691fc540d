//! Who writes: a cluster, keys of every kind, and runners with certificates and tokens.

use std::sync::Arc;

use http::HeaderValue;
use rustls::ClientConfig;
use telemetry_certs::{ClientTls, Credentials};
use telemetry_proto::RunnerId;
use telemetry_relay::gate::{KeySet, SignatureAlgorithm};
use telemetry_relay::issuer::SigningKey;

use crate::rig::{Cluster, ISSUER, RigError, TokenBuilder};

/// A cluster whose tokens are signed by any of three keys.
pub(super) struct Identities {
    cluster: Cluster,
    keys: Vec<SigningKey>,
    jwks: String,
}

/// One who writes, with a token that is read once.
#[derive(Debug, Clone)]
pub(super) struct Runner {
    pub(super) id: RunnerId,
    pub(super) credentials: Credentials,
    pub(super) token: HeaderValue,
}

impl Identities {
    pub(super) fn new() -> Result<Self, RigError> {
        let algorithms = [SignatureAlgorithm::Rs256, SignatureAlgorithm::Es256, SignatureAlgorithm::EdDsa];
        let keys: Result<Vec<_>, _> = algorithms.into_iter().map(SigningKey::generate).collect();
        let keys = keys.map_err(setup)?;
        let mut public = KeySet::default();
        for key in &keys {
            let more = KeySet::of(key.kid(), key.public().clone()).map_err(setup)?;
            public = public.merge(&more).map_err(setup)?;
        }
        Ok(Self { cluster: Cluster::new("bench")?, keys, jwks: public.to_jwks() })
    }

    pub(super) const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// All public keys.
    pub(super) fn jwks(&self) -> &str {
        &self.jwks
    }

    /// The private key of this kind.
    pub(super) fn key(&self, algorithm: SignatureAlgorithm) -> Result<&SigningKey, RigError> {
        let found = self.keys.iter().find(|key| key.algorithm() == algorithm);
        found.ok_or_else(|| setup("there is no key of this kind"))
    }

    /// `count` runners, each with a certificate and a token of its own.
    pub(super) fn runners(&self, count: usize, algorithm: SignatureAlgorithm) -> Result<Vec<Runner>, RigError> {
        let key = self.key(algorithm)?;
        let one = |number| {
            let id = RunnerId::new(&format!("bench-{number:05}")).map_err(setup)?;
            let token = HeaderValue::try_from(TokenBuilder::good(ISSUER, &id).sign(key)).map_err(setup)?;
            Ok(Runner { credentials: self.cluster.issue_runner(&id)?, token, id })
        };
        (0..count).map(one).collect()
    }

    /// The TLS settings of a runner.
    pub(super) fn tls(&self, runner: &Runner, alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, RigError> {
        let tls = ClientTls { credentials: &runner.credentials, server_roots: self.cluster.roots(), alpn };
        Ok(Arc::new(telemetry_certs::client_config(tls)?))
    }
}

fn setup(error: impl std::fmt::Display) -> RigError {
    RigError::Setup(error.to_string())
}
