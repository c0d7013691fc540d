//! The stores that the other suites believe: what goes in comes out, twice if it went in twice, and the built-in store
//! does as the real ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use http::StatusCode;
use telemetry_proto::Signal;
use telemetry_rig::http::HttpClient;
use telemetry_rig::program::Program;
use telemetry_rig::stores::{BuiltInStore, Cut, Fault, Store};
use telemetry_rig::suite::TestResult;

telemetry_rig::suite! {
    victoria_metrics_stores_what_is_written needs [VictoriaMetrics];
    victoria_logs_stores_what_is_written needs [VictoriaLogs];
    the_built_in_store_does_as_the_real_ones;
    victoria_metrics_comes_back_with_its_data needs [VictoriaMetrics];
    victoria_logs_comes_back_with_its_data needs [VictoriaLogs];
    the_built_in_store_comes_back_with_its_data;
    the_built_in_store_records_requests_and_misbehaves_as_told;
}

const NOW_MS: i64 = 1_790_000_000_000;

async fn victoria_metrics_stores_what_is_written() -> TestResult {
    metrics_round_trip(&Store::real(Program::VictoriaMetrics).await?).await
}

async fn victoria_logs_stores_what_is_written() -> TestResult {
    logs_round_trip(&Store::real(Program::VictoriaLogs).await?).await
}

async fn the_built_in_store_does_as_the_real_ones() -> TestResult {
    let store = Store::built_in().await?;
    metrics_round_trip(&store).await?;
    logs_round_trip(&store).await
}

async fn victoria_metrics_comes_back_with_its_data() -> TestResult {
    comes_back(&Store::real(Program::VictoriaMetrics).await?, Signal::Metrics).await
}

async fn victoria_logs_comes_back_with_its_data() -> TestResult {
    comes_back(&Store::real(Program::VictoriaLogs).await?, Signal::Logs).await
}

async fn the_built_in_store_comes_back_with_its_data() -> TestResult {
    let store = Store::built_in().await?;
    comes_back(&store, Signal::Metrics).await?;
    comes_back(&store, Signal::Logs).await
}

async fn the_built_in_store_records_requests_and_misbehaves_as_told() -> TestResult {
    let store = BuiltInStore::start().await?;
    let write = async |name: &str| {
        // A connection of its own, as one that breaks may have been closed before this request.
        let client = HttpClient::new(store.address());
        client.post("/api/v1/import/prometheus?extra_label=a=b", Some("text/plain"), format!("{name} 1\n")).await
    };

    store.script([
        Fault::Answer(StatusCode::SERVICE_UNAVAILABLE),
        Fault::StoreThenCut(Cut::BeforeHead),
        Fault::StoreThenCut(Cut::InsideHead),
        Fault::StoreThenCut(Cut::AfterHead),
        Fault::CloseAtOnce,
    ]);
    assert_eq!(write("refused").await?.0, StatusCode::SERVICE_UNAVAILABLE);
    for name in ["before", "inside", "after", "closed"] {
        assert!(write(name).await.is_err(), "{name}");
    }
    assert_eq!(write("good").await?.0, StatusCode::NO_CONTENT);

    let stored: Vec<String> = store.samples().into_iter().map(|sample| sample.name).collect();
    assert_eq!(stored, ["before", "inside", "after", "good"]);
    let requests = store.requests();
    assert_eq!(requests.len(), 6);
    assert_eq!(requests[0].query, "extra_label=a=b");
    assert_eq!(requests[0].body, "refused 1\n");
    assert_eq!(requests.iter().filter(|request| !request.complete).count(), 1);
    assert_eq!(store.connections(), 6);
    Ok(())
}

