//! What came of a run: for programs as one JSON object, for people as a table.

use std::fmt;

use serde::Serialize;
use telemetry_proto::Signal;

use super::audit::Account;
use super::plan::{FaultKind, Plan};
use super::usage::ProcessUsage;

/// The outcome of a run. `ok` only if nothing is lost or duplicated but for what is counted apart, and all was delivered in time.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Whether all of it holds.
    pub ok: bool,
    /// What the schedule follows from.
    pub seed: u64,
    /// How long it wrote, in seconds.
    pub seconds: f64,
    /// Which stores stood behind the relay: `real` or `built-in`.
    pub stores: &'static str,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// How long it took until nothing waited any more, in seconds; `None` if something still waited at the deadline.
    pub drained_seconds: Option<f64>,
    /// The sum over all sources.
    pub total: Account,
    /// Each source and signal.
    pub sources: Vec<SourceReport>,
    /// Each kind of fault.
    pub faults: Vec<FaultReport>,
    /// The longest time from the end of a fault to the next delivery, in milliseconds.
    pub worst_recovery_ms: Option<u64>,
    /// What the processes held.
    pub usage: Vec<ProcessUsage>,
    /// What was planned.
    pub plan: Plan,
    /// What a reader should know: what could not be tried here, answers that nobody expected.
    pub notes: Vec<String>,
}

/// The account of one source and signal.
#[derive(Debug, Clone, Serialize)]
pub struct SourceReport {
    /// The source.
    pub source: String,
    /// What kind of source it is.
    pub kind: &'static str,
    /// The signal.
    pub signal: Signal,
    /// Its account.
    #[serde(flatten)]
    pub account: Account,
}

/// One kind of fault.
#[derive(Debug, Clone, Serialize)]
pub struct FaultReport {
    /// The kind.
    pub kind: FaultKind,
    /// How often it happened.
    pub times: usize,
    /// The longest time from its end to the next delivery of a source that it hit, in milliseconds. `None` where the next fault always
    /// came in between.
    pub worst_recovery_ms: Option<u64>,
    /// Whose that was: source and signal.
    pub slowest_source: Option<String>,
}

const DASH: &str = "-";

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {:.0} s, {} stores\n", self.seed, self.seconds, self.stores)?;
        writeln!(
            f,
            "{:<14} {:<8} {:>8} {:>9} {:>8} {:>6} {:>10}  dropped and counted",
            "source", "signal", "written", "delivered", "stored", "lost", "duplicated"
        )?;
        for source in &self.sources {
            line(f, &source.source, source.signal.as_str(), &source.account)?;
        }
        line(f, "all", "", &self.total)?;
        let total = &self.total;
        writeln!(f, "\ncounted apart, in items:")?;
        for (items, what) in [
            (
                total.duplicated_by_relay_kill,
                "stored twice: the relay was killed between the store's answer and its own",
            ),
            (total.duplicated_by_store_kill, "stored twice: a store was killed before it answered"),
            (total.lost_by_store_kill, "lost: a store was killed before it wrote to disk what it had acknowledged"),
            (total.lost_in_window, "lost: an agent was killed within the window of its spool"),
            (total.repeated_by_feeder, "handed to an agent twice, since its answer was lost with it"),
            (total.waiting, "still waiting at the deadline"),
            (total.dropped_yet_delivered, "counted as dropped, and delivered all the same"),
            (total.unacknowledged, "handed to an agent that gave no answer (not counted as written)"),
        ] {
            writeln!(f, "{items:>8}  {what}")?;
        }
        writeln!(f, "\n{:<15} {:>5}  {:>14}", "fault", "times", "worst recovery")?;
        for fault in &self.faults {
            let (time, whose) =
                (milliseconds(fault.worst_recovery_ms), fault.slowest_source.as_deref().unwrap_or_default());
            writeln!(f, "{:<15} {:>5}  {time:>14}  {whose}", fault.kind, fault.times)?;
        }
        writeln!(
            f,
            "\n{:<15} {:>10} {:>11} {:>14} {:>13} {:>10}",
            "process", "most RSS", "most files", "RSS/h", "files/h", "threads/h"
        )?;
        for usage in &self.usage {
            let mebibytes = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
            let slope = |slope: Option<f64>| slope.map_or(DASH.to_owned(), |slope| format!("{slope:+.1}"));
            #[expect(clippy::cast_precision_loss, reason = "it is rounded anyway")]
            let most = mebibytes(usage.most_memory_bytes as f64);
            let memory = usage.memory_bytes_per_hour.map_or(DASH.to_owned(), mebibytes);
            let (files, threads) = (slope(usage.descriptors_per_hour), slope(usage.threads_per_hour));
            writeln!(
                f,
                "{:<15} {most:>10} {:>11} {memory:>14} {files:>13} {threads:>10}",
                usage.process, usage.most_descriptors
            )?;
        }
        writeln!(f)?;
        match self.drained_seconds {
            Some(seconds) => writeln!(f, "everything was settled {seconds:.1} s after the faults ended")?,
            None => writeln!(f, "NOT EVERYTHING WAS SETTLED by the deadline")?,
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        let verdict = if self.ok { "nothing lost, nothing twice" } else { "IT DOES NOT HOLD" };
        write!(f, "{verdict}")
    }
}

/// A Markdown table with a line for each run.
#[must_use]
pub fn summary(reports: &[Report]) -> String {
    let mut table = String::from(
        "| seed | faults | written | delivered | stored | lost | duplicated | dropped and counted | counted apart: twice / lost | worst recovery | settled after |\n\
         | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for report in reports {
        let total = &report.total;
        let faults: usize = report.faults.iter().map(|fault| fault.times).sum();
        let twice = total.duplicated_by_relay_kill + total.duplicated_by_store_kill;
        let gone = total.lost_by_store_kill + total.lost_in_window;
        let settled = report.drained_seconds.map_or("never".to_owned(), |seconds| format!("{seconds:.1} s"));
        let recovery = milliseconds(report.worst_recovery_ms);
        let dropped: u64 = total.dropped.values().sum();
        let Account { written, delivered, stored, lost, duplicated, .. } = total;
        table += &format!(
            "| {} | {faults} | {written} | {delivered} | {stored} | {lost} | {duplicated} | {dropped} | {twice} / {gone} | {recovery} | {settled} |\n",
            report.seed
        );
    }
    table
}

fn line(f: &mut fmt::Formatter<'_>, source: &str, signal: &str, account: &Account) -> fmt::Result {
    let dropped: Vec<String> = account.dropped.iter().map(|(reason, items)| format!("{reason} {items}")).collect();
    let Account { written, delivered, stored, lost, duplicated, .. } = account;
    let dropped = if dropped.is_empty() { DASH.to_owned() } else { dropped.join(", ") };
    writeln!(
        f,
        "{source:<14} {signal:<8} {written:>8} {delivered:>9} {stored:>8} {lost:>6} {duplicated:>10}  {dropped}"
    )
}

fn milliseconds(time: Option<u64>) -> String {
    time.map_or(DASH.to_owned(), |ms| format!("{ms} ms"))
}
