//! `telemetry-relay status`: asks a relay that runs how it is.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use telemetry_relay::config::{self, ProcessEnv};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Outcome;
use super::exit::Failure;

/// How long the answer may take, from the first packet to the last.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The longest answer: a relay lists at most 1,000 runners and tenants.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// More runners than this are counted, not listed.
const MAX_LISTED: usize = 50;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The configuration of the relay, to find its [admin] address.
    #[arg(long, value_name = "FILE", conflicts_with = "address")]
    config: Option<PathBuf>,
    /// Its [admin] address.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9464")]
    address: SocketAddr,
    /// Print what the relay says, as it is: the JSON of `/status`.
    #[arg(long)]
    json: bool,
}

/// The part of `/status` that is shown. A relay of another version may say more or less.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    version: String,
    now: u64,
    started_at: u64,
    ready: bool,
    not_ready_because: Vec<String>,
    warnings: Vec<String>,
    listener: Listener,
    certificate: Certificate,
    config: Config,
    stores: Vec<Store>,
    tenants: Vec<Tenant>,
    runners: Vec<Runner>,
    runners_connected: usize,
    refusals: Vec<Refusal>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listener {
    address: String,
    connections: i64,
    requests_running: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Certificate {
    subject: String,
    expires_at: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    loaded_at: u64,
    fault: Option<String>,
    needs_restart: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Store {
    signal: String,
    address: String,
    up: Option<bool>,
    latency_seconds: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Tenant {
    name: String,
    in_flight: u64,
    max_in_flight: u64,
    waiting: u64,
    accepted: u64,
    refused: std::collections::BTreeMap<String, u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Runner {
    id: String,
    remote: String,
    connected_at: u64,
    certificate_expires_at: u64,
    token_expires_at: Option<u64>,
    requests: u64,
    refused: u64,
    last_refusal: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Refusal {
    at: u64,
    runner: String,
    route: String,
    reason: String,
    repeated: u64,
}

pub(super) fn run(options: Options) -> Outcome {
    let address = match &options.config {
        None => options.address,
        Some(path) => config::admin_address(path, &ProcessEnv)?.ok_or_else(|| {
            let remedy = "add [admin] to it and restart the relay";
            Failure::Other(format!("{}: has no [admin], so there is nobody to ask\n    {remedy}", path.display()))
        })?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::other)?;
    let text = runtime.block_on(async {
        timeout(ANSWER_WITHIN, ask(address)).await.unwrap_or_else(|_| {
            Err(Failure::Other(format!("{address} does not answer within {} s", ANSWER_WITHIN.as_secs())))
        })
    })?;
    let status: Status = serde_json::from_slice(&text)
        .map_err(|_| Failure::Other(format!("{address} answers, but not as a relay does; is it another program?")))?;
    if options.json {
        println!("{}", String::from_utf8_lossy(&text));
    } else {
        print(&status);
    }
    if status.ready {
        Ok(())
    } else {
        Err(Failure::Other(format!("the relay is not ready: {}", status.not_ready_because.join("; "))))
    }
}

async fn ask(address: SocketAddr) -> Result<Bytes, Failure> {
    let remedy = "is the relay running, with [admin] at this address? name another one with --address or --config";
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| Failure::Other(format!("nothing listens at {address}: {error}\n    {remedy}")))?;
    let failed = |error: &dyn std::fmt::Display| {
        Failure::Other(format!("{address} answers, but not as a relay does ({error}); is it another program?"))
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    tokio::spawn(connection);
    let request = Request::get("/status").header("host", address.to_string()).body(Empty::<Bytes>::new());
    let response = sender.send_request(request.map_err(|e| failed(&e))?).await.map_err(|error| failed(&error))?;
    if response.status() != StatusCode::OK {
        return Err(failed(&response.status()));
    }
    let body = Limited::new(response.into_body(), MAX_BYTES).collect().await.map_err(|error| failed(&error))?;
    Ok(body.to_bytes())
}

fn print(status: &Status) {
    let state = if status.ready { "ready" } else { "NOT READY" };
    println!("relay        {state}, version {}, up {}", status.version, span(status.now, status.started_at));
    status.not_ready_because.iter().for_each(|obstacle| println!("  obstacle   {obstacle}"));
    status.warnings.iter().for_each(|warning| println!("  warning    {warning}"));
    let Listener { address, connections, requests_running } = &status.listener;
    println!("listener     {address}, {connections} connections, {requests_running} requests running");
    println!(
        "certificate  {}, ends in {}",
        status.certificate.subject,
        left(status.certificate.expires_at, status.now)
    );
    println!("settings     loaded {} ago", span(status.now, status.config.loaded_at));
    if !status.config.needs_restart.is_empty() {
        println!("  restart    needed for {}", status.config.needs_restart.join(", "));
    }
    if let Some(fault) = &status.config.fault {
        println!("  fault      the file on disk is not in force: {fault}");
    }
    for store in &status.stores {
        let up = match store.up {
            Some(true) => "up",
            Some(false) => "DOWN",
            None => "not asked yet",
        };
        let latency = store.latency_seconds.map(|seconds| format!(", {:.1} ms", seconds * 1e3)).unwrap_or_default();
        println!("store        {:<8} {} {up}{latency}", store.signal, store.address);
    }
    for tenant in &status.tenants {
        let refused: u64 = tenant.refused.values().sum();
        println!(
            "tenant       {:<16} in flight {}/{}, waiting {}, accepted {}, refused {refused}",
            tenant.name, tenant.in_flight, tenant.max_in_flight, tenant.waiting, tenant.accepted
        );
    }
    print_runners(status);
    for refusal in status.refusals.iter().take(10) {
        let Refusal { at, runner, route, reason, repeated } = refusal;
        println!("refusal      {} ago: {runner} {route} {reason}, {repeated} more", span(status.now, *at));
    }
}

fn print_runners(status: &Status) {
    println!("runners      {} connected", status.runners_connected);
    if status.runners.is_empty() {
        return;
    }
    println!(
        "  {:<24} {:<24} {:>9} {:>11} {:>9} {:>9} {:>8}  last refusal",
        "runner", "from", "connected", "certificate", "token", "requests", "refused"
    );
    for runner in status.runners.iter().take(MAX_LISTED) {
        println!(
            "  {:<24} {:<24} {:>9} {:>11} {:>9} {:>9} {:>8}  {}",
            runner.id,
            runner.remote,
            span(status.now, runner.connected_at),
            left(runner.certificate_expires_at, status.now),
            runner.token_expires_at.map_or_else(|| "none".to_owned(), |end| left(end, status.now)),
            runner.requests,
            runner.refused,
            runner.last_refusal.as_deref().unwrap_or("none"),
        );
    }
    if status.runners_connected > MAX_LISTED {
        println!(
            "  and {} more; --json lists up to 1,000",
            status.runners_connected - MAX_LISTED.min(status.runners.len())
        );
    }
}

fn left(end: u64, now: u64) -> String {
    if end <= now { "ENDED".to_owned() } else { span(end, now) }
}

fn span(later: u64, earlier: u64) -> String {
    match later.saturating_sub(earlier) {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}
