//! What a person sees while it runs, and at the end.

use std::fmt::{self, Write};
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Attempt, Report};

/// Shows progress on a terminal; elsewhere one line a step; nothing at all when quiet.
pub struct Show {
    bar: ProgressBar,
    plain: bool,
}

impl Show {
    /// A display on standard error.
    #[must_use]
    pub fn new(quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal && !quiet { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar, plain: !terminal && !quiet }
    }

    pub(super) fn step(&self, what: &'static str) {
        self.bar.set_message(what);
        if self.plain {
            eprintln!("{what} ...");
        }
    }

    pub(super) fn progress(&self, tallies: impl Iterator<Item = (u64, u64)>) {
        let (written, delivered) = tallies.fold((0, 0), |(w, d), (written, delivered)| (w + written, d + delivered));
        self.bar.set_message(format!("shipping: {written} lines written, {delivered} delivered"));
    }

    pub(super) fn attempt(&self, attempt: &Attempt) {
        self.bar.set_message(format!("attacking: {}", attempt.name));
    }

    /// The end: the display goes.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "stores: {}\n", self.stores)?;
        writeln!(
            f,
            "{:<10} {:>10} {:>10} {:>10} {:>10} {:>6}",
            "runner", "points", "stored", "records", "stored", "lost"
        )?;
        for runner in &self.runners {
            let (written, stored) = (runner.written, runner.stored);
            writeln!(
                f,
                "{:<10} {:>10} {:>10} {:>10} {:>10} {:>6}",
                runner.id, written.points, stored.points, written.records, stored.records, runner.lost
            )?;
        }
        let late = &self.late_armed;
        writeln!(
            f,
            "\nwritten before any token existed: {} points and {} records, stored {} and {}\n",
            late.written.points, late.written.records, late.stored.points, late.stored.records
        )?;
        writeln!(f, "a command that three runners took part in, trace {}:", self.journey.trace)?;
        for span in &self.journey.spans {
            writeln!(f, "{:<10} {:<14} {}", span.runner, span.name, span.place)?;
        }
        writeln!(f)?;
        let width = self.refusals.iter().map(|attempt| attempt.name.len()).max().unwrap_or_default();
        for attempt in &self.refusals {
            let mark = if attempt.ok { "refused" } else { "WRONG" };
            let mut line = format!("{mark:<8} {:<width$}  {}", attempt.name, attempt.got);
            if !attempt.ok {
                write!(line, " (expected {})", attempt.expected)?;
            }
            writeln!(f, "{line}")?;
        }
        let verdict =
            if self.ok { "every line is there once, under the runner that wrote it" } else { "NOT ALL OF IT HOLDS" };
        write!(f, "\n{verdict}")
    }
}
