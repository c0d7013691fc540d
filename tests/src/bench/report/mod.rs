//! What was measured: one JSON object, a table for people, charts.

mod aims;
mod cost;
mod plot;
mod rest;

use std::fmt;

use serde::Serialize;
use telemetry_relay::gate::SignatureAlgorithm;

use super::plan::Case;
use super::targets::{StoreOfRun, TargetKind};

pub use plot::plot;

/// What was measured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The machine's cores.
    pub cores: usize,
    /// Whether it was stopped before all was measured.
    pub interrupted: bool,
    /// What could not be measured, and why.
    pub left_out: Vec<String>,
    /// Requests that were not stored, and how the first one of each measurement was answered.
    pub refusals: Vec<String>,
    pub(super) cost: Vec<CostRow>,
    pub(super) latency: Vec<LatencyRow>,
    pub(super) memory: Vec<MemoryRow>,
    pub(super) handshakes: Vec<HandshakeRow>,
    pub(super) reload: Option<ReloadRow>,
    pub(super) growth: Vec<GrowthRow>,
    pub(super) batch_ids: Vec<GrowthRow>,
    pub(super) client: Option<ClientReport>,
}

/// One target in one cell: medians of the rounds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct CostRow {
    pub(super) store: StoreOfRun,
    pub(super) body_bytes: usize,
    pub(super) connections: usize,
    pub(super) in_flight: usize,
    pub(super) algorithm: SignatureAlgorithm,
    pub(super) target: TargetKind,
    pub(super) requests: u64,
    pub(super) requests_per_second: f64,
    pub(super) bytes_per_second: f64,
    /// Of the relay's process alone; of the store's for `direct`.
    pub(super) cpu_seconds_per_1000: f64,
    pub(super) cpu_seconds_per_gib: f64,
    pub(super) peak_memory_bytes: u64,
}

/// Latency at a fixed rate, in microseconds, all rounds together.
#[derive(Debug, Clone, Serialize)]
pub(super) struct LatencyRow {
    pub(super) target: TargetKind,
    pub(super) requests: usize,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// More than `direct` in the same rounds.
    pub(super) added_p50_us: Option<f64>,
    pub(super) added_p99_us: Option<f64>,
}

/// Memory of one relay.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MemoryRow {
    pub(super) target: TargetKind,
    pub(super) runners: usize,
    pub(super) before_bytes: u64,
    /// With everyone connected, each runner's share of what came on top.
    pub(super) idle_bytes_per_runner: f64,
    /// With a request of 1 KiB of each under way.
    pub(super) active_bytes_per_runner: f64,
    pub(super) large_bodies: usize,
    pub(super) large_body_bytes: usize,
    pub(super) peak_with_large_bodies_bytes: u64,
}

/// Handshakes of one relay: medians of the rounds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct HandshakeRow {
    pub(super) target: TargetKind,
    pub(super) per_second: f64,
    pub(super) cpu_ms_each: f64,
}

/// A reload: medians of the rounds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ReloadRow {
    pub(super) runners: usize,
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// The slowest request of those at a fixed rate around it.
    pub(super) worst_request_ms: f64,
}

/// What one more of something costs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct GrowthRow {
    /// Of what.
    pub(super) what: &'static str,
    pub(super) count: u64,
    pub(super) cpu_us_per_request: f64,
    pub(super) memory_bytes: u64,
}

/// What the runner's client costs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ClientReport {
    /// From `write` to acknowledged, this process alone.
    pub(super) cpu_us_per_point: f64,
    pub(super) cpu_us_per_record: f64,
    /// Of a writer's calls while nothing can be reached.
    pub(super) offline_p50_us: f64,
    pub(super) offline_p99_us: f64,
}

impl Report {
    /// Whether there are results of a case.
    #[must_use]
    pub fn has(&self, case: Case) -> bool {
        match case {
            Case::Cost => !self.cost.is_empty(),
            Case::Latency => !self.latency.is_empty(),
            Case::Memory => !self.memory.is_empty(),
            Case::Handshakes => !self.handshakes.is_empty(),
            Case::Reload => self.reload.is_some(),
            Case::Growth => !self.growth.is_empty(),
            Case::BatchIds => !self.batch_ids.is_empty(),
            Case::Client => self.client.is_some(),
        }
    }
}

/// A table for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} cores, shared by everything here; CPU is of the process that is named, ratios are to `go`",
            self.cores
        )?;
        cost::write(f, &self.cost)?;
        rest::write(f, self)?;
        aims::write(f, self)?;
        for refusal in &self.refusals {
            writeln!(f, "refused: {refusal}")?;
        }
        for left_out in &self.left_out {
            writeln!(f, "left out: {left_out}")?;
        }
        if self.interrupted {
            writeln!(f, "stopped before all was measured")?;
        }
        Ok(())
    }
}

/// A size for people.
pub(super) struct Size(pub(super) usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self.0 {
            bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
            bytes => format!("{} KiB", bytes >> 10),
        })
    }
}
