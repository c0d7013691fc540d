//! The log of the programs themselves, as input.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Events wait here until they are shipped; the oldest make room.
const MAX_WAITING: usize = 1_000;
/// The most that is taken at once, so that shipping events, which makes events, does not feed itself.
const MAX_TAKEN: usize = 50;

/// A layer that keeps the text of every event. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ProgramLog {
    waiting: Arc<Mutex<VecDeque<String>>>,
}

impl ProgramLog {
    /// Takes the events that wait.
    pub(super) fn take(&self) -> Vec<String> {
        let mut waiting = self.waiting.lock();
        let taken = waiting.len().min(MAX_TAKEN);
        waiting.drain(..taken).collect()
    }
}

impl<S: Subscriber> Layer<S> for ProgramLog {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut text = Text(format!("{} {}", event.metadata().level(), event.metadata().target()));
        event.record(&mut text);
        let mut waiting = self.waiting.lock();
        if waiting.len() == MAX_WAITING {
            waiting.pop_front();
        }
        waiting.push_back(text.0);
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a String can't fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
