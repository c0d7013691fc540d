//! A planned fault, committed.

use std::time::{Duration, Instant};

use telemetry_proto::Signal;
use tokio::time::{Instant as TokioInstant, sleep, sleep_until, timeout};

use super::ChaosError;
use super::agent::Agent;
use super::arena::Arena;
use super::plan::{FaultKind, Planned};
use super::timeline::{End, Incident};
use crate::network::Weather;

/// How long the worst moment is waited for.
const LIE_IN_WAIT: Duration = Duration::from_millis(500);
/// How often a disk that is kept full is filled again.
const FILL_EVERY: Duration = Duration::from_millis(50);

/// Begins a fault, and returns when it is over: what was ended answers again, and what was taken away is back.
pub(super) async fn commit(arena: &Arena, planned: Planned) -> Result<Incident, ChaosError> {
    let began = Instant::now();
    let lasts = Duration::from_millis(planned.lasts_ms);
    let target = match planned.kind {
        FaultKind::RelayKill => {
            if is_ambush(planned) {
                // Between a store's answer and its own.
                arena.witness.hold_answers(true);
                soon(arena.witness.answer.notified()).await;
            }
            let killed = arena.relay.end_and_start(End::Killed, lasts, || arena.witness.hold_answers(false)).await;
            everything(killed)?
        }
        FaultKind::RelayStop => everything(arena.relay.end_and_start(End::Stopped, lasts, || {}).await)?,
        FaultKind::AgentKill => {
            let agent = agent(arena, planned.choice);
            if is_ambush(planned) {
                soon(agent.posting.notified()).await;
            }
            agent.crash(lasts).await?;
            Some(agent.name.to_owned())
        }
        FaultKind::AgentStop => {
            let agent = agent(arena, planned.choice);
            agent.stop(lasts).await?;
            Some(agent.name.to_owned())
        }
        FaultKind::WriterRestart => {
            arena.writers[0].restart().await?;
            Some(arena.writers[0].name.to_owned())
        }
        FaultKind::StoreKill if is_ambush(planned) => {
            soon(arena.witness.request.notified()).await;
            store(arena, End::Killed, planned.choice, lasts).await?
        }
        FaultKind::StoreKill => store(arena, End::Killed, planned.choice, lasts).await?,
        FaultKind::StoreStop => store(arena, End::Stopped, planned.choice, lasts).await?,
        FaultKind::Packets => weather(arena, Weather::bad(planned.choice), lasts).await,
        FaultKind::UdpBlock => weather(arena, Weather::BLOCKED, lasts).await,
        FaultKind::DiskFull => {
            let end = TokioInstant::now() + lasts;
            while TokioInstant::now() < end {
                arena.disk.fill();
                sleep(FILL_EVERY).await;
            }
            arena.disk.free();
            Some("agent-disk".to_owned())
        }
        FaultKind::TokenEnd => {
            let end = TokioInstant::now() + lasts;
            arena.keys.pause(true);
            sleep_until(end).await;
            arena.keys.pause(false);
            Some("agent-disk".to_owned())
        }
        FaultKind::KeyRotation => change_keys(arena, true, planned.choice).await?,
        FaultKind::KeyLoss => change_keys(arena, false, planned.choice).await?,
    };
    Ok(Incident { kind: planned.kind, target, began, ended: Instant::now() })
}

/// Every other kill waits for the worst moment.
const fn is_ambush(planned: Planned) -> bool {
    planned.choice & 0x100 != 0
}

/// Waits for a moment, but not for long.
async fn soon(moment: impl Future<Output = ()>) {
    let _ = timeout(LIE_IN_WAIT, moment).await;
}

fn everything(done: Result<(), ChaosError>) -> Result<Option<String>, ChaosError> {
    done.map(|()| None)
}

fn agent(arena: &Arena, choice: u32) -> &Agent {
    &arena.agents[choice as usize % arena.agents.len()]
}

async fn store(arena: &Arena, end: End, choice: u32, lasts: Duration) -> Result<Option<String>, ChaosError> {
    let signal = if choice.is_multiple_of(2) { Signal::Metrics } else { Signal::Logs };
    arena.seat(signal).end_and_start(end, lasts).await?;
    Ok(Some(signal.to_string()))
}

async fn weather(arena: &Arena, weather: Weather, lasts: Duration) -> Option<String> {
    let _turn = arena.weather.lock().await;
    arena.network.set(weather);
    sleep(lasts).await;
    arena.network.set(Weather::CALM);
    None
}

/// By SIGHUP, or as the relay notices the changed files.
async fn change_keys(arena: &Arena, keep: bool, choice: u32) -> Result<Option<String>, ChaosError> {
    let program = &arena.relay.program;
    arena.keys.change(&program.folder().join("signing.key"), keep)?;
    if choice.is_multiple_of(2) {
        program.reload().await?;
    }
    Ok(None)
}
