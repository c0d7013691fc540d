//! What came of it.

use std::collections::HashMap;

use serde::Serialize;

use super::attacks::{ATTACK_METRIC, Attempt};
use super::journey::{self, JourneyReport};
use super::runner::{DemoRunner, NUMBER};
use super::{BEFORE_ARMING, DemoError};
use crate::rig::{Rig, StoreKind};
use crate::stores::{LogLine, Sample};

/// The outcome of the demonstration. `ok` only if all of it holds.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Which stores stood behind the relay: `real` or `built-in`.
    pub stores: &'static str,
    /// The runners.
    pub runners: Vec<RunnerReport>,
    /// What the runners wrote.
    pub written: Count,
    /// What the stores have of it: each line once, under the runner that wrote it.
    pub stored: Count,
    /// What was written before any token existed, and arrived.
    pub late_armed: LateArmed,
    /// A command that three processes took part in, each as a runner.
    pub journey: JourneyReport,
    /// What was tried against the relay.
    pub refusals: Vec<Attempt>,
    /// What the refusals amount to.
    pub refused: RefusalSummary,
    /// Whether all of it holds.
    pub ok: bool,
}

/// Points and records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Points.
    pub points: u64,
    /// Log records.
    pub records: u64,
}

/// One runner.
#[derive(Debug, Clone, Serialize)]
pub struct RunnerReport {
    /// Its ID.
    pub id: String,
    /// What it wrote.
    pub written: Count,
    /// What the stores have of it, each line once and under this runner.
    pub stored: Count,
    /// What its client could not deliver.
    pub lost: u64,
}

/// What was written before any token existed.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct LateArmed {
    /// What was written.
    pub written: Count,
    /// What of it is stored.
    pub stored: Count,
    /// Whether the token sources said that they are unarmed, and nothing was stored before they were armed.
    pub waited: bool,
}

/// What the attempts amount to.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct RefusalSummary {
    /// Attempts that ended as expected.
    pub as_expected: usize,
    /// Lines of the attacker that a store has.
    pub stored: usize,
}

/// Whether every runner's token source says that it is unarmed.
pub(super) async fn all_unarmed(runners: &[DemoRunner]) -> bool {
    for runner in runners {
        if !runner.is_unarmed().await {
            return false;
        }
    }
    true
}

/// Reads the stores back and compares.
pub(super) async fn make(
    rig: &Rig,
    stores: StoreKind,
    runners: &[DemoRunner],
    waited: bool,
    journey: Option<journey::Written>,
    refusals: Vec<Attempt>,
) -> Result<Report, DemoError> {
    let written = Count {
        points: runners.iter().map(|runner| runner.points).sum(),
        records: runners.iter().map(|runner| runner.records).sum(),
    };
    // Where something is missing the wait ends in vain, and the count below says what.
    let _ = rig.metrics_store().wait_for_samples(as_usize(written.points)).await;
    let _ = rig.log_store().wait_for_log_lines(as_usize(written.records)).await;
    let samples = rig.metrics_store().samples().await?;
    let lines = rig.log_store().log_lines().await?;

    let points = Numbers::of(samples.iter().map(|sample| (sample.label("miren_runner"), sample.label(NUMBER))));
    let records = Numbers::of(lines.iter().map(|line| (line.field("miren_runner"), line.field(NUMBER))));
    let reports: Vec<_> = runners.iter().map(|runner| runner_report(runner, &points, &records)).collect();
    let stored = Count {
        points: reports.iter().map(|report| report.stored.points).sum(),
        records: reports.iter().map(|report| report.stored.records).sum(),
    };
    let late = |numbers: &Numbers<'_>| {
        runners.iter().map(|runner| numbers.once_below(runner.id.as_str(), BEFORE_ARMING)).sum::<u64>()
    };
    let before = BEFORE_ARMING * runners.len() as u64;
    let late_armed = LateArmed {
        written: Count { points: before, records: before },
        stored: Count { points: late(&points), records: late(&records) },
        waited,
    };
    let journey = journey::read(rig, journey).await;
    let refused = RefusalSummary {
        as_expected: refusals.iter().filter(|attempt| attempt.ok).count(),
        stored: samples.iter().filter(|sample| sample.name == ATTACK_METRIC).count(),
    };
    let ok = stored == written
        // Nothing beside it: no line twice, none under another runner, none of the attacker.
        && samples.len() as u64 == written.points
        && lines.len() as u64 == written.records
        && lines.iter().all(is_in_its_stream)
        && samples.iter().all(|sample: &Sample| sample.label("miren_runner").starts_with('r'))
        && waited
        && late_armed.stored == late_armed.written
        && journey.ok
        && refused.as_expected == refusals.len()
        && refused.stored == 0;
    let stores = match stores {
        StoreKind::Real => "real",
        StoreKind::Cluster => "a cluster",
        StoreKind::BuiltIn => "built-in",
    };
    Ok(Report { stores, runners: reports, written, stored, late_armed, journey, refusals, refused, ok })
}

fn runner_report(runner: &DemoRunner, points: &Numbers<'_>, records: &Numbers<'_>) -> RunnerReport {
    let id = runner.id.as_str();
    RunnerReport {
        id: id.to_owned(),
        written: Count { points: runner.points, records: runner.records },
        stored: Count { points: points.once_below(id, runner.points), records: records.once_below(id, runner.records) },
        lost: runner.lost,
    }
}

/// A stream is told by runner, entity and stream, and by nothing else.
fn is_in_its_stream(line: &LogLine) -> bool {
    line.stream.keys().map(String::as_str).eq(["entity", "miren_runner", "stream"])
        && line.stream["miren_runner"] == line.field("miren_runner")
}

/// How often each number of each runner is stored.
struct Numbers<'s>(HashMap<(&'s str, u64), u64>);

impl<'s> Numbers<'s> {
    fn of(lines: impl Iterator<Item = (&'s str, &'s str)>) -> Self {
        let mut times = HashMap::new();
        for (runner, number) in lines {
            if let Ok(number) = number.parse() {
                *times.entry((runner, number)).or_default() += 1;
            }
        }
        Self(times)
    }

    /// How many of the runner's numbers below `end` are stored exactly once.
    fn once_below(&self, runner: &str, end: u64) -> u64 {
        (0..end).filter(|number| self.0.get(&(runner, *number)) == Some(&1)).count() as u64
    }
}

fn as_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
