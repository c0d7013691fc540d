//! A running `runner-agent`, and whoever feeds it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use parking_lot::Mutex;
use serde::Deserialize;
use telemetry_proto::Signal;
use tokio::sync::{Notify, RwLock};
use tokio::time::sleep;

use super::ChaosError;
use super::ledger::Ledger;
use super::lines::{self, Shape};
use super::timeline::{End, Lives};
use super::witness::Run;
use crate::http::{HttpClient, HttpError};
use crate::net::free_address;
use crate::process::{Process, Usage};
use crate::program::Program;

/// How long a feeder waits after it was told to come back.
const COME_BACK: Duration = Duration::from_millis(100);
/// How long a feeder waits for an agent that is not there.
const NOT_THERE: Duration = Duration::from_millis(50);

/// What an agent is like.
pub(super) struct AgentPlan {
    pub(super) name: &'static str,
    /// Its folder, with its certificates.
    pub(super) folder: PathBuf,
    pub(super) spool: PathBuf,
    pub(super) coordinator: SocketAddr,
    /// Where its tokens are; without this it asks the coordinator.
    pub(super) token_file: Option<PathBuf>,
    pub(super) spool_bytes: u64,
    /// Whether the oldest goes for the newest when the spool is full. Otherwise whoever writes is told.
    pub(super) drops_oldest: bool,
    pub(super) shape: Shape,
}

/// An agent's program. Killed when dropped.
pub(super) struct Agent {
    pub(super) name: &'static str,
    pub(super) lives: Lives,
    pub(super) metrics: Ledger,
    pub(super) logs: Ledger,
    process: Process,
    http: HttpClient,
    shape: Shape,
    /// Whether it must be asked before it is killed, since it drops.
    drops_oldest: bool,
    /// One fault at a time.
    turn: tokio::sync::Mutex<()>,
    /// A request is about to be made.
    pub(super) posting: Notify,
    /// Held by a feeder while it hands over.
    gate: RwLock<()>,
    counts: Mutex<Counts>,
    /// Answers that no feeder expects.
    surprises: Mutex<Vec<String>>,
}

/// What was dropped, by signal and reason.
type Dropped = BTreeMap<Signal, BTreeMap<String, u64>>;

#[derive(Default)]
struct Counts {
    former_lives: Dropped,
    this_life: Dropped,
    waiting: BTreeMap<Signal, u64>,
}

/// The part of `/status` that is read here.
#[derive(Deserialize)]
struct Status {
    signals: BTreeMap<Signal, SignalStatus>,
}

#[derive(Deserialize)]
struct SignalStatus {
    waiting: u64,
    dropped: BTreeMap<String, u64>,
}

impl Agent {
    pub(super) async fn start(plan: AgentPlan) -> Result<Self, ChaosError> {
        let program = Program::RunnerAgent.find().map_err(|error| ChaosError::Setup(error.to_string()))?;
        let address = free_address()?;
        let config = plan.folder.join("agent.toml");
        std::fs::write(&config, config_of(&plan, address))?;
        let arguments = vec!["run".into(), "--config".into(), config.into()];
        let process = Process::new(program, arguments, plan.folder.join("log.txt"))
            .env("RUST_LOG", "info")
            .env("MALLOC_ARENA_MAX", "2");
        let agent = Self {
            name: plan.name,
            lives: Lives::new(),
            metrics: Ledger::default(),
            logs: Ledger::default(),
            process,
            http: HttpClient::new(address),
            shape: plan.shape,
            drops_oldest: plan.drops_oldest,
            turn: tokio::sync::Mutex::new(()),
            posting: Notify::new(),
            gate: RwLock::new(()),
            counts: Mutex::default(),
            surprises: Mutex::default(),
        };
        agent.restart().await?;
        Ok(agent)
    }

    /// Ends it as a crash would, keeps it away, and starts it again.
    pub(super) async fn crash(&self, away: Duration) -> Result<(), ChaosError> {
        let _turn = self.turn.lock().await;
        // What an agent drops, it counts in memory. One that drops is asked between two requests, so that nothing it has counted is
        // forgotten with it.
        let _gate = if self.drops_oldest { Some(self.gate.write().await) } else { None };
        if self.drops_oldest {
            self.ask_until_steady().await;
        }
        self.process.kill().await?;
        self.begin_again(away, End::Killed).await
    }

    /// Ends it in good order, keeps it away, and starts it again.
    pub(super) async fn stop(&self, away: Duration) -> Result<(), ChaosError> {
        let _turn = self.turn.lock().await;
        let _gate = if self.drops_oldest { Some(self.gate.write().await) } else { None };
        if self.drops_oldest {
            self.ask_until_steady().await;
        }
        self.process.stop().await?;
        self.begin_again(away, End::Stopped).await
    }

    async fn begin_again(&self, away: Duration, end: End) -> Result<(), ChaosError> {
        let died = Instant::now();
        {
            let mut counts = self.counts.lock();
            let last = std::mem::take(&mut counts.this_life);
            add(&mut counts.former_lives, &last);
        }
        sleep(away).await;
        self.lives.next(died, end);
        self.restart().await
    }

