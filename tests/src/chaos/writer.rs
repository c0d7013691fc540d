//! An embedded runner: a client in this process, and what it writes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use telemetry_certs::{Credentials, Roots};
use telemetry_proto::Signal;
use telemetry_runner_client::spool::SpoolConfig;
use telemetry_runner_client::{BatchLimits, Client, DropReason, LateTokenSource, SignalSettings, TokenIssuer};
use tokio::sync::RwLock;
use tokio::time::sleep;

use super::ChaosError;
use super::ledger::Ledger;
use super::lines::{self, Shape};
use super::timeline::{End, Lives};
use super::witness::Run;

/// Batches are small and young here, so that there are many.
const MAX_BATCH_ITEMS: u64 = 100;
const MAX_BATCH_BYTES: usize = 16 * 1024;
const MAX_BATCH_AGE: Duration = Duration::from_millis(200);

/// What a writer is like.
pub(super) struct WriterPlan {
    pub(super) name: &'static str,
    pub(super) coordinator: String,
    pub(super) credentials: Credentials,
    pub(super) roots: Roots,
    /// Who mints its tokens; without this it asks the coordinator.
    pub(super) issuer: Option<Arc<dyn TokenIssuer>>,
    pub(super) spool: Option<PathBuf>,
    /// Memory for what waits, each signal.
    pub(super) memory: usize,
    pub(super) shape: Shape,
}

/// A writer.
pub(super) struct Writer {
    pub(super) name: &'static str,
    pub(super) lives: Lives,
    pub(super) metrics: Ledger,
    pub(super) logs: Ledger,
    plan: WriterPlan,
    /// Taken away while it is built again.
    client: RwLock<Client>,
    former: Mutex<BTreeMap<Signal, BTreeMap<String, u64>>>,
}

impl Writer {
    pub(super) fn start(plan: WriterPlan) -> Result<Self, ChaosError> {
        Ok(Self {
            name: plan.name,
            lives: Lives::new(),
            metrics: Ledger::default(),
            logs: Ledger::default(),
            client: RwLock::new(build(&plan)?),
            plan,
            former: Mutex::default(),
        })
    }

    /// Closes it at once, and builds it again on what its spool kept.
    pub(super) async fn restart(&self) -> Result<(), ChaosError> {
        let mut client = self.client.write().await;
        client.close(Duration::ZERO).await;
        self.note_dropped(&client);
        self.lives.next(Instant::now(), End::Stopped);
        *client = build(&self.plan)?;
        Ok(())
    }

    fn note_dropped(&self, client: &Client) {
        let mut former = self.former.lock();
        for signal in [Signal::Metrics, Signal::Logs] {
            add(former.entry(signal).or_default(), client, signal);
        }
    }

    /// How many items of a signal wait.
    pub(super) async fn waiting(&self, signal: Signal) -> u64 {
        self.client.read().await.tally(signal).waiting
    }

    /// What it dropped of a signal, by reason.
    pub(super) async fn dropped(&self, signal: Signal) -> BTreeMap<String, u64> {
        let client = self.client.read().await;
        let mut dropped = self.former.lock().get(&signal).cloned().unwrap_or_default();
        add(&mut dropped, &client, signal);
        dropped
    }

    /// Ends it for good.
    pub(super) async fn end(&self) {
        self.client.read().await.close(Duration::ZERO).await;
    }

    /// Writes both signals until told to stop.
    pub(super) async fn write(self: Arc<Self>, stop: Arc<AtomicBool>) {
        let start = SystemTime::now();
        let mut first = 0;
        while !stop.load(Ordering::Relaxed) {
            {
                let client = self.client.read().await;
                for number in first..first + self.plan.shape.items {
                    // What is refused is counted by the client as written and dropped.
                    let _ = client.metrics().write(lines::point(self.name, 0, number, start));
                    let _ = client.logs().write(&lines::record(self.name, number, self.plan.shape.ballast));
                }
            }
            let run = Run { attempt: 0, first, count: self.plan.shape.items };
            for ledger in [&self.metrics, &self.logs] {
                ledger.note(run, Some(Instant::now()));
            }
            first += self.plan.shape.items;
            sleep(self.plan.shape.pause).await;
        }
    }
}

fn add(sum: &mut BTreeMap<String, u64>, client: &Client, signal: Signal) {
    let tally = client.tally(signal);
    for reason in DropReason::ALL.into_iter().filter(|reason| tally.dropped(*reason) > 0) {
        *sum.entry(reason.to_string()).or_default() += tally.dropped(reason);
    }
}

fn build(plan: &WriterPlan) -> Result<Client, ChaosError> {
    let batch = BatchLimits { max_items: MAX_BATCH_ITEMS, max_bytes: MAX_BATCH_BYTES, max_age: MAX_BATCH_AGE };
    let tokens = LateTokenSource::new();
    let mut builder = Client::builder()
        .coordinator(plan.coordinator.clone())
        .identity(plan.credentials.clone(), plan.roots.clone())
        .token_source(Arc::new(tokens.clone()))
        .metrics_settings(SignalSettings { batch, max_memory: plan.memory, ..SignalSettings::metrics() })
        .logs_settings(SignalSettings { batch, max_memory: plan.memory, ..SignalSettings::logs() });
    if let Some(folder) = &plan.spool {
        builder = builder.spool(SpoolConfig::new(folder));
    }
    let client = builder.build().map_err(|error| ChaosError::Setup(error.to_string()))?;
    tokens.arm(plan.issuer.clone().unwrap_or_else(|| client.issuer()));
    Ok(client)
}
