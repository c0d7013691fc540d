//! The contract of the Go runners: requests exactly as their client makes them are accepted.
//!
//! Their certificates are Ed25519 with the CN `runner-UUID` alone and both usages; their tokens are RS256 and may name no
//! runner; their metrics writer posts `text/plain` and their log writer `application/x-ndjson`, through quic-go.

use serde_json::json;
use telemetry_certs::testing::{Leaf, TestKey};
use telemetry_proto::claims::RunnerBinding;
use telemetry_proto::{Reason, Signal, header};
use telemetry_relay::gate::SignatureAlgorithm;
use telemetry_relay::issuer::SigningKey;
use telemetry_rig::raw::{RawClient, RawRequest};
use telemetry_rig::rig::{Rig, StoreKind, TokenBuilder};
use telemetry_rig::suite::TestResult;

telemetry_rig::suite! {
    a_go_runners_metrics_and_logs_are_accepted;
    a_go_runners_metrics_and_logs_are_in_the_real_stores needs [VictoriaMetrics, VictoriaLogs];
    a_token_without_a_runner_is_refused_unless_the_setting_says_so;
}

const UUID: &str = "0b2e9a6c-3b1f-4a55-9a0f-0d7f7a4f8c11";

const METRICS: &str = "memory_bytes{entity=\"sandbox/web-1\",miren_runner=\"0b2e\"} 104857600 1790000000000\n\
                       cpu_usage{entity=\"sandbox/web \\\"1\\\"\\\\\\n\"} 0.25 1790000000000\n\
                       up{} 1 1790000000000\n";
const LOGS: &str = "{\"_msg\":\" \",\"_time\":\"2026-09-21T14:13:20.123456789Z\",\"entity\":\"sandbox/web-1\",\"stream\":\"stdout\",\"trace_id\":\"\"}\n\
                    {\"_msg\":\"<a> \\u0026\",\"_time\":\"2026-09-21T14:13:20Z\",\"entity\":\"sandbox/web-1\",\"stream\":\"stderr\",\"trace_id\":\"t1\",\"level\":\"warn\"}\n";

/// As quic-go's HTTP/3 client sends it for `http.NewRequest("POST", url, bytes.Buffer)`.
fn as_go(client: &RawClient, signal: Signal, token: &str) -> RawRequest {
    let body = if signal == Signal::Metrics { METRICS } else { LOGS };
    client
        .write(signal)
        .header("accept-encoding", "gzip")
        .header("user-agent", "quic-go HTTP/3")
        .token(token)
        .body(body)
}

async fn go_runner(rig: &Rig) -> Result<(RawClient, String), Box<dyn std::error::Error>> {
    let leaf = Leaf::legacy_runner(UUID).key(TestKey::Ed25519).dns_name("coordinator.example");
    let client = rig.raw_client_with(Some(&leaf.issued_by(rig.cluster().authority()).credentials()?)).await?;
    rig.issuer().rotate(SigningKey::generate(SignatureAlgorithm::Rs256)?, |keys| rig.verifier().publish_keys(keys))?;
    let token = nameless_token(rig).sign(&rig.issuer().keys().signing());
    Ok((client, token))
}

fn nameless_token(rig: &Rig) -> TokenBuilder {
    let token = rig.token_for(&rig.runner(0).id).without("runner_id");
    token
        .claim("organization_id", "org_1")
        .claim("cluster_id", "cluster_1")
        .claim("jti", "5f3a")
        .claim("sub", "org:org_1:cluster:cluster_1:system:telemetrywriter")
        .claim("aud", json!(["miren-telemetry"]))
}

async fn a_go_runners_metrics_and_logs_are_accepted() -> TestResult {
    round_trip(StoreKind::BuiltIn).await
}

async fn a_go_runners_metrics_and_logs_are_in_the_real_stores() -> TestResult {
    round_trip(StoreKind::Real).await
}

async fn round_trip(stores: StoreKind) -> TestResult {
    let rig = Rig::builder().stores(stores).runner_binding(RunnerBinding::IfPresent).start().await?;
    let (client, token) = go_runner(&rig).await.map_err(|error| error.to_string())?;
    as_go(&client, Signal::Metrics, &token).send().await?.expect_delivered()?;
    let operational =
        as_go(&client, Signal::Metrics, &token).header(header::TELEMETRY_STREAM, header::STREAM_OPERATIONAL);
    operational.send().await?.expect_delivered()?;
    let logs = as_go(&client, Signal::Logs, &token).send().await?;
    logs.expect_delivered()?;
    // Anything else is a failure to them.
    assert!(matches!(logs.status.as_u16(), 200 | 204), "{logs:?}");

    let samples = rig.metrics_store().wait_for_samples(6).await?;
    assert_eq!(samples.len(), 6);
    assert!(samples.iter().all(|sample| sample.label("miren_runner") == UUID), "{samples:?}");
    assert_eq!(samples.iter().filter(|sample| sample.label("entity") == "sandbox/web \"1\"\\\n").count(), 2);
    let mut lines = rig.log_store().wait_for_log_lines(2).await?;
    lines.sort_by(|a, b| a.field("_msg").cmp(b.field("_msg")));
    assert_eq!(lines.len(), 2);
    assert_eq!((lines[1].field("_msg"), lines[1].field("trace_id")), ("<a> &", "t1"));
    for (line, stream) in lines.iter().zip(["stdout", "stderr"]) {
        let expected = [("entity", "sandbox/web-1"), ("miren_runner", UUID), ("stream", stream)];
        assert_eq!(line.stream, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }
    Ok(())
}

async fn a_token_without_a_runner_is_refused_unless_the_setting_says_so() -> TestResult {
    let rig = Rig::builder().start().await?;
    let (client, token) = go_runner(&rig).await.map_err(|error| error.to_string())?;
    as_go(&client, Signal::Metrics, &token).send().await?.expect_refusal(Reason::TokenMalformed)?;
    assert!(rig.built_in_store().requests().is_empty());
    Ok(())
}
