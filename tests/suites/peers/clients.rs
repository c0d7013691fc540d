//! A client of another stack against our relay.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::header::{ALLOW, CONTENT_ENCODING, CONTENT_TYPE};
use http::{Method, StatusCode};
use telemetry_certs::Issued;
use telemetry_certs::testing::{Leaf, TestKey};
use telemetry_proto::claims::RunnerBinding;
use telemetry_proto::{Reason, Route, RunnerId, Signal, header, limits};
use telemetry_rig::outcome;
use telemetry_rig::peers::{PeerClient, PeerRequest, Stack};
use telemetry_rig::rig::{Cluster, Rig};
use telemetry_rig::suite::{Suite, TestResult};

use crate::{needs, needs_relay};

/// As the Go coordinator names its runners.
const UUID: &str = "0b2e9a6c-3b1f-4a55-9a0f-0d7f7a4f8c11";
const LINE: &str = "up 1 1790000000000\n";

pub(crate) fn add(suite: Suite, stack: Stack) -> Suite {
    let name = |test: &str| format!("{stack:?}: {test}").to_lowercase();
    let suite = suite
        .test(&name("many_writes_at_once_are_delivered_as_the_runner"), needs(stack), move || delivered(stack))
        .test(&name("refusals_are_seen_as_such"), needs(stack), move || refusals(stack))
        .test(&name("the_largest_body_arrives_and_a_larger_one_is_refused"), needs(stack), move || large(stack))
        .test(&name("without_a_certificate_of_the_cluster_there_is_no_answer"), needs(stack), move || strangers(stack))
        .test(&name("after_a_restart_of_the_relay_it_comes_back"), needs_relay(stack), move || restart(stack, false));
    match stack {
        Stack::Go | Stack::Curl => {
            suite.test(&name("after_a_crash_of_the_relay_it_comes_back"), needs_relay(stack), move || {
                restart(stack, true)
            })
        }
        // aioquic does not know a stateless reset when it sees one.
        Stack::Python | Stack::Requests => suite,
    }
}

/// A certificate as the Go coordinator issues it: Ed25519, the CN alone, both usages.
fn legacy(cluster: &Cluster) -> Issued {
    Leaf::legacy_runner(UUID).key(TestKey::Ed25519).issued_by(cluster.authority())
}

fn client(stack: Stack, rig: &Rig, identity: &Issued) -> Result<PeerClient, telemetry_rig::peers::PeerError> {
    PeerClient::start(stack, rig.relay_address(), rig.cluster().root_pem(), identity)
}

/// A token that names the runner.
fn token(rig: &Rig) -> Result<String, String> {
    let runner = RunnerId::new(UUID).map_err(|error| error.to_string())?;
    Ok(rig.token_for(&runner).sign(rig.signing_key()))
}

async fn delivered(stack: Stack) -> TestResult {
    const WRITES: usize = 40;
    let rig = Rig::builder().runner_binding(RunnerBinding::IfPresent).start().await?;
    let client = client(stack, &rig, &legacy(rig.cluster()))?;
    let token = token(&rig)?;
    let metrics = (0..WRITES).map(|number| {
        let body = format!("number{{entity=\"sandbox/{number}\",miren_runner=\"liar\"}} {number} 1790000000000\n");
        let write = PeerRequest::write(Signal::Metrics, &token, body);
        // Every other one is of the runner's own series.
        client.send(match number % 2 {
            0 => write,
            _ => write.header(header::TELEMETRY_STREAM, header::STREAM_OPERATIONAL),
        })
    });
    let logs = (0..WRITES).map(|number| {
        let body = format!("{{\"_msg\":\"m{number}\",\"_time\":\"2026-09-21T14:13:20Z\",\"entity\":\"e\"}}\n");
        client.send(PeerRequest::write(Signal::Logs, &token, body))
    });
    for answer in join_all(metrics).await.into_iter().chain(join_all(logs).await) {
        let answer = answer?;
        answer.expect_delivered()?;
        // Anything else is a failure to the Go runners.
        assert!(matches!(answer.status, StatusCode::OK | StatusCode::NO_CONTENT), "{answer:?}");
    }
    let samples = rig.metrics_store().samples().await?;
    let lines = rig.log_store().log_lines().await?;
    assert_eq!((samples.len(), lines.len()), (WRITES, WRITES));
    assert!(samples.iter().all(|sample| sample.label("miren_runner") == UUID), "{samples:?}");
    assert!(lines.iter().all(|line| line.field("miren_runner") == UUID), "{lines:?}");
    Ok(())
}

