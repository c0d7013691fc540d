//! A run of agents and writers against stores, while everything between and beside them fails by a schedule; and afterwards the
//! account of every item.
//!
//! - `plan`: which fault comes when, from a seed; `faults`: how it is committed;
//! - `arena`: what is put together: a [`network`](crate::network) between runners and relay, `tap` between relay and stores, `agent`,
//!   `writer`, `keys`, `disk`;
//! - `ledger`, `witness`, `readback`: what was written, what passed, what is stored; `timeline`: when what died;
//! - `audit`, `recovery`, `usage`: what follows from those; `report`: how it is told.

mod agent;
mod arena;
mod audit;
mod disk;
mod faults;
mod keys;
mod ledger;
mod lines;
mod plan;
mod readback;
mod recovery;
mod report;
mod show;
mod tap;
mod timeline;
mod usage;
mod witness;
mod writer;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use telemetry_proto::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use self::arena::Arena;
use self::audit::{Account, Evidence};
use self::plan::LONG_RUN;
use self::timeline::{End, Incident, Lives};
use self::usage::UsageSample;
use self::witness::Stream;
use crate::process::ProcessError;
use crate::rig::{RigError, StoreKind};
use crate::stores::StoreError;

pub use self::audit::Account as ItemAccount;
pub use self::plan::{FaultKind, Plan, Planned};
pub use self::report::{FaultReport, Report, SourceReport, summary};
pub use self::show::Show;
pub use self::usage::{ProcessUsage, UsageSample as ProcessSample};

/// `-inmemoryDataFlushInterval` of both stores is 1 s here, and comes after seconds in which rows are gathered. 7 s were seen on a busy
/// machine.
const STORE_WINDOW: Duration = Duration::from_secs(10);
/// `spool.sync_every_ms` of the agents.
const SPOOL_WINDOW: Duration = Duration::from_secs(1);
/// The signals that must not be lost.
const SIGNALS: [Signal; 2] = [Signal::Metrics, Signal::Logs];
/// How often agents are asked what they dropped.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// How often it is looked whether everything is settled.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What to run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long sources write and faults come.
    pub length: Duration,
    /// What the schedule follows from.
    pub seed: u64,
    /// Which stores stand behind the relay.
    pub stores: StoreKind,
    /// Which faults may come.
    pub kinds: Vec<FaultKind>,
    /// How long delivery may take after the faults ended.
    pub drain: Duration,
}

