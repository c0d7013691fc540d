//! Programs with OpenTelemetry's Python SDK, which export to an agent beside them.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use serde::Deserialize;
use telemetry_rig::agent::AgentProgram;
use telemetry_rig::http::HttpClient;
use telemetry_rig::program::Program;
use telemetry_rig::rig::{Rig, RigError, StoreKind};
use telemetry_rig::stores::Fault;
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;
use telemetry_runner_client::trace::{Entry, Journey};
use tokio::process::Command;
use tokio::time::timeout;

use super::{DEADLINE, is_filed_under, listed, rig, saw_no_canary, writer};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The agent of a runner, with a spool and a folder for rejected batches that no span may reach.
async fn start(rig: &Rig, runner: &str) -> Result<AgentProgram, RigError> {
    AgentProgram::start_with(rig, runner, "[dead_letters]\nfolder = \"rejected\"\n").await
}

/// Waits until it answers an export of nothing with `status`: until it knows the policy.
async fn answers(agent: &AgentProgram, status: StatusCode) -> TestResult {
    let look = async || {
        let answer = agent.http().post("/v1/traces", Some("application/x-protobuf"), "").await;
        match answer.map_err(|error| error.to_string())?.0 {
            answered if answered == status => Ok(()),
            answered => Err(answered.to_string()),
        }
    };
    Ok(wait::until(format!("the agent answers {status}"), DEADLINE, look).await?)
}

/// Nothing of spans is on its disk, its log included, whatever was written.
async fn has_nothing_on_disk(agent: &AgentProgram) -> TestResult {
    let status = agent.status().await?;
    assert_eq!((&status["spool"]["batches"], &status["dead_letters"]["files"]), (&0.into(), &0.into()), "{status}");
    for file in files(agent.folder())? {
        let bytes = fs::read(&file)?;
        assert!(!bytes.windows(6).any(|at| at == b"attach" || at == b"canary"), "{}", file.display());
    }
    Ok(())
}

fn files(folder: &Path) -> std::io::Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if path.is_file() {
            // Its socket holds nothing.
            found.push(path);
        }
    }
    Ok(found)
}

/// What became of a program's exports.
#[derive(Deserialize)]
struct Exported {
    trace: String,
    exports: Vec<String>,
}

/// Runs `spans.py` beside the agent.
async fn python(agent: &AgentProgram, path: &str, arguments: &[&str]) -> Result<Exported, Failure> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/python/spans.py");
    let program = Command::new(Program::PeerPython.find()?)
        .arg("-B")
        .arg(script)
        .arg(format!("http://{}{path}", agent.address()))
        .args(arguments)
        // A proxy that this machine may have is none of the agent's.
        .env("NO_PROXY", "127.0.0.1")
        .kill_on_drop(true)
        .output();
    let output = timeout(DEADLINE + Duration::from_secs(20), program).await??;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

pub(crate) async fn spans_of_the_python_sdk_arrive_through_the_agent_under_its_runner_with_what_is_listed() -> TestResult
{
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let agent = start(&rig, "r7").await?;
    answers(&agent, StatusCode::OK).await?;
    for (times, path) in ["/v1/traces", "/insert/opentelemetry/v1/traces"].into_iter().enumerate() {
        let exported = python(&agent, path, &["request"]).await?;
        assert_eq!(exported.exports, ["SUCCESS"]);
        let spans = rig.trace_store().wait_for_trace(&exported.trace, times + 1).await?;
        for span in &spans {
            is_filed_under(span, "r7");
            assert_eq!((span.name.as_str(), span.parent_id.as_str()), ("create volume", "0000000000000009"));
            assert_eq!((span.tag("span.kind"), span.tag("error")), ("server", "true"));
            assert_eq!(listed(span), [("http.response.status_code", "201"), ("http.route", "/volumes/{id}")]);
        }
    }
    saw_no_canary(rig.built_in_store());
    has_nothing_on_disk(&agent).await
}

pub(crate) async fn a_journey_across_three_processes_is_one_trace_with_root_attempts_and_link() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let (attempting, settling) = (start(&rig, "r7").await?, start(&rig, "r8").await?);
    for agent in [&attempting, &settling] {
        answers(agent, StatusCode::OK).await?;
    }
    // This process accepts, one makes attempts, another settles. They share the command's ID and nothing else.
    let command = "command-11";
    let root = Journey::of(command).root();
    let accepted = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos().to_string();
    let mut request = writer(rig.runner(0)).await?.entry(Entry::Control, "create volume", None);
    request.link(root);
    let request_trace = request.context().ok_or("no request")?.trace_id.to_string();
    drop(request);
    rig.runner(0).client.flush(DEADLINE).await;
    let attempts = python(&attempting, "/v1/traces", &["attempts", command]).await?;
    let settled = python(&settling, "/v1/traces", &["settle", command, &accepted]).await?;
    for exported in [attempts, settled] {
        assert_eq!((exported.trace, exported.exports), (root.trace_id.to_string(), vec!["SUCCESS".to_owned()]));
    }

    let spans = rig.trace_store().wait_for_trace(&root.trace_id.to_string(), 3).await?;
    let (roots, children): (Vec<_>, Vec<_>) = spans.iter().partition(|span| span.parent_id.is_empty());
    let [settled] = roots[..] else { return Err(format!("{spans:?}").into()) };
    is_filed_under(settled, "r8");
    assert_eq!(settled.span_id, root.span_id.to_string());
    assert_eq!(listed(settled), [("command_id", command), ("settlement_code", "attached")]);
    let numbers: Vec<&str> = children.iter().map(|attempt| attempt.tag("attempt")).collect();
    assert_eq!(numbers, ["1", "2"]);
    for attempt in children {
        is_filed_under(attempt, "r7");
        assert_eq!((&attempt.parent_id, attempt.tag("command_id")), (&settled.span_id, command));
        assert!(attempt.start_us >= settled.start_us, "an attempt is within the journey");
    }
    let request = rig.trace_store().wait_for_trace(&request_trace, 1).await?;
    is_filed_under(&request[0], "r1");
    assert_eq!(request[0].links, [(root.trace_id.to_string(), root.span_id.to_string())]);
    has_nothing_on_disk(&attempting).await
}