async fn metrics_round_trip(store: &Store) -> TestResult {
    let body = format!(
        "up{{entity=\"e\",x=\"1\",x=\"2\",miren_runner=\"evil\"}} 1.5 {NOW_MS}\n\
         bad.line\" x\n\
         up{{entity=\"e\",x=\"1\",x=\"2\"}} 1.5 {NOW_MS}\n\
         nan NaN {NOW_MS}\nempty{{a=\"\"}} -2 {NOW_MS}\n\
         quoted{{a=\"q\\\"\\\\\\n\"}} 0 {NOW_MS}\n"
    );
    let path = "/api/v1/import/prometheus?extra_label=miren_runner%3Dr6&extra_label=miren_runner=r7";
    let status = HttpClient::new(store.address()).post(path, Some("text/plain"), body).await?.0;
    assert_eq!(status, StatusCode::NO_CONTENT);

    let mut samples = store.wait_for_samples(4).await?;
    samples.sort_by(|a, b| a.name.cmp(&b.name));
    let seen: Vec<(&str, f64)> = samples.iter().map(|sample| (sample.name.as_str(), sample.value)).collect();
    assert_eq!(seen, [("empty", -2.0), ("quoted", 0.0), ("up", 1.5), ("up", 1.5)]);
    assert!(samples.iter().all(|sample| sample.label("miren_runner") == "r7" && sample.timestamp_ms == NOW_MS));
    assert_eq!(samples[0].labels.len(), 1, "an empty label is none");
    assert_eq!(samples[1].label("a"), "q\"\\\n");
    assert_eq!((samples[2].label("x"), samples[2].label("entity")), ("2", "e"));
    Ok(())
}

async fn logs_round_trip(store: &Store) -> TestResult {
    let line = r#"{"_msg":"hi","_time":"2026-09-01T00:00:00.123456789Z","entity":"e \"1\"","stream":"s","n":5,"o":{"p":true},"e":"","miren_runner":"evil"}"#;
    let path = "/insert/jsonline?extra_fields=miren_runner=r7&_stream_fields=miren_runner,entity,stream";
    let body = format!("{line}\nno json\n{line}\n");
    let status = HttpClient::new(store.address()).post(path, Some("application/x-ndjson"), body).await?.0;
    assert_eq!(status, StatusCode::OK);

    let lines = store.wait_for_log_lines(2).await?;
    assert_eq!(lines.len(), 2);
    for line in lines {
        let fields = [
            ("_msg", "hi"),
            ("_time", "2026-09-01T00:00:00.123456789Z"),
            ("entity", "e \"1\""),
            ("miren_runner", "r7"),
            ("n", "5"),
            ("o.p", "true"),
            ("stream", "s"),
        ];
        assert_eq!(line.fields, map(&fields));
        assert_eq!(line.stream, map(&[("entity", "e \"1\""), ("miren_runner", "r7"), ("stream", "s")]));
    }
    Ok(())
}

async fn comes_back(store: &Store, signal: Signal) -> TestResult {
    let address = store.address();
    write_one(address, signal).await?;
    store.stop().await?;
    assert!(write_one(address, signal).await.is_err(), "a stopped store answers");
    store.restart().await?;
    store.kill().await?;
    assert!(write_one(address, signal).await.is_err(), "a killed store answers");
    store.restart().await?;
    assert_eq!(store.address(), address);
    write_one(address, signal).await?;
    let count = match signal {
        Signal::Metrics => store.wait_for_samples(2).await?.len(),
        _ => store.wait_for_log_lines(2).await?.len(),
    };
    assert_eq!(count, 2);
    assert!(!store.own_metrics().await?.is_empty());
    Ok(())
}

async fn write_one(address: SocketAddr, signal: Signal) -> TestResult {
    let body = match signal {
        Signal::Metrics => Bytes::from(format!("up 1 {NOW_MS}\n")),
        _ => Bytes::from_static(b"{\"_msg\":\"hi\",\"_time\":\"2026-09-01T00:00:00Z\"}\n"),
    };
    let (status, _) = HttpClient::new(address).post(signal.store_path(), Some(signal.content_type()), body).await?;
    assert!(status.is_success(), "{status}");
    Ok(())
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}
