//! Tenants that share stores: each one's writes are readable under its account only, whatever a runner sends.
//!
//! VictoriaLogs is real, as a single node and as a cluster. So is VictoriaMetrics as a single node, which has no accounts:
//! there a pinned label tells tenants apart. Its cluster's programs are not in the Go modules that this repository builds
//! stores from (the module proxy does not serve the versions tagged `-cluster`). There the built-in store checks the paths,
//! and files by them.

use http::Method;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use telemetry_proto::{Reason, Signal};
use telemetry_relay::forward::Account;
use telemetry_rig::raw::{RawClient, RawRequest};
use telemetry_rig::rig::{Rig, StoreKind, tenant};
use telemetry_rig::stores::{LogLine, NO_ACCOUNT, Sample};
use telemetry_rig::suite::TestResult;

telemetry_rig::suite! {
    in_the_built_in_store_each_tenant_is_read_under_its_account_only;
    in_real_stores_each_tenant_is_read_under_its_account_only needs [VictoriaMetrics, VictoriaLogs];
    in_clusters_each_tenant_is_read_under_its_account_only needs [VictoriaLogs];
    in_the_built_in_store_each_tenants_spans_are_under_its_account_only;
    no_query_or_path_chooses_an_account;
    a_runner_of_no_tenant_is_refused;
}

const ACME: Account = Account { account: 12, project: 3 };
const OTHER: Account = Account { account: 4, project: 0 };

/// Headers with which a runner may try to choose another account. HTTP/3 knows no upper case: such a name is malformed
/// (RFC 9114 section 4.2), and goes no further than the listener.
const HEADERS: &[&[(&str, &str)]] = &[
    &[],
    &[("accountid", "7"), ("projectid", "7")],
    &[("accountid", "4"), ("projectid", "0")],
    &[("accountid", "12"), ("projectid", "3")],
    &[("accountid", "7"), ("accountid", "8"), ("projectid", "7"), ("projectid", "8")],
    &[("account_id", "7"), ("project_id", "7"), ("account-id", "7"), ("account.id", "7"), ("x-accountid", "7")],
    &[("accountid", "-1"), ("projectid", "-1")],
    &[("accountid", "4294967303"), ("projectid", "99999999999999999999")],
    &[("accountid", "0x7"), ("projectid", "0x7")],
    &[("accountid", "multitenant"), ("x-scope-orgid", "7"), ("tenantid", "7:7")],
    &[("accountid", ""), ("projectid", " ")],
    &[("accountid", "12, 7"), ("projectid", "3;7")],
    &[("vl-extra-fields", "miren_runner=r9"), ("vl-stream-fields", "n"), ("vl-msg-field", "n"), ("vl-debug", "1")],
    &[("x-original-url", "/insert/7/prometheus/api/v1/import/prometheus"), ("x-forwarded-prefix", "/insert/7")],
    &[("forwarded", "for=7"), ("cookie", "AccountID=7"), ("te", "trailers")],
];

/// Accounts under which something could turn up if any of this worked.
fn elsewhere() -> Vec<Account> {
    let numbers = [0, 3, 4, 7, 8, 12, 15, u32::MAX];
    let all = numbers.into_iter().flat_map(|account| numbers.map(|project| Account { account, project }));
    all.filter(|account| ![ACME, OTHER].contains(account)).collect()
}

async fn two_tenants(stores: StoreKind) -> Result<Rig, Box<dyn std::error::Error + Send + Sync>> {
    let tenants = [tenant("acme", "r1", "12:3"), tenant("other", "r2", "4")];
    let builder = Rig::builder().stores(stores).tenants(tenants).runners(3);
    // There is no real store for traces to be had.
    let builder = if stores == StoreKind::BuiltIn { builder.traces(stores) } else { builder };
    Ok(builder.start().await?)
}

