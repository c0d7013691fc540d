//! A command that one runner accepts, another attempts twice and a third settles: one trace, though they share nothing but the
//! command's ID.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use telemetry_runner_client::trace::{Entry, Journey, Settlement, SpanContext, TraceId};

use super::runner::DemoRunner;
use crate::rig::Rig;
use crate::stores::StoredSpan;
use crate::wait;

const COMMAND: &str = "demo-command-1";
/// How long the policy may take that says that traces are taken.
const POLICY_WITHIN: Duration = Duration::from_secs(10);

/// What the store has of the journey.
#[derive(Debug, Clone, Serialize)]
pub struct JourneyReport {
    /// The trace ID, which follows from the command's.
    pub trace: String,
    /// The caller's own span first, then those of the trace.
    pub spans: Vec<JourneySpan>,
    /// Whether each is there once, in its place, under the runner that wrote it.
    pub ok: bool,
}

/// A span.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JourneySpan {
    /// The runner that the relay filed it under.
    pub runner: String,
    /// Its name.
    pub name: String,
    /// What it is to the journey.
    pub place: String,
}

/// The traces in which the journey was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    root: SpanContext,
    caller: TraceId,
}

/// Writes a journey by the first three runners. `None`: they were not told to make spans.
pub(super) async fn write(runners: &[DemoRunner]) -> Option<Written> {
    let [accepts, attempts, settles, ..] = runners else { return None };
    let journey = Journey::of(COMMAND);
    let spans = [accepts, attempts, settles].map(DemoRunner::spans);
    let told =
        async || if spans.iter().all(|spans| spans.is_enabled()) { Ok(()) } else { Err("not all are told".to_owned()) };
    wait::until("the policy", POLICY_WITHIN, told).await.ok()?;
    let accepted = SystemTime::now();
    let mut request = spans[0].entry(Entry::Control, "create volume", None);
    request.link(journey.root());
    let caller = request.context()?.trace_id;
    request.end();
    for attempt in [1, 2] {
        journey.attempt(&spans[1], "attach", attempt).end();
    }
    journey.settle(&spans[2], "volume", accepted, Settlement { code: "attached", failed: false }).ok()?;
    Some(Written { root: journey.root(), caller })
}

/// Reads it back.
pub(super) async fn read(rig: &Rig, written: Option<Written>) -> JourneyReport {
    let Some(Written { root, caller }) = written else {
        return JourneyReport { trace: String::new(), spans: Vec::new(), ok: false };
    };
    let (trace, root) = (root.trace_id.to_string(), root.span_id.to_string());
    let store = rig.trace_store();
    // Where one is missing the wait ends in vain, and the comparison below says so.
    let callers = store.wait_for_trace(&caller.to_string(), 1).await.unwrap_or_default();
    let mut own = store.wait_for_trace(&trace, 3).await.unwrap_or_default();
    own.sort_by(|a, b| (&a.parent_id, a.tag("attempt")).cmp(&(&b.parent_id, b.tag("attempt"))));
    let place = |span: &StoredSpan| {
        if span.links == [(trace.clone(), root.clone())] {
            "links to the root".to_owned()
        } else if span.span_id == root && span.parent_id.is_empty() {
            format!("root, settled as {}", span.tag("settlement_code"))
        } else if span.parent_id == root {
            format!("attempt {}", span.tag("attempt"))
        } else {
            "nowhere".to_owned()
        }
    };
    let spans: Vec<_> = callers
        .iter()
        .chain(&own)
        .map(|span| JourneySpan { runner: span.runner().to_owned(), name: span.name.clone(), place: place(span) })
        .collect();
    let ok = spans == expected();
    JourneyReport { trace, spans, ok }
}

fn expected() -> [JourneySpan; 4] {
    [
        ("r1", "create volume", "links to the root"),
        ("r3", "volume", "root, settled as attached"),
        ("r2", "attach", "attempt 1"),
        ("r2", "attach", "attempt 2"),
    ]
    .map(|(runner, name, place)| JourneySpan { runner: runner.into(), name: name.into(), place: place.into() })
}
