//! What tests expected and saw, for the document of outcomes.
//!
//! With [`FILE`] set, every test of a [suite](mod@crate::suite) leaves a line of JSON there. A test that has more to say than that it
//! passed says it with [`saw`] and [`measured`]; elsewhere these do nothing.

pub mod document;

use std::cell::RefCell;
use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;

use serde::{Deserialize, Serialize};

/// The variable that names the file.
pub const FILE: &str = "TELEMETRY_OUTCOMES";

/// What came of a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The name of the test.
    pub name: String,
    /// What must come of it; where that is not data, its name says it.
    pub expected: Option<String>,
    /// What was seen, each once.
    pub seen: Vec<String>,
    /// What was measured, by name.
    pub measures: Vec<(String, String)>,
    /// How it ended.
    pub end: End,
}

/// How a test ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// As it must.
    Passed,
    /// Otherwise.
    Failed,
    /// What it needs is not to be had.
    Ignored(String),
}

#[derive(Debug, Default)]
struct Notes {
    seen: Vec<String>,
    measures: Vec<(String, String)>,
}

tokio::task_local! {
    static NOTES: RefCell<Notes>;
}

/// Notes what came of what this test did.
pub fn saw(what: impl Into<String>) {
    let what = what.into();
    note(|notes| {
        if !notes.seen.contains(&what) {
            notes.seen.push(what);
        }
    });
}

/// Notes a figure.
pub fn measured(name: &str, value: impl ToString) {
    note(|notes| notes.measures.push((name.to_owned(), value.to_string())));
}

fn note(note: impl FnOnce(&mut Notes)) {
    // Not within a test of a suite: nobody wants to know.
    let _ = NOTES.try_with(|notes| note(&mut notes.borrow_mut()));
}

/// Writes down what comes of a test, also when it panics.
pub(crate) struct Record {
    file: Option<std::ffi::OsString>,
    outcome: Outcome,
}

impl Record {
    pub(crate) fn begin(name: &str, expected: Option<String>) -> Self {
        let outcome =
            Outcome { name: name.to_owned(), expected, seen: Vec::new(), measures: Vec::new(), end: End::Failed };
        Self { file: env::var_os(FILE), outcome }
    }

    pub(crate) fn ignore(&mut self, reason: &str) {
        self.outcome.end = End::Ignored(reason.to_owned());
    }

    /// Runs the test.
    pub(crate) async fn run<E>(&mut self, test: impl Future<Output = Result<(), E>>) -> Result<(), E> {
        let outcome = &mut self.outcome;
        let noted = async {
            let result = test.await;
            NOTES.with(|notes| {
                let Notes { seen, measures } = notes.take();
                (outcome.seen, outcome.measures) = (seen, measures);
            });
            result
        };
        let result = NOTES.scope(RefCell::default(), noted).await;
        if result.is_ok() {
            outcome.end = End::Passed;
        }
        result
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        let written = serde_json::to_string(&self.outcome).map_err(Into::into).and_then(|line| {
            let mut file = OpenOptions::new().create(true).append(true).open(file)?;
            // At once: several tests run at a time.
            file.write_all(format!("{line}\n").as_bytes())
        });
        if let Err(error) = written {
            tracing::error!(%error, "an outcome can't be written down");
        }
    }
}