/// A write whose body, too, names accounts.
fn write(rig: &Rig, client: &RawClient, runner: usize, signal: Signal, number: usize) -> RawRequest {
    let body = match signal {
        Signal::Metrics => format!(
            "up{{n=\"{number}\",from=\"r{}\",vm_account_id=\"7\",vm_project_id=\"7\",miren_tenant=\"x\"}} 1\n",
            runner + 1
        ),
        _ => format!(
            "{{\"_msg\":\"{number}\",\"from\":\"r{}\",\"AccountID\":\"7\",\"ProjectID\":7,\"_tenant\":\"7:7\"}}\n",
            runner + 1
        ),
    };
    client.write(signal).token(&rig.token(runner)).body(body)
}

async fn each_is_read_under_its_account_only(stores: StoreKind) -> TestResult {
    let rig = two_tenants(stores).await?;
    let clients = [rig.raw_client(0).await?, rig.raw_client(1).await?];
    for (number, headers) in HEADERS.iter().enumerate() {
        for (runner, client) in clients.iter().enumerate() {
            for signal in [Signal::Metrics, Signal::Logs] {
                let request = write(&rig, client, runner, signal, number);
                let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
                let answer = request.send().await?;
                answer.expect_delivered().map_err(|error| format!("{signal} {headers:?}: {error}"))?;
            }
        }
    }
    let expected = |runner: &str| {
        let mut all: Vec<_> =
            (0..HEADERS.len()).map(|n| (n.to_string(), runner.to_owned(), runner.to_owned())).collect();
        all.sort_unstable();
        all
    };
    for (account, runner) in [(ACME, "r1"), (OTHER, "r2")] {
        let lines = rig.log_store().wait_for_log_lines_of(account, HEADERS.len()).await?;
        assert_eq!(of_lines(&lines), expected(runner), "{account}");
        assert!(lines.iter().all(|line| line.stream.len() == 1), "filed by the runner alone");
    }
    let tenants = [(ACME, "r1", "acme"), (OTHER, "r2", "other")];
    if stores == StoreKind::Cluster {
        for (account, runner, _) in tenants {
            assert_eq!(of_samples(&rig.metrics_store().samples_of(account).await?), expected(runner), "{account}");
        }
    } else {
        let samples = rig.metrics_store().wait_for_samples(2 * HEADERS.len()).await?;
        for (_, runner, name) in tenants {
            let of_tenant: Vec<_> = samples.iter().filter(|s| s.label("miren_tenant") == name).cloned().collect();
            assert_eq!(of_samples(&of_tenant), expected(runner), "{name}");
        }
        assert_eq!(samples.len(), 2 * HEADERS.len());
    }
    for account in elsewhere() {
        assert_eq!(rig.log_store().log_lines_of(account).await?, [], "{account}");
        if stores == StoreKind::Cluster || account != NO_ACCOUNT {
            assert_eq!(rig.metrics_store().samples_of(account).await?, [], "{account}");
        }
    }
    Ok(())
}

/// What was written, who says to have written it, and who has.
fn of_lines(lines: &[LogLine]) -> Vec<(String, String, String)> {
    let mut all: Vec<_> = lines
        .iter()
        .map(|line| ["_msg", "from", "miren_runner"].map(|name| line.field(name).to_owned()).into())
        .collect();
    all.sort_unstable();
    all
}

fn of_samples(samples: &[Sample]) -> Vec<(String, String, String)> {
    let mut all: Vec<_> = samples
        .iter()
        .map(|sample| ["n", "from", "miren_runner"].map(|name| sample.label(name).to_owned()).into())
        .collect();
    all.sort_unstable();
    all
}

async fn in_the_built_in_store_each_tenant_is_read_under_its_account_only() -> TestResult {
    each_is_read_under_its_account_only(StoreKind::BuiltIn).await
}

async fn in_real_stores_each_tenant_is_read_under_its_account_only() -> TestResult {
    each_is_read_under_its_account_only(StoreKind::Real).await
}

async fn in_clusters_each_tenant_is_read_under_its_account_only() -> TestResult {
    each_is_read_under_its_account_only(StoreKind::Cluster).await
}

