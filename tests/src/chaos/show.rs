//! What a person sees while it runs.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::plan::Planned;

/// Progress on a terminal; nothing elsewhere.
pub struct Show {
    bar: ProgressBar,
}

impl Show {
    /// A display on standard error, where that is a terminal.
    #[must_use]
    pub fn new(quiet: bool) -> Self {
        let is_shown = std::io::stderr().is_terminal() && !quiet;
        let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar }
    }

    pub(super) fn begin(&self, seconds: u64) {
        self.bar.set_length(seconds);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {bar:30} {pos:>4}/{len} s  {prefix}  {msg}") {
            self.bar.set_style(style);
        }
    }

    pub(super) fn second(&self, seconds: u64, written: u64, requests: usize) {
        self.bar.set_position(seconds);
        self.bar.set_prefix(format!("{written} written, {requests} requests stored"));
    }

    pub(super) fn fault(&self, planned: &Planned) {
        self.bar.set_message(planned.kind.as_str());
    }

    pub(super) fn step(&self, what: &'static str) {
        self.bar.set_message(what);
    }

    pub(super) fn drain(&self, waiting: u64) {
        self.bar.set_message(format!("draining: {waiting} items wait"));
    }

    /// The end: the display goes.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
