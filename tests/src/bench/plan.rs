//! What is measured, how often and how long.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use telemetry_relay::gate::SignatureAlgorithm;

use super::targets::{StoreOfRun, TargetKind};

/// What can be measured, each by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// CPU, throughput and memory by size, connections and algorithm.
    Cost,
    /// Latency at 200 requests a second.
    Latency,
    /// Memory of idle and active runners, and of large bodies.
    Memory,
    /// Full handshakes with certificates on both sides.
    Handshakes,
    /// A reload while many are connected.
    Reload,
    /// How cost grows with connections, tenants, removed runners and batch IDs.
    Growth,
    /// The relay's memory while it remembers more and more batch IDs, to their bound and beyond.
    BatchIds,
    /// The runner's client.
    Client,
}

impl Case {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Cost,
        Self::Latency,
        Self::Memory,
        Self::Handshakes,
        Self::Reload,
        Self::Growth,
        Self::BatchIds,
        Self::Client,
    ];
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cost => "cost",
            Self::Latency => "latency",
            Self::Memory => "memory",
            Self::Handshakes => "handshakes",
            Self::Reload => "reload",
            Self::Growth => "growth",
            Self::BatchIds => "batch-ids",
            Self::Client => "client",
        })
    }
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// A few requests each: whether it works.
    Smoke,
    /// Less than three minutes.
    Quick,
    /// All sizes and numbers.
    Full,
}

/// What is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which cases.
    pub cases: BTreeSet<Case>,
    /// Beside whom, the relay itself left out.
    pub peers: BTreeSet<TargetKind>,
    /// Cells of the table of costs, instead of those of the scale.
    pub cells: Vec<Cell>,
    /// Another build of the relay, to be measured as `before`.
    pub before: Option<PathBuf>,
    /// How much.
    pub scale: Scale,
    /// No progress is shown.
    pub silent: bool,
}

/// One cell of the table of costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    pub(super) store: StoreOfRun,
    pub(super) bytes: usize,
    pub(super) connections: usize,
    pub(super) algorithm: SignatureAlgorithm,
}

/// The most bytes of bodies that are under way at a time. Every relay may hold them all.
const BYTES_IN_FLIGHT: usize = 96 << 20;
/// The fewest requests under way at a time: two cores are to have something to do.
const LEAST_IN_FLIGHT: usize = 16;

impl Cell {
    /// Requests under way at a time: one for each connection, within reason.
    pub(super) fn in_flight(self) -> usize {
        self.connections.max(LEAST_IN_FLIGHT).min((BYTES_IN_FLIGHT / self.bytes).max(1))
    }
}

/// The text names no cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected STORE:KIB:CONNECTIONS:ALGORITHM, as in null:1024:10:RS256: null or real, 1 to 32768 KiB, 1 to 10000 connections, RS256, ES256 or EdDSA"
)]
pub struct NoCell;

impl FromStr for Cell {
    type Err = NoCell;

    /// The form `STORE:KIB:CONNECTIONS:ALGORITHM`: `null` or `real`, 1 to 32,768 KiB, 1 to 10,000 connections.
    fn from_str(text: &str) -> Result<Self, NoCell> {
        let parts: Vec<_> = text.split(':').collect();
        let [store, kib, connections, algorithm] = parts[..] else { return Err(NoCell) };
        let store = match store {
            "null" => StoreOfRun::Null,
            "real" => StoreOfRun::Real,
            _ => return Err(NoCell),
        };
        let within = |text: &str, most| text.parse().ok().filter(|number| (1..=most).contains(number)).ok_or(NoCell);
        let (bytes, connections) = (within(kib, 32 << 10)? << 10, within(connections, 10_000)?);
        let algorithm = algorithm.parse().map_err(|_| NoCell)?;
        Ok(Self { store, bytes, connections, algorithm })
    }
}

impl Plan {
    /// The relay and those beside it, in order.
    pub(super) fn targets(&self) -> Vec<TargetKind> {
        let before = self.before.as_ref().map(|_| TargetKind::Before);
        let all = self.peers.iter().copied().chain([TargetKind::Relay]).chain(before).collect::<BTreeSet<_>>();
        all.into_iter().collect()
    }

    /// The HTTP/3 relays.
    pub(super) fn relays(&self) -> Vec<TargetKind> {
        self.targets().into_iter().filter(|kind| kind.is_relay()).collect()
    }

    const fn pick<T: Copy>(&self, smoke: T, quick: T, full: T) -> T {
        match self.scale {
            Scale::Smoke => smoke,
            Scale::Quick => quick,
            Scale::Full => full,
        }
    }

    /// How often each is measured, in turns.
    pub(super) const fn rounds(&self) -> usize {
        self.pick(1, 3, 5)
    }

    /// How long a round of a cell is.
    pub(super) const fn round(&self) -> Duration {
        self.pick(Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(2))
    }