/// The run can't be made, or broke off.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    /// The rig does not come up.
    #[error(transparent)]
    Rig(#[from] RigError),
    /// A store does not come back, or can't be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A process does not do as it should.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file or an address can't be used.
    #[error("a file or an address can't be used: {0}")]
    Io(#[from] std::io::Error),
    /// Anything else.
    #[error("the run can't be made: {0}")]
    Setup(String),
}

/// Runs it, until its time is over or `interrupt` turns true; then drains, reads the stores, and says what came of it.
///
/// # Errors
/// Something does not start, or does not come back after a fault. What was lost or duplicated is no error, but in the report.
pub async fn run(settings: &Settings, mut interrupt: watch::Receiver<bool>, show: &Show) -> Result<Report, ChaosError> {
    show.step("starting");
    let arena = Arc::new(Arena::start(settings.stores, settings.seed).await?);
    let mut notes = Vec::new();
    let mut kinds = settings.kinds.clone();
    if !arena.disk.is_mounted() && kinds.contains(&FaultKind::DiskFull) {
        kinds.retain(|kind| *kind != FaultKind::DiskFull);
        notes.push(
            "no small disk can be mounted here: disk-full is left out, and an agent has a small quota instead"
                .to_owned(),
        );
    }
    let plan = Plan::new(settings.seed, settings.length, &kinds);
    let start = Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    let mut sources = begin_to_write(&arena, &stop);
    let watching = tokio::spawn(watch_processes(Arc::clone(&arena), start, Arc::clone(&stop), settings.length));

    show.begin(settings.length.as_secs());
    let incidents = tokio::select! {
        incidents = commit_all(&arena, &plan, settings.length, &mut interrupt, show) => incidents?,
        never = tell(&arena, start, show) => match never {},
    };
    let interrupted = *interrupt.borrow();
    stop.store(true, Ordering::Relaxed);
    while sources.join_next().await.is_some() {}
    let written_for = start.elapsed();
    let drained = drain(&arena, settings.drain, show).await;
    let usage = watching.await.unwrap_or_default();

    show.step("reading the stores");
    for agent in &arena.agents {
        agent.ask().await;
        agent.end().await?;
        notes.extend(agent.surprises());
    }
    let mut stored = readback::Stored::new();
    readback::metrics(&arena.metrics.store, &mut stored).await?;
    readback::logs(&arena.logs.store, &mut stored).await?;

    let sources = audit_all(&arena, settings.stores, &stored).await;
    let mut total = Account::default();
    sources.iter().for_each(|source| total.add(&source.account));
    let streams: BTreeMap<Stream, _> = sources
        .iter()
        .map(|source| (source.source.clone(), source.signal))
        .map(|stream| (stream.clone(), arena.witness.of(&stream)))
        .collect();
    let faults: Vec<FaultReport> = recovery::measure(&incidents, &streams)
        .into_iter()
        .map(|(kind, recovery)| FaultReport {
            kind,
            times: recovery.times,
            worst_recovery_ms: recovery
                .worst
                .as_ref()
                .map(|(worst, _)| u64::try_from(worst.as_millis()).unwrap_or(u64::MAX)),
            slowest_source: recovery.worst.map(|(_, (source, signal))| format!("{source} {signal}")),
        })
        .collect();
    for writer in &arena.writers {
        writer.end().await;
    }
    notes.extend(sources.iter().filter_map(|source| suspicion(&arena, source, start)));
    keep_evidence(&arena, total.is_clean() && drained.is_some(), &mut notes);
    Ok(Report {
        ok: total.is_clean() && drained.is_some() && total.written > 0,
        seed: settings.seed,
        seconds: written_for.as_secs_f64(),
        stores: if settings.stores == StoreKind::Real { "real" } else { "built-in" },
        interrupted,
        drained_seconds: drained.map(|drained| drained.as_secs_f64()),
        total,
        sources,
        worst_recovery_ms: faults.iter().filter_map(|fault| fault.worst_recovery_ms).max(),
        faults,
        usage: usage.into_iter().map(|(process, samples)| ProcessUsage::of(process, samples)).collect(),
        plan,
        notes,
    })
}

fn begin_to_write(arena: &Arc<Arena>, stop: &Arc<AtomicBool>) -> JoinSet<()> {
    let mut sources = JoinSet::new();
    for agent in &arena.agents {
        for signal in SIGNALS {
            sources.spawn(Arc::clone(agent).feed(signal, Arc::clone(stop)));
        }
    }
    for writer in &arena.writers {
        sources.spawn(Arc::clone(writer).write(Arc::clone(stop)));
    }
    sources
}

/// Commits every fault when its time has come. Ends when the time of the run is over, or at an interrupt; in both cases when all that
/// was begun is over.
async fn commit_all(
    arena: &Arena,
    plan: &Plan,
    length: Duration,
    interrupt: &mut watch::Receiver<bool>,
    show: &Show,
) -> Result<Vec<Incident>, ChaosError> {
    let start = tokio::time::Instant::now();
    let mut running = FuturesUnordered::new();
    let mut incidents = Vec::new();
    let times = plan.0.iter().map(|planned| (Duration::from_millis(planned.at_ms), Some(*planned)));
    'schedule: for (at, planned) in times.chain([(length, None)]) {
        loop {
            tokio::select! {
                () = sleep_until(start + at) => break,
                _ = interrupt.wait_for(|interrupted| *interrupted) => break 'schedule,
                Some(over) = running.next() => incidents.push(over?),
            }
        }
        if let Some(planned) = planned {
            show.fault(&planned);
            running.push(faults::commit(arena, planned));
        }
    }
    while let Some(over) = running.next().await {
        incidents.push(over?);
    }
    incidents.sort_by_key(|incident| incident.began);
    Ok(incidents)
}

/// Shows how far it is, for ever.
async fn tell(arena: &Arena, start: Instant, show: &Show) -> Infallible {
    loop {
        let ledgers = arena.agents.iter().flat_map(|agent| [&agent.metrics, &agent.logs]);
        let ledgers = ledgers.chain(arena.writers.iter().flat_map(|writer| [&writer.metrics, &writer.logs]));
        show.second(start.elapsed().as_secs(), ledgers.map(ledger::Ledger::written).sum(), arena.witness.stored());
        sleep(Duration::from_secs(1)).await;
    }
}

/// Looks at the processes, and asks the agents what they dropped, until told to stop.
async fn watch_processes(
    arena: Arc<Arena>,
    start: Instant,
    stop: Arc<AtomicBool>,
    length: Duration,
) -> BTreeMap<String, Vec<UsageSample>> {
    let every = if length >= LONG_RUN { Duration::from_secs(5) } else { Duration::from_secs(1) };
    let mut samples: BTreeMap<String, Vec<UsageSample>> = BTreeMap::new();
    let mut next = start;
    while !stop.load(Ordering::Relaxed) {
        if Instant::now() >= next {
            next += every;
            let relay = ("relay", &*arena.relay.lives, arena.relay.program.usage());
            let agents = arena.agents.iter().map(|agent| (agent.name, &agent.lives, agent.usage()));
            for (name, lives, usage) in std::iter::once(relay).chain(agents) {
                // One that is dead holds nothing.
                if let Ok(usage) = usage {
                    let sample = UsageSample::new(start.elapsed(), lives.current(), &usage);
                    samples.entry(name.to_owned()).or_default().push(sample);
                }
            }
        }
        for agent in &arena.agents {
            agent.ask().await;
        }
        sleep(ASK_EVERY).await;
    }
    samples
}

