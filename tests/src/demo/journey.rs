//! A command that one process accepts, another attempts twice and a third settles: one trace, though they share nothing but
//! the command's ID.

use std::fs;
use std::path::Path;

use serde::Serialize;
use telemetry_runner_client::trace::Journey;
use tokio::process::Command;
use tokio::time::Instant;

use super::DemoError;
use super::part::Part;
use crate::rig::Rig;
use crate::stores::StoredSpan;

const COMMAND: &str = "demo-command-1";

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

/// The trace of whoever accepted the command.
#[derive(Debug, Clone)]
pub(super) struct Written {
    caller: String,
}

/// Has a journey written by three processes, as the first three runners. `program` is the demonstration's own. `None`: one of
/// them failed.
///
/// # Errors
/// There is no process or no file to be had.
pub(super) async fn write(rig: &Rig, program: &Path) -> Result<Option<Written>, DemoError> {
    let folder = tempfile::tempdir()?;
    let mut traces = Vec::new();
    let began = Instant::now();
    for (index, part) in Part::ALL.into_iter().enumerate() {
        let identity = folder.path().join(part.as_str());
        fs::create_dir(&identity)?;
        let issued = rig.cluster().issue(&rig.runner(index).id).map_err(crate::rig::RigError::from)?;
        fs::write(identity.join("runner.pem"), &issued.chain_pem)?;
        fs::write(identity.join("runner.key"), issued.key_pem.as_str())?;
        fs::write(identity.join("ca.pem"), rig.cluster().root_pem())?;
        let output = Command::new(program)
            .args(["journey-part", "--part", part.as_str(), "--command", COMMAND])
            .args(["--coordinator", &format!("localhost:{}", rig.relay_address().port())])
            .args(["--accepted-ms-ago", &began.elapsed().as_millis().to_string()])
            .arg("--identity")
            .arg(identity)
            .kill_on_drop(true)
            .output()
            .await?;
        if !output.status.success() {
            tracing::warn!(part = part.as_str(), why = %String::from_utf8_lossy(&output.stderr), "a part of the journey failed");
            return Ok(None);
        }
        traces.push(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Ok(traces.into_iter().next().map(|caller| Written { caller }))
}

/// Reads it back.
pub(super) async fn read(rig: &Rig, written: Option<Written>) -> JourneyReport {
    let Some(Written { caller }) = written else {
        return JourneyReport { trace: String::new(), spans: Vec::new(), ok: false };
    };
    let root = Journey::of(COMMAND).root();
    let (trace, root) = (root.trace_id.to_string(), root.span_id.to_string());
    let store = rig.trace_store();
    // Where one is missing the wait ends in vain, and the comparison below says so.
    let callers = store.wait_for_trace(&caller, 1).await.unwrap_or_default();
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