    pub(super) fn cells(&self) -> Vec<Cell> {
        use SignatureAlgorithm::{EdDsa, Es256, Rs256};
        use StoreOfRun::{Null, Real};
        let cell = |store, bytes, connections, algorithm| Cell { store, bytes, connections, algorithm };
        const KIB: usize = 1 << 10;
        const MIB: usize = 1 << 20;
        if !self.cells.is_empty() {
            return self.cells.clone();
        }
        match self.scale {
            Scale::Smoke => vec![cell(Null, KIB, 2, EdDsa), cell(Null, 64 * KIB, 1, Rs256)],
            Scale::Quick => vec![cell(Real, KIB, 10, Rs256), cell(Real, MIB, 10, Rs256), cell(Null, KIB, 10, Rs256)],
            Scale::Full => {
                let sizes = [KIB, 64 * KIB, MIB, 16 * MIB];
                let grid = sizes.into_iter().flat_map(|bytes| [1, 10, 100, 1_000].map(|n| cell(Real, bytes, n, Rs256)));
                let more = [
                    cell(Real, KIB, 10, Es256),
                    cell(Real, KIB, 10, EdDsa),
                    cell(Null, KIB, 10, Rs256),
                    cell(Null, KIB, 10, EdDsa),
                    cell(Null, MIB, 10, Rs256),
                ];
                grid.chain(more).collect()
            }
        }
    }

    /// Which store the cases have that need only one.
    pub(super) const fn store(&self) -> StoreOfRun {
        self.pick(StoreOfRun::Null, StoreOfRun::Real, StoreOfRun::Real)
    }

    /// How long a round at a fixed rate is.
    pub(super) const fn paced_round(&self) -> Duration {
        self.pick(Duration::from_millis(200), Duration::from_secs(3), Duration::from_secs(5))
    }

    /// Runners that are connected for memory and reload.
    pub(super) const fn crowd(&self) -> usize {
        self.pick(10, 500, 2_000)
    }

    /// Bodies of 32 MiB at a time, and how long each is.
    pub(super) const fn large_bodies(&self) -> (usize, usize) {
        self.pick((2, 1 << 20), (8, 32 << 20), (8, 32 << 20))
    }

    /// Handshakes in a round.
    pub(super) const fn handshakes(&self) -> usize {
        self.pick(10, 200, 500)
    }

    pub(super) const fn connections(&self) -> &'static [usize] {
        self.pick(&[1, 4], &[1, 100], &[1, 10, 100, 1_000, 5_000])
    }

    pub(super) const fn tenants(&self) -> &'static [usize] {
        self.pick(&[1, 4], &[1, 100], &[1, 10, 100, 1_000])
    }

    pub(super) const fn removed(&self) -> &'static [usize] {
        self.pick(&[0, 10], &[0, 10_000], &[0, 1_000, 100_000])
    }

    /// How many batch IDs are remembered; the relay remembers 500,000 at most.
    pub(super) const fn batch_ids(&self) -> &'static [u64] {
        self.pick(&[0, 50], &[0, 10_000], &[0, 10_000, 100_000, 1_000_000])
    }

    /// After how many batch IDs memory is looked at, and how often.
    pub(super) const fn batch_id_steps(&self) -> (u64, usize) {
        self.pick((20, 2), (20_000, 4), (100_000, 15))
    }

    /// Points and records that the client writes in a round.
    pub(super) const fn lines(&self) -> u64 {
        self.pick(1_000, 100_000, 500_000)
    }

    /// Calls of a writer without a network, each timed.
    pub(super) const fn calls(&self) -> usize {
        self.pick(1_000, 50_000, 200_000)
    }

    /// How long it takes on an idle machine, about.
    #[must_use]
    pub fn estimate(&self) -> Duration {
        let targets = u32::try_from(self.targets().len()).unwrap_or(u32::MAX);
        let rounds = u32::try_from(self.rounds()).unwrap_or(u32::MAX);
        let of = |case: &Case| match case {
            Case::Cost => {
                let one = (self.round()
                    + self.pick(Duration::ZERO, Duration::from_millis(300), Duration::from_secs(1)))
                    * rounds
                    * targets;
                one * u32::try_from(self.cells().len()).unwrap_or(u32::MAX)
            }
            Case::Latency => self.paced_round() * rounds * targets,
            Case::Memory => Duration::from_secs(self.pick(2, 20, 60)),
            Case::Handshakes => Duration::from_secs(self.pick(1, 4, 15)),
            Case::Reload => Duration::from_secs(self.pick(1, 6, 20)),
            Case::Growth => Duration::from_secs(self.pick(5, 30, 360)),
            Case::BatchIds => Duration::from_secs(self.pick(2, 16, 300)),
            Case::Client => Duration::from_secs(self.pick(1, 5, 20)),
        };
        self.cases.iter().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(scale: Scale) -> Plan {
        let peers = [TargetKind::Direct, TargetKind::Go, TargetKind::Vmauth].into();
        Plan { cases: Case::ALL.into(), peers, cells: Vec::new(), before: None, scale, silent: true }
    }

    #[test]
    fn a_quick_run_takes_less_than_three_minutes() {
        assert!(plan(Scale::Quick).estimate() < Duration::from_secs(180), "{:?}", plan(Scale::Quick).estimate());
        assert!(plan(Scale::Smoke).estimate() < Duration::from_secs(20));
    }

    #[test]
    fn a_cell_is_named_or_refused() {
        let cell: Cell = "null:1024:10:RS256".parse().unwrap();
        assert_eq!((cell.store, cell.bytes, cell.connections), (StoreOfRun::Null, 1 << 20, 10));
        for text in
            ["", "null", "null:0:1:RS256", "null:1:0:RS256", "none:1:1:RS256", "null:1:1:HS256", "null:1:1:RS256:"]
        {
            assert_eq!(text.parse::<Cell>(), Err(NoCell), "{text}");
        }
    }

    #[test]
    fn what_is_under_way_fits_the_memory_of_every_relay() {
        for cell in plan(Scale::Full).cells() {
            assert!(cell.in_flight() >= 1 && cell.in_flight() * cell.bytes <= BYTES_IN_FLIGHT);
        }
    }
}
