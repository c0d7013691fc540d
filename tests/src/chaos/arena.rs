//! Everything that is put together for a run: stores behind taps, a relay behind a bad network, agents and writers.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use telemetry_proto::{RunnerId, Signal};
use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::ChaosError;
use super::agent::{Agent, AgentPlan};
use super::disk::SmallDisk;
use super::keys::Keys;
use super::lines::Shape;
use super::tap::Tap;
use super::timeline::{End, Lives};
use super::witness::Witness;
use super::writer::{Writer, WriterPlan};
use crate::net::free_address;
use crate::network::Network;
use crate::program::Program;
use crate::rig::{Cluster, Parts, RelayProgram, StoreKind};
use crate::stores::Store;

/// Room for an outage of minutes.
const LARGE_SPOOL: u64 = 256 << 20;
/// The least that an agent takes: an outage of seconds fills it.
const SMALL_SPOOL: u64 = 1 << 20;
/// Below the size of the small disk, so that the disk is full before the spool is.
const DISK_SPOOL: u64 = 20 << 20;
const LARGE_MEMORY: usize = 64 << 20;
/// Four batches, which is the least.
const SMALL_MEMORY: usize = 64 << 10;

const USUAL: Shape = Shape { items: 5, pause: Duration::from_millis(50), ballast: 16 };
const FAT: Shape = Shape { items: 10, pause: Duration::from_millis(100), ballast: 2_000 };
const PLUMP: Shape = Shape { items: 5, pause: Duration::from_millis(100), ballast: 1_000 };

/// A store behind its tap.
pub(super) struct Seat {
    pub(super) store: Store,
    pub(super) lives: Arc<Lives>,
    tap: Tap,
    turn: Mutex<()>,
}

/// The relay's program, and its lives.
pub(super) struct Relay {
    pub(super) program: RelayProgram,
    pub(super) lives: Arc<Lives>,
    turn: Mutex<()>,
}

/// All of it. Ends when dropped.
pub(super) struct Arena {
    pub(super) agents: Vec<Arc<Agent>>,
    pub(super) writers: Vec<Arc<Writer>>,
    pub(super) network: Network,
    /// One change of the weather at a time.
    pub(super) weather: Mutex<()>,
    pub(super) relay: Relay,
    pub(super) metrics: Seat,
    pub(super) logs: Seat,
    pub(super) keys: Arc<Keys>,
    pub(super) witness: Arc<Witness>,
    pub(super) disk: SmallDisk,
    tokens: AbortHandle,
    // Last: the folder outlives whoever writes to it.
    _folder: TempDir,
}

impl Arena {
    pub(super) async fn start(stores: StoreKind, seed: u64) -> Result<Self, ChaosError> {
        let folder = tempfile::Builder::new().prefix("telemetry-chaos-").tempdir()?;
        let cluster = Cluster::new("chaos")?;
        let keys = Arc::new(Keys::new(folder.path())?);
        let witness = Arc::new(Witness::default());
        let relay_lives = Arc::new(Lives::new());
        let seat = async |signal| Seat::start(stores, signal, &relay_lives, &witness).await;
        let (metrics, logs) = tokio::try_join!(seat(Signal::Metrics), seat(Signal::Logs))?;
        let address = free_address()?;
        let program = start_relay(address, &cluster, &keys, &metrics, &logs).await?;
        let relay = Relay { program, lives: relay_lives, turn: Mutex::new(()) };
        let network = Network::start(address, seed).await?;
        let disk = SmallDisk::new(folder.path().join("disk"))?;

        let disk_runner = runner("agent-disk")?;
        let token_file = folder.path().join("token");
        let tokens = keys.keep_in(token_file.clone(), disk_runner)?;
        let here = |name: &str| folder.path().join(name);
        let coordinator = network.address();
        let mut agents = Vec::new();
        for plan in [
            AgentPlan {
                name: "agent",
                folder: here("agent"),
                spool: here("agent").join("spool"),
                coordinator,
                token_file: None,
                spool_bytes: LARGE_SPOOL,
                drops_oldest: false,
                shape: USUAL,
            },
            AgentPlan {
                name: "agent-disk",
                folder: here("agent-disk"),
                spool: disk.folder().join("spool"),
                coordinator,
                token_file: Some(token_file),
                // Where there is no disk to be filled the quota stands in for it.
                spool_bytes: if disk.is_mounted() { DISK_SPOOL } else { SMALL_SPOOL },
                drops_oldest: false,
                shape: if disk.is_mounted() { USUAL } else { FAT },
            },
            AgentPlan {
                name: "agent-drops",
                folder: here("agent-drops"),
                spool: here("agent-drops").join("spool"),
                coordinator,
                token_file: None,
                spool_bytes: SMALL_SPOOL,
                drops_oldest: true,
                shape: FAT,
            },
        ] {
            issue(&cluster, plan.name, &plan.folder)?;
            agents.push(Arc::new(Agent::start(plan).await?));
        }
        let writer = |name: &'static str, issuer, spool, memory, shape| {
            let (credentials, roots) = (cluster.issue_runner(&runner(name)?)?, cluster.roots().clone());
            let coordinator = coordinator.to_string();
            let plan = WriterPlan { name, coordinator, credentials, roots, issuer, spool, memory, shape };
            Ok::<_, ChaosError>(Arc::new(Writer::start(plan)?))
        };
        let short_lived = keys.issuer(&runner("writer-spool")?);
        let writers = vec![
            writer("writer-spool", Some(short_lived), Some(here("writer-spool")), LARGE_MEMORY, USUAL)?,
            writer("writer-memory", None, None, LARGE_MEMORY, USUAL)?,
            writer("writer-drops", None, None, SMALL_MEMORY, PLUMP)?,
        ];
        let weather = Mutex::new(());
        Ok(Self {
            agents,
            writers,
            network,
            weather,
            relay,
            metrics,
            logs,
            keys,
            witness,
            disk,
            tokens,
            _folder: folder,
        })
    }

    /// The store of a signal.
    pub(super) const fn seat(&self, signal: Signal) -> &Seat {
        match signal {
            Signal::Metrics => &self.metrics,
            Signal::Logs | Signal::Traces => &self.logs,
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.tokens.abort();
    }
}