async fn refusals(stack: Stack) -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = client(stack, &rig, &legacy(rig.cluster()))?;
    let (token, path) = (token(&rig)?, Signal::Metrics.write_path());
    let write = |token: &str| PeerRequest::write(Signal::Metrics, token, LINE);
    let to = |method, path: &str| PeerRequest::new(method, path).header(header::WORKLOAD_TOKEN, &token);
    let cases = [
        (PeerRequest::new(Method::POST, path), Reason::TokenMissing),
        (write("not.a.token"), Reason::TokenMalformed),
        (write(&rig.token(0)), Reason::TokenRunnerMismatch),
        (write(&token).header(header::WORKLOAD_TOKEN, &token), Reason::TokenMalformed),
        (to(Method::POST, "/api/v1/import/prometheus"), Reason::RouteUnknown),
        (to(Method::POST, &format!("{path}/")), Reason::RouteUnknown),
        (to(Method::POST, &format!("{path}?extra_label=a=b")), Reason::QueryNotAllowed),
        (write(&token).header(CONTENT_TYPE, "application/x-www-form-urlencoded"), Reason::ContentTypeUnsupported),
        (write(&token).header(CONTENT_ENCODING, "zstd"), Reason::ContentEncodingUnsupported),
    ];
    for (request, reason) in cases {
        client.send(request).await?.expect_refusal(reason)?;
    }
    let answer = client.send(to(Method::DELETE, Route::Policy.path())).await?;
    assert_eq!((answer.status, answer.value(ALLOW)), (StatusCode::METHOD_NOT_ALLOWED, Some("GET")));
    assert!(rig.built_in_store().requests().is_empty());
    client.send(write(&token)).await?.expect_delivered()?;
    Ok(())
}

async fn large(stack: Stack) -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = client(stack, &rig, &legacy(rig.cluster()))?;
    let token = token(&rig)?;
    // Comments, which a store skips, and one sample.
    let largest = usize::try_from(limits::MAX_BODY_BYTES)?;
    let mut body = LINE.as_bytes().to_vec();
    body.resize(largest, b'#');
    client.send(PeerRequest::write(Signal::Metrics, &token, body.clone())).await?.expect_delivered()?;
    assert_eq!(rig.built_in_store().requests()[0].body.len(), largest);
    body.push(b'#');
    client.send(PeerRequest::write(Signal::Metrics, &token, body)).await?.expect_refusal(Reason::BodyTooLarge)?;
    client.send(PeerRequest::write(Signal::Metrics, &token, LINE)).await?.expect_delivered()?;
    Ok(())
}

async fn strangers(stack: Stack) -> TestResult {
    let rig = Rig::builder().start().await?;
    let foreign = Cluster::new("foreign")?;
    let ours = rig.cluster().authority();
    let strangers = [
        ("another CA", legacy(&foreign)),
        ("expired", Leaf::legacy_runner(UUID).expired().issued_by(ours)),
        ("not yet valid", Leaf::legacy_runner(UUID).not_yet_valid().issued_by(ours)),
        ("a coordinator", rig.cluster().coordinator().clone()),
        ("nobody", Leaf::legacy_runner(UUID).no_common_name().issued_by(ours)),
    ];
    for (who, identity) in strangers {
        let client = client(stack, &rig, &identity)?;
        let answer = client.send(PeerRequest::write(Signal::Metrics, &token(&rig)?, LINE)).await;
        assert!(answer.is_err(), "{who}: {answer:?}");
    }
    let store = rig.built_in_store();
    assert_eq!((store.connections(), store.requests().len()), (0, 0));
    Ok(())
}

/// Lesson 23 (quic-go 3372): nobody waits for an idle timeout after the relay was away, whether it said goodbye or left
/// that to the key of stateless resets, which outlives it.
async fn restart(stack: Stack, crash: bool) -> TestResult {
    /// The first may find out that the connection is dead.
    const ATTEMPTS: usize = 2;
    let rig = Rig::builder().relay_program("").start().await?;
    let client = client(stack, &rig, &legacy(rig.cluster()))?;
    let token = token(&rig)?;
    let write = || client.send(PeerRequest::write(Signal::Metrics, &token, LINE));
    write().await?.expect_delivered()?;
    if crash {
        rig.relay().kill().await?;
    } else {
        rig.relay().stop().await?;
    }
    rig.relay().restart().await?;
    let back = Instant::now();
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        match write().await {
            Ok(answer) => {
                answer.expect_delivered()?;
                outcome::saw(format!("{} ms after the relay was back", back.elapsed().as_millis()));
                assert!(back.elapsed() < Duration::from_secs(5), "{:?}", back.elapsed());
                return Ok(());
            }
            Err(error) => last = error.to_string(),
        }
    }
    Err(last.into())
}