/// A span whose name says where it is from, and whose attributes name accounts, on the span, the scope and the resource.
fn span(number: usize, runner: usize) -> Vec<u8> {
    let text = |text: &str| Some(AnyValue { value: Some(Value::StringValue(text.to_owned())) });
    let named =
        |(key, value): (&str, &str)| KeyValue { key: key.to_owned(), value: text(value), ..KeyValue::default() };
    let names = || [("AccountID", "7"), ("ProjectID", "7"), ("tenant", "7:7"), ("miren.runner.id", "r9")];
    let attributes = || names().map(named).to_vec();
    let span = Span {
        trace_id: vec![1; 16],
        span_id: vec![2; 8],
        name: format!("{number} of r{}", runner + 1),
        attributes: attributes(),
        ..Span::default()
    };
    let scope = Some(InstrumentationScope { attributes: attributes(), ..Default::default() });
    let scope_spans = vec![ScopeSpans { scope, spans: vec![span], ..Default::default() }];
    let resource = Some(Resource { attributes: attributes(), ..Default::default() });
    let resource_spans = vec![ResourceSpans { resource, scope_spans, ..Default::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

async fn in_the_built_in_store_each_tenants_spans_are_under_its_account_only() -> TestResult {
    let rig = two_tenants(StoreKind::BuiltIn).await?;
    let clients = [rig.raw_client(0).await?, rig.raw_client(1).await?];
    for (number, headers) in HEADERS.iter().enumerate() {
        for (runner, client) in clients.iter().enumerate() {
            let token = rig.token_for(&rig.runner(runner).id).claim("signals", vec!["traces"]).sign(rig.signing_key());
            let request = client.write(Signal::Traces).token(&token).body(span(number, runner));
            let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
            request.send().await?.expect_delivered().map_err(|error| format!("{headers:?}: {error}"))?;
        }
    }
    let store = rig.built_in_store();
    for (account, runner) in [(ACME, "r1"), (OTHER, "r2")] {
        let spans = store.spans_of(account);
        let names: Vec<_> = spans.iter().map(|span| span.name.clone()).collect();
        let expected: Vec<_> = (0..HEADERS.len()).map(|number| format!("{number} of {runner}")).collect();
        assert_eq!(names, expected, "{account}");
        assert!(spans.iter().all(|span| span.runner() == runner && span.tag("AccountID").is_empty()), "{spans:?}");
    }
    assert_eq!(store.spans().len(), 2 * HEADERS.len(), "and nowhere else");
    Ok(())
}

async fn no_query_or_path_chooses_an_account() -> TestResult {
    let rig = two_tenants(StoreKind::BuiltIn).await?;
    let client = rig.raw_client(0).await?;
    let all = vec!["metrics", "logs", "traces"];
    let token = rig.token_for(&rig.runner(0).id).claim("signals", all).sign(rig.signing_key());
    let ask = |path: &str| client.request(Method::POST, path).token(&token).body("up 1\n");
    for signal in Signal::ALL {
        for query in
            ["AccountID=7&ProjectID=7", "accountid=7", "account_id=7", "multitenant=1", "extra_label=vm_account_id=7"]
        {
            let request = ask(&format!("{}?{query}", signal.write_path()));
            let answer = request.header("content-type", signal.content_type()).send().await?;
            answer.expect_refusal(Reason::QueryNotAllowed)?;
        }
    }
    for path in [
        "/insert/7/prometheus/api/v1/import/prometheus",
        "/insert/multitenant/prometheus/api/v1/import/prometheus",
        "/_telemetry/metrics/insert/multitenant/prometheus/api/v1/import/prometheus",
        "/_telemetry/7/logs/insert/jsonline",
        "/_telemetry/7/traces/insert/opentelemetry/v1/traces",
    ] {
        ask(path).send().await?.expect_refusal(Reason::RouteUnknown)?;
    }
    assert!(rig.built_in_store().requests().is_empty());
    Ok(())
}

async fn a_runner_of_no_tenant_is_refused() -> TestResult {
    let rig = two_tenants(StoreKind::BuiltIn).await?;
    let client = rig.raw_client(2).await?;
    for signal in [Signal::Metrics, Signal::Logs] {
        write(&rig, &client, 2, signal, 0)
            .header("accountid", "12")
            .send()
            .await?
            .expect_refusal(Reason::TenantUnknown)?;
    }
    assert!(rig.built_in_store().requests().is_empty());
    Ok(())
}
