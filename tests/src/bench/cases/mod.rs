//! What is measured, case by case.

mod batch_ids;
mod client;
mod cost;
mod growth;
mod handshakes;
mod latency;
mod memory;
mod reload;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use telemetry_relay::gate::SignatureAlgorithm;

use super::BenchError;
use super::identities::{Identities, Runner};
use super::load::Volume;
use super::plan::{Case, Plan};
use super::report::Report;
use super::stop::Stop;
use super::targets::{BenchStore, Target, TargetKind};

/// What all cases share.
struct Bench<'a> {
    plan: &'a Plan,
    stop: &'a Stop,
    identities: Identities,
    runners: BTreeMap<SignatureAlgorithm, Arc<[Runner]>>,
    bar: ProgressBar,
    report: Report,
}

pub(super) async fn run(plan: &Plan, stop: &Stop) -> Report {
    let report = Report { cores: available_parallelism().map_or(0, usize::from), ..Report::default() };
    let identities = match Identities::new() {
        Ok(identities) => identities,
        Err(error) => return Report { left_out: vec![error.to_string()], ..report },
    };
    let bar = if plan.silent { ProgressBar::hidden() } else { ProgressBar::new(0) };
    if let Ok(style) = ProgressStyle::with_template("{prefix:10} {bar:30} {pos}/{len} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut bench = Bench { plan, stop, identities, runners: BTreeMap::new(), bar, report };
    for case in &plan.cases {
        bench.bar.set_prefix(case.to_string());
        bench.bar.set_position(0);
        let outcome = match case {
            _ if stop.is_set() => break,
            Case::Cost => cost::run(&mut bench).await,
            Case::Latency => latency::run(&mut bench).await,
            Case::Memory => memory::run(&mut bench).await,
            Case::Handshakes => handshakes::run(&mut bench).await,
            Case::Reload => reload::run(&mut bench).await,
            Case::Growth => growth::run(&mut bench).await,
            Case::BatchIds => batch_ids::run(&mut bench).await,
            Case::Client => client::run(&mut bench).await,
        };
        if let Err(error) = outcome {
            bench.leave_out(case, &error);
        }
    }
    bench.bar.finish_and_clear();
    bench.report.interrupted = stop.is_set();
    bench.report
}

impl Bench<'_> {
    /// The first `count` runners, with tokens of this kind. They are made once.
    fn runners(&mut self, count: usize, algorithm: SignatureAlgorithm) -> Result<Arc<[Runner]>, BenchError> {
        if let Some(all) = self.runners.get(&algorithm)
            && all.len() >= count
        {
            return Ok(all[..count].into());
        }
        self.bar.set_message(format!("making {count} runners"));
        let all: Arc<[Runner]> = self.identities.runners(count, algorithm)?.into();
        self.runners.insert(algorithm, Arc::clone(&all));
        Ok(all)
    }

    /// Starts the targets that can be started; those that can't are left out.
    async fn start(&mut self, kinds: &[TargetKind], store: &Arc<BenchStore>) -> Vec<Target> {
        let mut targets = Vec::new();
        for kind in kinds {
            match Target::start(*kind, store, &self.identities, self.plan.before.as_deref()).await {
                Ok(target) => targets.push(target),
                Err(error) => self.leave_out(kind, &error),
            }
        }
        targets
    }

    fn leave_out(&mut self, what: impl std::fmt::Display, error: &BenchError) {
        let note = format!("{what}: {error}");
        if !self.report.left_out.contains(&note) {
            self.report.left_out.push(note);
        }
    }

    /// Says what comes of `count` steps.
    fn steps(&self, count: usize) {
        self.bar.set_length(count as u64);
    }

    /// One step is done.
    fn step(&self, next: impl Into<String>) {
        self.bar.inc(1);
        self.bar.set_message(next.into());
    }

    /// What was refused is a fault of the measurement.
    fn note_refusals(&mut self, what: impl std::fmt::Display, volume: &Volume) {
        if let Some(first) = &volume.first_refusal {
            self.report.refusals.push(format!("{what}: {} requests, the first with {first}", volume.refused));
        }
    }
}
