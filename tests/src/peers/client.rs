//! A client of another stack.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use telemetry_certs::Issued;
use telemetry_proto::{Signal, header};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::process::{Flag, Output, PeerProcess, start};
use super::{PeerError, Side, Stack};
use crate::outcome;
use crate::raw::RawResponse;
use crate::tcp::Http;

/// How long a request may take. quic-go notices a lost connection only by its idle timeout of 30 s.
const TIMEOUT: Duration = Duration::from_secs(40);

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Outcome>>>>;

/// A client that runs. Killed when dropped.
pub struct PeerClient {
    input: tokio::sync::Mutex<ChildStdin>,
    waiting: Waiting,
    next_id: AtomicU64,
    reader: JoinHandle<()>,
    _child: Child,
    _folder: TempDir,
}

/// A request for a peer to send.
#[derive(Debug, Clone)]
#[must_use]
pub struct PeerRequest {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl PeerRequest {
    /// A request without headers and body.
    pub fn new(method: Method, path: &str) -> Self {
        Self { method, path: path.to_owned(), headers: Vec::new(), body: Vec::new() }
    }

    /// A write as the Go runners' writers make it: metrics without a content type, logs with theirs.
    pub fn write(signal: Signal, token: &str, body: impl Into<Vec<u8>>) -> Self {
        let mut request = Self::new(Method::POST, signal.write_path()).header(header::WORKLOAD_TOKEN, token);
        if signal == Signal::Logs {
            request = request.header(http::header::CONTENT_TYPE, "application/x-ndjson");
        }
        request.body = body.into();
        request
    }

    /// With this header too.
    pub fn header(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.push((name.as_str().to_owned(), value.to_owned()));
        self
    }
}

#[derive(Serialize)]
struct Order<'a> {
    id: u64,
    method: &'a str,
    path: &'a str,
    headers: &'a [(String, String)],
    body: String,
}

#[derive(Deserialize)]
struct Outcome {
    id: u64,
    #[serde(default)]
    status: u16,
    #[serde(default)]
    headers: Vec<(String, String)>,
    #[serde(default)]
    body: String,
    error: Option<String>,
}

impl PeerClient {
    /// Starts a client that will connect to `relay` as `identity`, and trusts `ca_pem`.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(stack: Stack, relay: SocketAddr, ca_pem: &str, identity: &Issued) -> Result<Self, PeerError> {
        Self::start_with(stack, relay, ca_pem, identity, Vec::new())
    }

    /// Starts a client that will connect over TCP, with this version of HTTP.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start_over_tcp(
        stack: Stack,
        http: Http,
        relay: SocketAddr,
        ca_pem: &str,
        identity: &Issued,
    ) -> Result<Self, PeerError> {
        let version = match http {
            Http::One => "1.1",
            Http::Two => "2",
        };
        Self::start_with(stack, relay, ca_pem, identity, vec![("-http", Flag::Text(version.to_owned()))])
    }

    fn start_with(
        stack: Stack,
        relay: SocketAddr,
        ca_pem: &str,
        identity: &Issued,
        more: Vec<(&str, Flag)>,
    ) -> Result<Self, PeerError> {
        let process = start(stack, Side::Client, &relay.to_string(), ca_pem, identity, more)?;
        let PeerProcess { child, input, output, folder } = process;
        let waiting = Waiting::default();
        let reader = tokio::spawn(read(output, Arc::clone(&waiting)));
        let (input, next_id) = (tokio::sync::Mutex::new(input), AtomicU64::new(1));
        Ok(Self { input, waiting, next_id, reader, _child: child, _folder: folder })
    }

    /// Has it send a request, beside those that are under way, and waits for the response.
    ///
    /// # Errors
    /// There is no response.
    pub async fn send(&self, request: PeerRequest) -> Result<RawResponse, PeerError> {
        let answer = self.exchange(request).await;
        // What a stack of others makes of our relay is what the document of outcomes is about.
        outcome::saw(answer.as_ref().map_or_else(ToString::to_string, ToString::to_string));
        answer
    }

    async fn exchange(&self, request: PeerRequest) -> Result<RawResponse, PeerError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let order = Order {
            id,
            method: request.method.as_str(),
            path: &request.path,
            headers: &request.headers,
            body: BASE64_STANDARD.encode(&request.body),
        };
        let mut line = serde_json::to_vec(&order).map_err(|error| PeerError::Line(error.to_string()))?;
        line.push(b'\n');
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().insert(id, sender);
        self.input.lock().await.write_all(&line).await?;
        match tokio::time::timeout(TIMEOUT, receiver).await {
            Ok(Ok(outcome)) => outcome.into_response(),
            Ok(Err(_)) => Err(PeerError::Ended),
            Err(_) => Err(PeerError::Timeout),
        }
    }
}

impl Drop for PeerClient {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read(mut output: Output, waiting: Waiting) {
    while let Ok(outcome) = output.next::<Outcome>().await {
        let sender = waiting.lock().remove(&outcome.id);
        if let Some(sender) = sender {
            let _ = sender.send(outcome);
        }
    }
    // Whoever still waits learns that nothing will come.
    waiting.lock().clear();
}

impl Outcome {
    fn into_response(self) -> Result<RawResponse, PeerError> {
        if let Some(error) = self.error {
            return Err(PeerError::NoResponse(error));
        }
        let unreadable = |what: &dyn std::fmt::Display| PeerError::Line(what.to_string());
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| unreadable(&error))?;
            headers.append(name, HeaderValue::from_str(value).map_err(|error| unreadable(&error))?);
        }
        let body = BASE64_STANDARD.decode(&self.body).map_err(|error| unreadable(&error))?;
        Ok(RawResponse {
            status: StatusCode::from_u16(self.status).map_err(|error| unreadable(&error))?,
            headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    }
}