impl Relay {
    /// Ends it, keeps it away, and starts it again.
    pub(super) async fn end_and_start(
        &self,
        end: End,
        away: Duration,
        when_dead: impl FnOnce(),
    ) -> Result<(), ChaosError> {
        let _turn = self.turn.lock().await;
        match end {
            End::Killed => self.program.kill().await?,
            End::Stopped => self.program.stop().await?,
        }
        let died = Instant::now();
        when_dead();
        sleep(away).await;
        self.lives.next(died, end);
        Ok(self.program.restart().await?)
    }
}

impl Seat {
    async fn start(
        stores: StoreKind,
        signal: Signal,
        relay_lives: &Arc<Lives>,
        witness: &Arc<Witness>,
    ) -> Result<Self, ChaosError> {
        let store = match (stores, signal) {
            (StoreKind::Real, Signal::Metrics) => Store::real_that_saves_often(Program::VictoriaMetrics).await?,
            (StoreKind::Real, _) => Store::real_that_saves_often(Program::VictoriaLogs).await?,
            _ => Store::built_in().await?,
        };
        let lives = Arc::new(Lives::new());
        let tap = Tap::open(signal, store.address(), Arc::clone(&lives), Arc::clone(relay_lives), Arc::clone(witness))
            .await?;
        Ok(Self { store, lives, tap, turn: Mutex::new(()) })
    }

    /// Ends it, keeps it away, and starts it again.
    pub(super) async fn end_and_start(&self, end: End, away: Duration) -> Result<(), ChaosError> {
        let _turn = self.turn.lock().await;
        // The built-in store knows no good order.
        let end = if matches!(self.store, Store::BuiltIn(_)) { End::Killed } else { end };
        match end {
            End::Killed => self.store.kill().await?,
            End::Stopped => self.store.stop().await?,
        }
        let died = Instant::now();
        self.tap.close().await;
        sleep(away).await;
        self.lives.next(died, end);
        self.store.restart().await?;
        Ok(self.tap.reopen().await?)
    }
}

async fn start_relay(
    address: SocketAddr,
    cluster: &Cluster,
    keys: &Keys,
    metrics: &Seat,
    logs: &Seat,
) -> Result<RelayProgram, ChaosError> {
    let previous = toml::Value::from(keys.previous().display().to_string());
    let variables = [
        ("TELEMETRY_RELAY__LISTENER__TCP", "true".to_owned()),
        ("TELEMETRY_RELAY__TOKENS__LEEWAY_SECONDS", "1".to_owned()),
        ("TELEMETRY_RELAY__ISSUER__PREVIOUS_KEYS", format!("[{previous}]")),
    ];
    let parts = Parts {
        cluster,
        signing: &keys.signing(),
        metrics: metrics.tap.address(),
        logs: logs.tap.address(),
        traces: None,
        tcp: false,
        // In the folder of its configuration.
        settings: "[state]\nfolder = \".\"\n",
        variables: &variables,
        log_levels: "info",
    };
    Ok(RelayProgram::start(address, parts).await?)
}

fn runner(name: &str) -> Result<RunnerId, ChaosError> {
    RunnerId::new(name).map_err(|error| ChaosError::Setup(error.to_string()))
}

fn issue(cluster: &Cluster, name: &str, folder: &Path) -> Result<(), ChaosError> {
    let issued = cluster.issue(&runner(name)?).map_err(crate::rig::RigError::from)?;
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("runner.pem"), &issued.chain_pem)?;
    std::fs::write(folder.join("runner-key.pem"), &issued.key_pem)?;
    Ok(std::fs::write(folder.join("ca.pem"), cluster.root_pem())?)
}
