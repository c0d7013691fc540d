//! A runner.

use std::net::SocketAddr;
use std::sync::Arc;

use telemetry_certs::Credentials;
use telemetry_proto::RunnerId;
use telemetry_runner_client::{Client, ClientBuilder, LateTokenSource};

use super::{Cluster, RigError};

/// A runner: its identity, and a client that nothing is armed for yet.
pub struct RigRunner {
    /// Its ID.
    pub id: RunnerId,
    /// Its certificate and key.
    pub credentials: Credentials,
    /// Where its client gets tokens from.
    pub tokens: LateTokenSource,
    /// What it writes to. It does not connect before it has something to send.
    pub client: Client,
}

impl RigRunner {
    pub(super) fn new(
        number: usize,
        cluster: &Cluster,
        relay: SocketAddr,
        adjust: &dyn Fn(ClientBuilder) -> ClientBuilder,
    ) -> Result<Self, RigError> {
        let setup = |error: &dyn std::fmt::Display| RigError::Setup(error.to_string());
        let id = RunnerId::new(&format!("r{number}")).map_err(|e| setup(&e))?;
        let credentials = cluster.issue_runner(&id)?;
        let tokens = LateTokenSource::new();
        let builder = Client::builder()
            .coordinator(format!("localhost:{}", relay.port()))
            .identity(credentials.clone(), cluster.roots().clone())
            .token_source(Arc::new(tokens.clone()));
        let client = adjust(builder).build().map_err(|e| setup(&e))?;
        Ok(Self { id, credentials, tokens, client })
    }

    /// Lets it ask the coordinator for tokens.
    pub fn arm(&self) {
        self.tokens.arm(self.client.issuer());
    }
}
