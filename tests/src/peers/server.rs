//! A coordinator on another stack, which forwards to the stores.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use telemetry_certs::Issued;
use tempfile::TempDir;
use tokio::process::{Child, ChildStdin};
use tokio::task::JoinHandle;

use super::process::{Flag, Output, PeerProcess, start};
use super::{PeerError, Side, Stack};

const READY_WITHIN: Duration = Duration::from_secs(20);

/// A server that runs. Killed when dropped.
pub struct PeerServer {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
    reader: JoinHandle<()>,
    _input: ChildStdin,
    _child: Child,
    _folder: TempDir,
}

/// What a server needs to know.
#[derive(Debug, Clone, Copy)]
pub struct ServerParts<'a> {
    /// Where it listens.
    pub address: SocketAddr,
    /// The CA of the clients' certificates, PEM.
    pub ca_pem: &'a str,
    /// Its certificate and key.
    pub identity: &'a Issued,
    /// The public keys of tokens, a JWKS document with Ed25519 keys. aioquic's server looks at no token.
    pub jwks: &'a str,
    /// The issuer of tokens.
    pub issuer: &'a str,
    /// Where the stores are.
    pub stores: SocketAddr,
}

/// A request as it reached the server.
#[derive(Debug, Clone, Deserialize)]
pub struct SeenRequest {
    /// Its path.
    pub path: String,
    /// The common name of the client's certificate; empty without one.
    pub runner: String,
    /// Its headers but for the token, with the names as the server shows them.
    pub headers: HashMap<String, Vec<String>>,
    /// The bytes of its body that were read.
    pub bytes: u64,
    /// What was answered.
    pub status: u16,
}

#[derive(Deserialize)]
struct Ready {
    listening: String,
}

impl PeerServer {
    /// Starts a server and waits until it listens.
    ///
    /// # Errors
    /// It can't be started, or does not listen in time.
    pub async fn start(stack: Stack, parts: ServerParts<'_>) -> Result<Self, PeerError> {
        let store = Flag::Text(format!("http://{}", parts.stores));
        let mut flags = vec![("-metrics", store), ("-logs", Flag::Text(format!("http://{}", parts.stores)))];
        if stack == Stack::Go {
            flags.push(("-jwks", Flag::File(parts.jwks.to_owned())));
            flags.push(("-issuer", Flag::Text(parts.issuer.to_owned())));
        }
        let process = start(stack, Side::Server, &parts.address.to_string(), parts.ca_pem, parts.identity, flags)?;
        let PeerProcess { child, input, mut output, folder } = process;
        let ready = tokio::time::timeout(READY_WITHIN, output.next::<Ready>());
        let ready = ready.await.map_err(|_| PeerError::Timeout)??;
        let address = ready.listening.parse().map_err(|_| PeerError::Line(ready.listening))?;
        let seen = Arc::default();
        let reader = tokio::spawn(read(output, Arc::clone(&seen)));
        Ok(Self { address, seen, reader, _input: input, _child: child, _folder: folder })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every request that it has answered, in order.
    #[must_use]
    pub fn seen(&self) -> Vec<SeenRequest> {
        self.seen.lock().clone()
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read(mut output: Output, seen: Arc<Mutex<Vec<SeenRequest>>>) {
    while let Ok(request) = output.next().await {
        seen.lock().push(request);
    }
}
