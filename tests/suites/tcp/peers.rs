//! Other people's clients over TCP.

use std::time::Duration;

use futures_util::future::Either;
use futures_util::{StreamExt as _, stream};
use http::StatusCode;
use telemetry_proto::{Reason, Signal, header, limits};
use telemetry_relay::listener::Transport;
use telemetry_rig::peers::{PeerClient, PeerRequest, Stack};
use telemetry_rig::program::Program;
use telemetry_rig::rig::{Cluster, Rig, RigRelay};
use telemetry_rig::suite::{Suite, TestResult};
use telemetry_rig::tcp::Http;
use telemetry_rig::wait;

pub(crate) fn add(suite: Suite) -> Suite {
    const GO: &[Program] = &[Program::PeerGo];
    const PYTHON: &[Program] = &[Program::PeerPython];
    let peers = [
        (GO, Stack::Go, Http::Two),
        (GO, Stack::Go, Http::One),
        (PYTHON, Stack::Curl, Http::Two),
        (PYTHON, Stack::Curl, Http::One),
        (PYTHON, Stack::Requests, Http::One),
    ];
    peers.into_iter().fold(suite, |suite, (needs, stack, http)| {
        let name = |test: &str| format!("{stack:?}: http {http:?}: {test}").to_lowercase();
        suite
            .test(&name("writes_are_delivered_and_refusals_seen"), needs, move || writes(stack, http))
            .test(&name("the_largest_body_arrives_and_a_larger_one_is_refused"), needs, move || large(stack, http))
            .test(&name("without_a_certificate_of_the_cluster_there_is_no_answer"), needs, move || {
                strangers(stack, http)
            })
    })
}

const LINE: &str = "up 1 1790000000000\n";

async fn writes(stack: Stack, http: Http) -> TestResult {
    const WRITES: usize = 20;
    let rig = Rig::builder().runners(2).tcp().start().await?;
    let identity = rig.cluster().issue(&rig.runner(0).id)?;
    let peer = PeerClient::start_over_tcp(stack, http, rig.relay_address(), rig.cluster().root_pem(), &identity)?;
    let token = rig.token(0);
    let metrics = (0..WRITES).map(|number| {
        let body = format!("number{{miren_runner=\"liar\"}} {number} 1790000000000\n");
        peer.send(PeerRequest::write(Signal::Metrics, &token, body))
    });
    let logs = (0..WRITES).map(|number| {
        let body = format!("{{\"_msg\":\"m{number}\",\"_time\":\"2026-09-21T14:13:20Z\",\"entity\":\"e\"}}\n");
        peer.send(PeerRequest::write(Signal::Logs, &token, body))
    });
    // Over HTTP/1.1 each request that is under way takes a connection, of which a runner has a limited number.
    let at_once = if http == Http::One { 4 } else { WRITES };
    let writes = stream::iter(metrics.map(Either::Left).chain(logs.map(Either::Right)));
    for answer in writes.buffer_unordered(at_once).collect::<Vec<_>>().await {
        answer?.expect_delivered()?;
    }
    let samples = rig.metrics_store().samples().await?;
    assert_eq!(samples.len(), WRITES);
    assert!(samples.iter().all(|sample| sample.label("miren_runner") == "r1"));

    let plain = || PeerRequest::write(Signal::Metrics, &token, LINE);
    peer.send(PeerRequest::write(Signal::Metrics, &rig.token(1), LINE))
        .await?
        .expect_refusal(Reason::TokenRunnerMismatch)?;
    let unsigned = PeerRequest::write(Signal::Metrics, "x", LINE);
    peer.send(unsigned).await?.expect_refusal(Reason::TokenMalformed)?;
    let form = plain().header(http::header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    peer.send(form).await?.expect_refusal(Reason::ContentTypeUnsupported)?;
    let stream = plain().header(header::TELEMETRY_STREAM, "other");
    peer.send(stream).await?.expect_refusal(Reason::HeaderMalformed)?;
    let RigRelay::InProcess(relay) = rig.relay() else { return Err("the relay is elsewhere".into()) };
    assert!(relay.requests_over(Transport::Tcp) >= 2 * WRITES as u64 && relay.requests_over(Transport::Quic) == 0);
    Ok(())
}

async fn large(stack: Stack, http: Http) -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let identity = rig.cluster().issue(&rig.runner(0).id)?;
    let peer = PeerClient::start_over_tcp(stack, http, rig.relay_address(), rig.cluster().root_pem(), &identity)?;
    let largest = usize::try_from(limits::MAX_BODY_BYTES)?;
    // One line, and a comment that the store reads and skips.
    let body = |bytes| [LINE.as_bytes(), &vec![b'#'; bytes - LINE.len()]].concat();
    let write = |bytes| PeerRequest::write(Signal::Metrics, &rig.token(0), body(bytes));
    peer.send(write(largest)).await?.expect_delivered()?;
    // The answer comes while the body is on its way; some clients never see it then (RFC 9112 section 9.6).
    match peer.send(write(largest + 1)).await {
        Ok(answer) => assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{answer:?}"),
        Err(error) => assert!(stack == Stack::Requests, "{error}"),
    }
    peer.send(PeerRequest::write(Signal::Metrics, &rig.token(0), LINE)).await?.expect_delivered()?;
    let seen = async || match rig.built_in_store().requests().len() {
        2 => Ok(()),
        n => Err(format!("{n} requests")),
    };
    Ok(wait::until("two bodies", Duration::from_secs(5), seen).await?)
}

async fn strangers(stack: Stack, http: Http) -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let foreign = Cluster::new("foreign")?;
    let identity = foreign.issue(&rig.runner(0).id)?;
    let peer = PeerClient::start_over_tcp(stack, http, rig.relay_address(), rig.cluster().root_pem(), &identity)?;
    let answer = peer.send(PeerRequest::write(Signal::Metrics, &rig.token(0), LINE)).await;
    assert!(answer.is_err(), "{answer:?}");
    assert!(rig.built_in_store().requests().is_empty());
    Ok(())
}
