//! A bar for whoever watches.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use telemetry_runner_client::Tally;

use super::source::Source;

/// How often a spinner turns.
const TURN: Duration = Duration::from_millis(200);

/// A bar where the size is known, a spinner where it is not, and nothing where nobody watches.
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new(source: &Source, json: bool) -> Self {
        if json || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let (bar, template) = match source.bytes {
            Some(bytes) => {
                (ProgressBar::new(bytes), "{bar:30} {binary_bytes} of {binary_total_bytes} read, {msg} {elapsed}")
            }
            None => (ProgressBar::new_spinner(), "{spinner} {binary_bytes} read, {msg} {elapsed}"),
        };
        bar.set_draw_target(ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TURN);
        Self(bar)
    }

    pub(super) fn show(&mut self, read: u64, tally: &Tally) {
        self.0.set_position(read);
        self.0.set_message(format!("{} delivered, {} wait", tally.delivered, tally.waiting));
    }

    /// Leaves nothing behind: the result says it all.
    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}
