//! A store without Go: a loopback server that speaks the three write paths as the real stores do, keeps what is written in
//! memory, records every request, and misbehaves on demand.

mod fault;
mod ingest;
mod server;
mod spans;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use telemetry_proto::exposition::{self, Point};
use telemetry_relay::forward::Account;
use tokio::task::JoinHandle;

use super::{LogLine, NO_ACCOUNT, Sample, StoredSpan, jaeger};
use crate::net::{free_address, listen_tcp};

pub use fault::{Cut, Fault};

/// A built-in store. Ends when dropped.
#[derive(Debug)]
pub struct BuiltInStore {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    server: Mutex<Option<JoinHandle<()>>>,
}

/// A request as it reached the store.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// The method.
    pub method: Method,
    /// The path, as sent.
    pub path: String,
    /// The query without the question mark, as sent; empty if there is none.
    pub query: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, as sent. Empty until all of it is there.
    pub body: Bytes,
    /// Whether the whole body arrived.
    pub complete: bool,
}

/// What it remembers.
#[derive(Debug, Default)]
struct State {
    samples: Vec<(Account, Sample)>,
    log_lines: Vec<(Account, LogLine)>,
    spans: Vec<(Account, StoredSpan)>,
    requests: Vec<RecordedRequest>,
    connections: u64,
    /// Each is for one request.
    script: VecDeque<Fault>,
    /// For every request that finds the script empty.
    always: Option<Fault>,
}

impl State {
    /// A request's head is there. Says at which index it is recorded, and how to misbehave.
    fn begin(&mut self, head: &Parts) -> (usize, Option<Fault>) {
        self.requests.push(RecordedRequest {
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            headers: head.headers.clone(),
            body: Bytes::new(),
            complete: false,
        });
        let fault = self.script.pop_front().or_else(|| self.always.clone());
        (self.requests.len() - 1, fault)
    }

    /// The answer to a question for a trace.
    fn trace(&self, id: &str) -> Bytes {
        let spans: Vec<StoredSpan> =
            self.spans.iter().map(|(_, span)| span).filter(|span| span.trace_id == id).cloned().collect();
        // Strings and numbers: there is nothing that can't be written as JSON.
        serde_json::to_vec(&jaeger::Answer::of(&spans)).unwrap_or_default().into()
    }

    /// The whole body is there.
    fn complete(&mut self, index: usize, body: &Bytes) {
        if let Some(request) = self.requests.get_mut(index) {
            request.body = body.clone();
            request.complete = true;
        }
    }
}

impl BuiltInStore {
    /// Starts a store that has nothing.
    ///
    /// # Errors
    /// There is no port for it.
    pub async fn start() -> io::Result<Self> {
        let address = free_address()?;
        let store = Self { address, state: Arc::default(), server: Mutex::new(None) };
        store.restart().await?;
        Ok(store)
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// All samples without an account, in order of arrival.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        self.samples_of(NO_ACCOUNT)
    }

    /// All log lines without an account, in order of arrival.
    #[must_use]
    pub fn log_lines(&self) -> Vec<LogLine> {
        self.log_lines_of(NO_ACCOUNT)
    }

    /// All samples of an account, in order of arrival.
    #[must_use]
    pub fn samples_of(&self, account: Account) -> Vec<Sample> {
        of(account, &self.state.lock().samples)
    }

    /// All log lines of an account, in order of arrival.
    #[must_use]
    pub fn log_lines_of(&self, account: Account) -> Vec<LogLine> {
        of(account, &self.state.lock().log_lines)
    }

    /// All spans of an account, in order of arrival.
    #[must_use]
    pub fn spans_of(&self, account: Account) -> Vec<StoredSpan> {
        of(account, &self.state.lock().spans)
    }

    /// All spans, in order of arrival.
    #[must_use]
    pub fn spans(&self) -> Vec<StoredSpan> {
        self.state.lock().spans.iter().map(|(_, span)| span.clone()).collect()
    }

    /// Every request since the start, whole or not, in order of arrival.
    #[must_use]
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.state.lock().requests.clone()
    }

    /// How many connections it has accepted since the start.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.state.lock().connections
    }

    /// Misbehaves at the next requests, one fault each, then behaves.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state.lock().script.extend(faults);
    }

    /// Misbehaves at every request until this is called with `None`.
    pub fn always(&self, fault: Option<Fault>) {
        self.state.lock().always = fault;
    }

    /// A page of metrics about itself, as exposition text.
    #[must_use]
    pub fn own_metrics(&self) -> Bytes {
        own_metrics(&self.state.lock())
    }

    /// Closes the port and every connection. Data and records stay.
    pub async fn kill(&self) {
        let server = self.server.lock().take();
        if let Some(server) = server {
            server.abort();
            // Aborted on purpose.
            let _ = server.await;
        }
    }

    /// Listens again on the same port.
    ///
    /// # Errors
    /// The port is taken.
    pub async fn restart(&self) -> io::Result<()> {
        self.kill().await;
        let listener = listen_tcp(self.address).await?;
        *self.server.lock() = Some(tokio::spawn(server::serve(listener, Arc::clone(&self.state))));
        Ok(())
    }
}

impl Drop for BuiltInStore {
    fn drop(&mut self) {
        if let Some(server) = self.server.lock().take() {
            server.abort();
        }
    }
}

fn of<T: Clone>(account: Account, stored: &[(Account, T)]) -> Vec<T> {
    stored.iter().filter(|(of, _)| *of == account).map(|(_, item)| item.clone()).collect()
}

fn own_metrics(state: &State) -> Bytes {
    let mut page = Vec::new();
    for (name, count) in [
        ("builtin_store_connections_total", state.connections),
        ("builtin_store_requests_total", state.requests.len() as u64),
        ("builtin_store_samples", state.samples.len() as u64),
        ("builtin_store_log_lines", state.log_lines.len() as u64),
        ("builtin_store_spans", state.spans.len() as u64),
    ] {
        #[expect(clippy::cast_precision_loss, reason = "no count of ours nears 2^53")]
        exposition::write_point(&mut page, &Point::new(name, count as f64));
    }
    page.into()
}