pub(crate) async fn the_agent_refuses_spans_at_once_and_keeps_none_where_the_coordinator_takes_no_traces() -> TestResult
{
    let rig = Rig::builder().start().await?;
    let agent = start(&rig, "r7").await?;
    answers(&agent, StatusCode::NOT_FOUND).await?;
    let exported = python(&agent, "/v1/traces", &["request"]).await?;
    assert_eq!(exported.exports, ["FAILURE"]);
    let traces = &agent.status().await?["signals"]["traces"];
    assert_eq!((&traces["written"], &traces["waiting"]), (&0.into(), &0.into()), "{traces}");
    has_nothing_on_disk(&agent).await
}

pub(crate) async fn spans_that_come_before_the_coordinator_was_heard_are_asked_for_again() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    rig.relay().kill().await?;
    let agent = start(&rig, "r7").await?;
    let client = HttpClient::new(agent.address());
    let export = client.post("/v1/traces", Some("application/x-protobuf"), export("first", 1)).await?;
    assert_eq!(export.0, StatusCode::SERVICE_UNAVAILABLE);
    // An exporter obeys Retry-After and goes on for minutes; the SDK's first export finds no coordinator.
    let program = python(&agent, "/v1/traces", &["request"]);
    let (exported, ()) = tokio::try_join!(program, async { Ok(rig.relay().restart().await?) })?;
    assert!(exported.exports.iter().all(|export| export == "SUCCESS"), "{:?}", exported.exports);
    Ok(())
}

pub(crate) async fn spans_wait_in_the_memory_of_the_agent_up_to_their_bound_and_never_on_its_disk() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let agent = start(&rig, "r7").await?;
    answers(&agent, StatusCode::OK).await?;
    rig.built_in_store().always(Some(Fault::Hang));
    let client = HttpClient::new(agent.address());
    let post = async |body| client.post("/v1/traces", Some("application/x-protobuf"), body).await;
    let mut answers = Vec::new();
    for _ in 0..6 {
        let (status, body) = post(export("attach", 600)).await?;
        let rejected = match status {
            StatusCode::OK => ExportTraceServiceResponse::decode(&body[..])?.partial_success,
            _ => None,
        };
        answers.push((status.as_u16(), rejected.map_or(0, |partly| partly.rejected_spans)));
    }
    // Of the fourth what fits is taken, and its sender is told how many were not.
    assert_eq!(answers, [(200, 0), (200, 0), (200, 0), (200, 352), (429, 0), (429, 0)]);
    let traces = &agent.status().await?["signals"]["traces"];
    assert_eq!((&traces["waiting"], &traces["written"]), (&2_048.into(), &2_400.into()), "{traces}");
    assert_eq!(traces["dropped"]["queue_full"], 352);
    let (status, why) = post(export(&"x".repeat(9 << 20), 1)).await?;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{why:?}: what never fits is not to be tried again");
    has_nothing_on_disk(&agent).await
}

pub(crate) async fn spans_that_the_relay_rejects_are_counted_and_never_on_the_disk_of_the_agent() -> TestResult {
    let rig = rig(StoreKind::BuiltIn).start().await?;
    let agent = start(&rig, "r7").await?;
    answers(&agent, StatusCode::OK).await?;
    rig.built_in_store().always(Some(Fault::Answer(StatusCode::BAD_REQUEST)));
    let client = HttpClient::new(agent.address());
    let answer = client.post("/v1/traces", Some("application/x-protobuf"), export("attach", 3)).await?;
    assert_eq!(answer.0, StatusCode::OK);
    let rejected = async || match &agent.status().await.map_err(|error| error.to_string())?["signals"]["traces"] {
        traces if traces["dropped"]["rejected"] == 3 => Ok(()),
        traces => Err(traces.to_string()),
    };
    wait::until("three rejected spans", DEADLINE, rejected).await?;
    has_nothing_on_disk(&agent).await?;
    // The same folder does take what may be there.
    let answer = client.post("/api/v1/import/prometheus", None, "up 1\n").await?;
    assert_eq!(answer.0, StatusCode::NO_CONTENT);
    let kept = async || match agent.status().await.map_err(|error| error.to_string())? {
        status if status["dead_letters"]["files"] == 1 => Ok(()),
        status => Err(status.to_string()),
    };
    wait::until("the metrics put aside", DEADLINE, kept).await?;
    Ok(())
}

/// An export of `count` spans.
pub(crate) fn export(name: &str, count: usize) -> Vec<u8> {
    let span = Span { trace_id: vec![1; 16], span_id: vec![2; 8], name: name.to_owned(), ..Span::default() };
    let scope_spans = vec![ScopeSpans { spans: vec![span; count], ..Default::default() }];
    let resource_spans = vec![ResourceSpans { scope_spans, ..Default::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}