/// Waits until nothing waits. Says how long that took.
async fn drain(arena: &Arena, within: Duration, show: &Show) -> Option<Duration> {
    let start = Instant::now();
    while start.elapsed() < within {
        let mut waiting = Some(0);
        for agent in &arena.agents {
            waiting = waiting.zip(agent.ask().await).map(|(sum, more)| sum + more);
        }
        for writer in &arena.writers {
            for signal in SIGNALS {
                let more = writer.waiting(signal).await;
                waiting = waiting.map(|sum| sum + more);
            }
        }
        match waiting {
            Some(0) => return Some(start.elapsed()),
            Some(waiting) => show.drain(waiting),
            None => {}
        }
        sleep(LOOK_EVERY).await;
    }
    None
}

async fn audit_all(arena: &Arena, stores: StoreKind, stored: &readback::Stored) -> Vec<SourceReport> {
    let mut reports = Vec::new();
    for agent in &arena.agents {
        let kind = if agent.name == "agent-drops" { "agent that drops the oldest" } else { "agent" };
        for (signal, ledger) in [(Signal::Metrics, &agent.metrics), (Signal::Logs, &agent.logs)] {
            let entries = ledger.entries();
            let source = Source { name: agent.name, signal, agent: Some(&agent.lives), waiting: agent.waiting(signal) };
            let account = audit_one(arena, stores, stored, &source, &entries, agent.dropped(signal));
            reports.push(SourceReport { source: agent.name.to_owned(), kind, signal, account });
        }
    }
    for writer in &arena.writers {
        let kind = if writer.name == "writer-spool" { "writer with a spool" } else { "writer without a spool" };
        for (signal, ledger) in [(Signal::Metrics, &writer.metrics), (Signal::Logs, &writer.logs)] {
            let entries = ledger.entries();
            let source = Source { name: writer.name, signal, agent: None, waiting: writer.waiting(signal).await };
            let account = audit_one(arena, stores, stored, &source, &entries, writer.dropped(signal).await);
            reports.push(SourceReport { source: writer.name.to_owned(), kind, signal, account });
        }
    }
    reports
}

struct Source<'a> {
    name: &'a str,
    signal: Signal,
    /// Of an agent, which may be killed.
    agent: Option<&'a Lives>,
    waiting: u64,
}

fn audit_one(
    arena: &Arena,
    stores: StoreKind,
    stored: &readback::Stored,
    source: &Source<'_>,
    entries: &[ledger::Entry],
    dropped: BTreeMap<String, u64>,
) -> Account {
    let stream = (source.name.to_owned(), source.signal);
    let nothing = std::collections::HashMap::new();
    let agent_ends: Vec<(Instant, End)> = source.agent.map(Lives::ends).unwrap_or_default();
    audit::audit(&Evidence {
        entries,
        sightings: &arena.witness.of(&stream),
        stored: stored.get(&stream).unwrap_or(&nothing),
        waiting: source.waiting,
        dropped,
        relay_ends: &arena.relay.lives.ends(),
        store_ends: &arena.seat(source.signal).lives.ends(),
        agent_ends: &agent_ends,
        // The built-in store keeps what it acknowledged.
        store_window: if stores == StoreKind::Real { STORE_WINDOW } else { Duration::ZERO },
        spool_window: SPOOL_WINDOW,
    })
}

/// The requests around what can't be explained, for whoever looks for the cause.
fn suspicion(arena: &Arena, source: &SourceReport, start: Instant) -> Option<String> {
    let suspects = &source.account.suspects;
    let (first, last) = (suspects.first()?, suspects.last()?);
    let after = |at: Instant| at.saturating_duration_since(start).as_secs_f64();
    let mut text = format!("{} {}: can't be explained:", source.source, source.signal);
    let sightings = arena.witness.of(&(source.source.clone(), source.signal));
    for (index, seen) in sightings.iter().enumerate().take(last + 3).skip(first.saturating_sub(2)) {
        let mark = if suspects.contains(&index) { "->" } else { "  " };
        let answer = match seen.answer {
            witness::Answer::None => "no answer".to_owned(),
            witness::Answer::Refused => "refused".to_owned(),
            witness::Answer::Stored(at) => format!("stored at {:.3} s", after(at)),
        };
        let (begun, relay, store) = (after(seen.begun), seen.relay_life, seen.store_life);
        text += &format!("\n  {mark} {begun:.3} s, relay {relay}, store {store}, {answer}, {:?}", seen.runs);
    }
    for (life, (at, end)) in arena.relay.lives.ends().into_iter().enumerate() {
        text += &format!("\n  relay {life}: {end:?} at {:.3} s", after(at));
    }
    Some(text)
}

/// The variable that names a folder for the programs' logs of a run that does not hold.
const EVIDENCE: &str = "TELEMETRY_CHAOS_LOGS";

fn keep_evidence(arena: &Arena, is_clean: bool, notes: &mut Vec<String>) {
    let Some(folder) = std::env::var_os(EVIDENCE).filter(|_| !is_clean).map(std::path::PathBuf::from) else { return };
    let logs = arena.agents.iter().map(|agent| (agent.name, agent.log()));
    for (name, log) in logs.chain([("relay", arena.relay.program.log())]) {
        let kept = log.and_then(|log| std::fs::write(folder.join(format!("{name}.log")), log));
        if let Err(error) = kept {
            notes.push(format!("the log of {name} can't be kept: {error}"));
        }
    }
}
