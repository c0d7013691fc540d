//! Which faults come when: a schedule that follows from the seed alone.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use serde::Serialize;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The relay is killed (SIGKILL), and started again.
    RelayKill,
    /// The relay is stopped (SIGTERM), and started again.
    RelayStop,
    /// An agent is killed (SIGKILL), and started again.
    AgentKill,
    /// An agent is stopped (SIGTERM), and started again.
    AgentStop,
    /// The writer with a spool is closed at once, and built again.
    WriterRestart,
    /// A store is killed (SIGKILL), and started again.
    StoreKill,
    /// A store is stopped (SIGTERM), and started again.
    StoreStop,
    /// Packets between runners and relay are dropped, delayed, duplicated and reordered.
    Packets,
    /// Not one UDP packet gets through.
    UdpBlock,
    /// The disk under an agent's spool is full.
    DiskFull,
    /// Tokens with short lives are not renewed, and end.
    TokenEnd,
    /// The issuer signs with a new key; tokens of the old one are still good.
    KeyRotation,
    /// The issuer signs with a new key, and the old one is forgotten: every token is worthless at once.
    KeyLoss,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [Self; 13] = [
        Self::RelayKill,
        Self::RelayStop,
        Self::AgentKill,
        Self::AgentStop,
        Self::WriterRestart,
        Self::StoreKill,
        Self::StoreStop,
        Self::Packets,
        Self::UdpBlock,
        Self::DiskFull,
        Self::TokenEnd,
        Self::KeyRotation,
        Self::KeyLoss,
    ];

    /// The name in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RelayKill => "relay-kill",
            Self::RelayStop => "relay-stop",
            Self::AgentKill => "agent-kill",
            Self::AgentStop => "agent-stop",
            Self::WriterRestart => "writer-restart",
            Self::StoreKill => "store-kill",
            Self::StoreStop => "store-stop",
            Self::Packets => "packets",
            Self::UdpBlock => "udp-block",
            Self::DiskFull => "disk-full",
            Self::TokenEnd => "token-end",
            Self::KeyRotation => "key-rotation",
            Self::KeyLoss => "key-loss",
        }
    }

    /// Whether a process that is measured in a long run ends by it.
    const fn ends_a_measured_process(self) -> bool {
        matches!(self, Self::RelayKill | Self::RelayStop | Self::AgentKill | Self::AgentStop)
    }

    /// How long it lasts, in milliseconds; of what is killed, how long it stays away.
    const fn lasts_ms(self) -> (u64, u64) {
        match self {
            Self::RelayKill | Self::AgentKill => (50, 2_000),
            Self::RelayStop | Self::AgentStop | Self::StoreStop => (50, 1_000),
            Self::StoreKill => (200, 3_000),
            Self::Packets | Self::DiskFull => (1_000, 4_000),
            Self::UdpBlock => (500, 5_000),
            // Tokens with short lives must end within it.
            Self::TokenEnd => (5_000, 7_000),
            Self::WriterRestart | Self::KeyRotation | Self::KeyLoss => (0, 0),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A fault that is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// When it begins, in milliseconds after the start.
    pub at_ms: u64,
    /// What it is.
    pub kind: FaultKind,
    /// How long it lasts, in milliseconds.
    pub lasts_ms: u64,
    /// Chooses among targets, and how bad it is.
    pub choice: u32,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ms: u64| Duration::from_millis(ms).as_secs_f64();
        write!(f, "{:>8.2} s  {:<15} {:>5.2} s", seconds(self.at_ms), self.kind, seconds(self.lasts_ms))
    }
}

/// All faults of a run, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Plan(pub Vec<Planned>);

/// From this length on, processes that are measured end in the first third only: whether they grow is seen in those that live.
pub(super) const LONG_RUN: Duration = Duration::from_secs(300);

impl Plan {
    /// The schedule of a run: each kind comes once before any comes again, with about two seconds between them, so that long ones
    /// overlap. The last tenth is quiet.
    #[must_use]
    pub fn new(seed: u64, length: Duration, kinds: &[FaultKind]) -> Self {
        let mut rng = Rng::with_seed(seed);
        let length_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let pause = (length_ms / 28).clamp(500, if length >= LONG_RUN { 4_000 } else { 2_000 });
        let mut planned = Vec::new();
        let mut deck: Vec<FaultKind> = Vec::new();
        let mut at_ms = rng.u64(pause / 2..=pause);
        while at_ms < length_ms - length_ms / 10 && !kinds.is_empty() {
            if deck.is_empty() {
                deck.extend_from_slice(kinds);
                rng.shuffle(&mut deck);
            }
            let Some(kind) = deck.pop() else { break };
            let (least, most) = kind.lasts_ms();
            // Short runs have short faults.
            let lasts_ms = rng.u64(least..=most).min(length_ms / 3);
            let choice = rng.u32(..);
            let spared = length >= LONG_RUN && at_ms > length_ms / 3 && kind.ends_a_measured_process();
            if !spared {
                planned.push(Planned { at_ms, kind, lasts_ms, choice });
            }
            at_ms += rng.u64(pause / 4..=pause * 7 / 4);
        }
        Self(planned)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|planned| writeln!(f, "{planned}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_schedule() {
        let plan = |seed| Plan::new(seed, Duration::from_secs(60), &FaultKind::ALL);
        assert_eq!(plan(1), plan(1));
        assert_ne!(plan(1), plan(2));
    }

    #[test]
    fn a_minute_has_every_kind_and_ends_quietly() {
        for seed in 0..100 {
            let plan = Plan::new(seed, Duration::from_secs(60), &FaultKind::ALL);
            for kind in FaultKind::ALL {
                assert!(plan.0.iter().any(|planned| planned.kind == kind), "seed {seed} has no {kind}");
            }
            assert!(plan.0.iter().all(|planned| planned.at_ms < 54_000));
            assert!(plan.0.is_sorted_by_key(|planned| planned.at_ms));
        }
    }

    #[test]
    fn in_a_long_run_what_is_measured_lives_for_two_thirds_of_it() {
        let plan = Plan::new(1, Duration::from_secs(1_200), &FaultKind::ALL);
        let last = plan.0.iter().rfind(|planned| planned.kind.ends_a_measured_process());
        assert!(last.is_some_and(|planned| planned.at_ms <= 400_000));
        assert!(plan.0.len() > 100);
    }
}