    async fn restart(&self) -> Result<(), ChaosError> {
        let ready = async || match self.http.get("/healthz").await {
            Ok((StatusCode::OK, _)) => Ok(()),
            Ok((status, _)) => Err(status.to_string()),
            Err(error) => Err(error.to_string()),
        };
        Ok(self.process.start(ready).await?)
    }

    /// Ends it for good.
    pub(super) async fn end(&self) -> Result<(), ChaosError> {
        Ok(self.process.stop().await?)
    }

    /// Looks at what waits and what was dropped. Returns how many items wait, if it answers.
    pub(super) async fn ask(&self) -> Option<u64> {
        let (_, body) = self.http.get("/status").await.ok()?;
        let status: Status = serde_json::from_slice(&body).ok()?;
        let waiting = status.signals.values().map(|signal| signal.waiting).sum();
        let mut counts = self.counts.lock();
        counts.waiting = status.signals.iter().map(|(signal, status)| (*signal, status.waiting)).collect();
        counts.this_life = status.signals.into_iter().map(|(signal, status)| (signal, status.dropped)).collect();
        Some(waiting)
    }

    async fn ask_until_steady(&self) {
        const LOOKS: usize = 20;
        let mut before = None;
        for _ in 0..LOOKS {
            self.ask().await;
            let now = Some(self.counts.lock().this_life.clone());
            if now == before {
                return;
            }
            before = now;
            sleep(COME_BACK).await;
        }
    }

    /// How many items of a signal waited when it was asked last.
    pub(super) fn waiting(&self, signal: Signal) -> u64 {
        self.counts.lock().waiting.get(&signal).copied().unwrap_or_default()
    }

    /// What it dropped of a signal, by reason.
    pub(super) fn dropped(&self, signal: Signal) -> BTreeMap<String, u64> {
        let counts = self.counts.lock();
        let mut all = counts.former_lives.clone();
        add(&mut all, &counts.this_life);
        all.remove(&signal).unwrap_or_default()
    }

    /// Answers that it should not have given.
    pub(super) fn surprises(&self) -> Vec<String> {
        self.surprises.lock().clone()
    }

    /// What it holds of this machine.
    pub(super) fn usage(&self) -> std::io::Result<Usage> {
        self.process.usage()
    }

    pub(super) fn log(&self) -> std::io::Result<String> {
        self.process.log()
    }

    /// Feeds it one signal until told to stop. Each request is handed over again until it is answered with 204; where there was no
    /// answer, under the next attempt.
    pub(super) async fn feed(self: Arc<Self>, signal: Signal, stop: Arc<AtomicBool>) {
        let ledger = if signal == Signal::Metrics { &self.metrics } else { &self.logs };
        let start = std::time::SystemTime::now();
        let mut first = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut run = Run { attempt: 0, first, count: self.shape.items };
            let mut was_taken = false;
            while !was_taken && !stop.load(Ordering::Relaxed) {
                let body = lines::body(signal, self.name, run, start, self.shape);
                let answer = {
                    let _gate = self.gate.read().await;
                    self.posting.notify_waiters();
                    self.http.post(path(signal), Some(signal.content_type()), body).await
                };
                match answer {
                    Ok((StatusCode::NO_CONTENT, _)) => {
                        ledger.note(run, Some(Instant::now()));
                        was_taken = true;
                    }
                    // It says that it has not taken it.
                    Ok((StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, _)) => sleep(COME_BACK).await,
                    Ok((status, body)) => {
                        let text = String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned();
                        self.surprises.lock().push(format!("{}: {signal}: {status} {text}", self.name));
                        sleep(COME_BACK).await;
                    }
                    Err(HttpError::NoAnswer(_, error)) if error.is_connect() => sleep(NOT_THERE).await,
                    Err(_) => {
                        ledger.note(run, None);
                        run.attempt += 1;
                        sleep(NOT_THERE).await;
                    }
                }
            }
            first += self.shape.items;
            sleep(self.shape.pause).await;
        }
    }
}

fn add(sum: &mut Dropped, more: &Dropped) {
    for (signal, reasons) in more {
        for (reason, items) in reasons {
            *sum.entry(*signal).or_default().entry(reason.clone()).or_default() += items;
        }
    }
}

/// The store's own paths.
fn path(signal: Signal) -> &'static str {
    signal.store_path()
}

fn config_of(plan: &AgentPlan, address: SocketAddr) -> String {
    let text = |path: &Path| toml::Value::from(path.display().to_string()).to_string();
    let token = plan.token_file.as_deref().map(|file| format!("[token]\nfile = {}\n", text(file))).unwrap_or_default();
    let when_full = if plan.drops_oldest { "drop-oldest" } else { "refuse" };
    format!(
        "coordinators = [\"{}\"]\n\
         [identity]\ncertificate = \"runner.pem\"\nkey = \"runner-key.pem\"\nca = \"ca.pem\"\n\
         {token}\
         [spool]\nfolder = {}\nmax_bytes = {}\nwhen_full = \"{when_full}\"\n\
         [listen]\naddress = \"{address}\"\ndrain_seconds = 1\n",
        plan.coordinator,
        text(&plan.spool),
        plan.spool_bytes,
    )
}
