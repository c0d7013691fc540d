//! Tenants, from the request of a runner to what its store sees.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use support::{Runner, Store, Tokens, body_of, send, spawn, until};
use telemetry_proto::Signal;
use telemetry_relay::RelayService;
use telemetry_relay::admission::{Rate, TenantLimits};
use telemetry_relay::tenancy::{AccountSource, Rule, TenantPlan, TenantSettings};
use tokio::time::Instant;

/// Two tenants, A with account 12:3 and the runners `a-*`, B with account 4 and all runners of organisation B.
fn two_tenants() -> TenantPlan {
    let tenant = |name: &str, account: &str, rule| TenantSettings {
        name: name.parse().unwrap(),
        rules: vec![rule],
        account: Some(AccountSource::Given(account.parse().unwrap())),
        signals: None,
        limits: TenantLimits::default(),
    };
    let of_a = Rule { runner: Some("a-*".parse().unwrap()), ..Rule::default() };
    let of_b = Rule { certificate_organization: Some("B".to_owned()), ..Rule::default() };
    TenantPlan { tenants: vec![tenant("A", "12:3", of_a), tenant("B", "4", of_b)], ..TenantPlan::default() }
}

/// A relay that divides one store, which stands for all three, among the tenants of a plan.
struct Bench {
    store: Store,
    service: RelayService,
    a: Runner,
    b: Runner,
    tokens: Tokens,
}

impl Bench {
    async fn with(cluster: bool, plan: TenantPlan) -> Self {
        let tokens = Tokens::new();
        let store = Store::start().await;
        let mut builder = tokens.relay();
        for signal in Signal::ALL {
            let mut settings = store.settings();
            settings.cluster = cluster;
            builder = builder.store(signal, settings);
        }
        let tenants = plan.check(&builder.stores()).unwrap();
        let service = builder.tenants(tenants).build();
        let (a, b) = (tokens.runner("a-1", "", ""), tokens.runner("b-1", "B", ""));
        Self { store, service, a, b, tokens }
    }

    async fn new() -> Self {
        Self::with(true, two_tenants()).await
    }

    /// A's and B's requests at the stores, and those that wait.
    fn under_way(&self) -> [(u64, usize); 2] {
        let tenants = self.service.tenancy().tenants();
        [0, 1].map(|i| (tenants[i].allowance().in_flight(), tenants[i].allowance().waiting()))
    }
}

fn attacks() -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
    vec![
        ("one", vec![("AccountID", "7"), ("ProjectID", "7")]),
        ("twice", vec![("AccountID", "7"), ("AccountID", "8"), ("ProjectID", "7"), ("ProjectID", "8")]),
        ("in other cases", vec![("accountid", "7"), ("ACCOUNTID", "8"), ("aCCOUNTiD", "9"), ("PROJECTID", "7")]),
        ("with other signs", vec![("Account_ID", "7"), ("account-id", "7"), ("Account.ID", "7"), ("X-AccountID", "7")]),
        ("negative", vec![("AccountID", "-1"), ("ProjectID", "-1")]),
        ("huge", vec![("AccountID", "4294967308"), ("ProjectID", "99999999999999999999")]),
        ("hex", vec![("AccountID", "0x7"), ("ProjectID", "0xffffffff")]),
        ("multitenant", vec![("AccountID", "multitenant"), ("X-Scope-OrgID", "7")]),
        ("empty", vec![("AccountID", ""), ("ProjectID", " ")]),
        ("lists", vec![("AccountID", "12, 7"), ("ProjectID", "3;7")]),
        (
            "arguments of the store",
            vec![
                ("VL-Extra-Fields", "miren_runner=other"),
                ("VL-Stream-Fields", "x"),
                ("vl-msg-field", "x"),
                ("VL-Time-Field", "x"),
                ("VL-Ignore-Fields", "miren_runner"),
                ("VL-Debug", "1"),
                ("VL_Extra_Fields", "a=b"),
            ],
        ),
        (
            "ways around",
            vec![("X-Original-URL", "/insert/7/prometheus"), ("X-Forwarded-Prefix", "/insert/7"), ("Host", "x")],
        ),
        ("hop by hop", vec![("Connection", "accountid, projectid"), ("TE", "trailers")]),
    ]
}

const A_SEES: [(Signal, &str); 3] = [
    (Signal::Metrics, "/insert/12:3/prometheus/api/v1/import/prometheus?extra_label=miren_runner%3Da-1"),
    (Signal::Logs, "/insert/jsonline?extra_fields=miren_runner%3Da-1&_stream_fields=miren_runner,entity,stream"),
    (Signal::Traces, "/insert/opentelemetry/v1/traces"),
];

#[tokio::test]
async fn lesson_5_whatever_headers_a_runner_sends_one_account_goes_upstream_and_it_is_its_own() {
    let bench = Bench::new().await;
    for (signal, target) in A_SEES {
        for (attack, headers) in attacks() {
            let mut request = bench.a.write(signal);
            for (name, value) in headers {
                let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
                request.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
            }
            let seen = send(&bench.service, request).await;
            assert_eq!(seen.brief(), "204", "{signal}, {attack}");
            let [recorded] = &bench.store.take()[..] else { panic!("{signal}, {attack}: one request goes upstream") };
            assert_eq!(recorded.target, target, "{signal}, {attack}");
            let accounts = if signal == Signal::Metrics { (vec![], vec![]) } else { (vec!["12"], vec!["3"]) };
            assert_eq!((recorded.values("AccountID"), recorded.values("ProjectID")), accounts, "{signal}, {attack}");
            let known = ["content-type", "content-length", "host", "accountid", "projectid"];
            let others: Vec<_> = recorded.headers.keys().filter(|name| !known.contains(&name.as_str())).collect();
            assert!(others.is_empty(), "{signal}, {attack}: {others:?} went upstream");
        }
    }
}

#[tokio::test]
async fn lesson_5_no_query_chooses_the_tenant() {
    let bench = Bench::new().await;
    for signal in Signal::ALL {
        for query in [
            "AccountID=7",
            "accountid=7&ProjectID=7",
            "account_id=7",
            "extra_label=miren_tenant=B",
            "extra_label=vm_account_id=7",
            "extra_filters[]=x",
            "multitenant=1",
            "_msg_field=m&AccountID=7",
            "_msg_field=m%26AccountID%3D7&x",
            "%41ccountID=7",
        ] {
            let mut request = bench.a.write(signal);
            *request.uri_mut() = format!("{}?{query}", signal.write_path()).parse().unwrap();
            assert_eq!(send(&bench.service, request).await.brief(), "400 query-not-allowed", "{signal} {query}");
        }
    }
    // What is allowed there is escaped, and stays behind what is pinned.
    let mut request = bench.a.write(Signal::Logs);
    *request.uri_mut() = format!("{}?_msg_field=m%26AccountID%3D7", Signal::Logs.write_path()).parse().unwrap();
    assert_eq!(send(&bench.service, request).await.brief(), "204");
    let recorded = bench.store.recorded();
    assert_eq!(recorded.len(), 1);
    assert_eq!(recorded[0].target, format!("{}&_msg_field=m%26AccountID%3D7", A_SEES[1].1));
}

#[tokio::test]
async fn lesson_5_no_path_chooses_the_tenant() {
    let bench = Bench::new().await;
    for path in [
        "/insert/7/prometheus/api/v1/import/prometheus",
        "/insert/multitenant/prometheus/api/v1/import/prometheus",
        "/_telemetry/metrics/insert/multitenant/prometheus/api/v1/import/prometheus",
        "/_telemetry/metrics/../../insert/7/prometheus/api/v1/import/prometheus",
        "/_telemetry/metrics/%2e%2e/insert/7/prometheus/api/v1/import/prometheus",
        "/_telemetry/7/logs/insert/jsonline",
        "/_telemetry/logs/7/insert/jsonline",
        "//_telemetry/logs/insert/jsonline",
    ] {
        let mut request = bench.a.write(Signal::Metrics);
        *request.uri_mut() = path.parse().unwrap();
        assert_eq!(send(&bench.service, request).await.brief(), "404 route-unknown", "{path}");
    }
    assert!(bench.store.recorded().is_empty());
}

#[tokio::test]
async fn lesson_5_no_body_chooses_the_tenant() {
    let label = "vm_account_id=\"7\",vm_project_id=\"7\",miren_tenant=\"B\",miren_runner=\"b-1\"";
    let body = format!("up{{{label}}} 1\n");
    // In a cluster the account is in the path, and the form in which the body chooses it is out of reach.
    let bench = Bench::new().await;
    assert_eq!(send(&bench.service, bench.a.write_of(Signal::Metrics, body.clone())).await.brief(), "204");
    assert_eq!(bench.store.take()[0].target, A_SEES[0].1);
    // A single node overwrites the labels of the body with these, and of two the last one wins.
    let bench = Bench::with(false, two_tenants()).await;
    assert_eq!(send(&bench.service, bench.a.write_of(Signal::Metrics, body.clone())).await.brief(), "204");
    let recorded = &bench.store.take()[0];
    let pinned = "/api/v1/import/prometheus?extra_label=miren_tenant%3DA&extra_label=miren_runner%3Da-1";
    assert_eq!((recorded.target.as_str(), &recorded.body[..]), (pinned, body.as_bytes()));
}

#[tokio::test]
async fn each_tenant_has_its_own_account_on_every_route() {
    let bench = Bench::new().await;
    for signal in [Signal::Logs, Signal::Traces] {
        for (runner, account) in [(&bench.a, ("12", "3")), (&bench.b, ("4", "0")), (&bench.a, ("12", "3"))] {
            assert_eq!(send(&bench.service, runner.write(signal)).await.brief(), "204");
            let recorded = &bench.store.take()[0];
            let (project, account_id) = (vec![account.1], vec![account.0]);
            assert_eq!((recorded.values("AccountID"), recorded.values("ProjectID")), (account_id, project));
        }
    }
    assert_eq!(send(&bench.service, bench.b.write(Signal::Metrics)).await.brief(), "204");
    assert!(bench.store.take()[0].target.starts_with("/insert/4:0/prometheus/"));
}

#[tokio::test]
async fn without_tenants_nothing_names_one() {
    let tokens = Tokens::new();
    let store = Store::start().await;
    let builder =
        Signal::ALL.into_iter().fold(tokens.relay(), |builder, signal| builder.store(signal, store.settings()));
    let service = builder.build();
    for signal in Signal::ALL {
        assert_eq!(send(&service, tokens.runner("anyone", "", "").write(signal)).await.brief(), "204");
    }
    for recorded in store.take() {
        assert!(!recorded.target.contains("tenant"), "{}", recorded.target);
        assert_eq!((recorded.values("AccountID"), recorded.values("ProjectID")), (vec![], vec![]));
    }
}

#[tokio::test]
async fn lesson_4_a_form_is_415_and_nothing_arrives() {
    let bench = Bench::new().await;
    for signal in Signal::ALL {
        for form in [
            "application/x-www-form-urlencoded",
            "application/x-www-form-urlencoded; charset=utf-8",
            "APPLICATION/X-WWW-FORM-URLENCODED",
            "multipart/form-data; boundary=x",
        ] {
            let mut request = bench.a.write_of(signal, "extra_label=miren_tenant=B&AccountID=7");
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(form));
            assert_eq!(send(&bench.service, request).await.brief(), "415 content-type-unsupported", "{signal} {form}");
        }
        let mut request = bench.a.write_of(signal, "extra_label=miren_tenant=B");
        request.headers_mut().append(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        assert_eq!(send(&bench.service, request).await.brief(), "415 content-type-unsupported", "{signal}, two types");
    }
    assert!(bench.store.recorded().is_empty());
}

#[tokio::test]
async fn lesson_6_bodies_that_trickle_hold_no_place() {
    let bench = Bench::new().await;
    let mut trickling = Vec::new();
    for signal in [Signal::Metrics, Signal::Logs, Signal::Metrics, Signal::Logs] {
        let (body, request) = bench.a.trickle(signal, 100);
        let response = spawn(&bench.service, request);
        // When the relay takes a second piece, it has read the first and waits for more.
        body.send(b"u").await;
        body.send(b"p").await;
        trickling.push((body, response));
    }
    assert_eq!(send(&bench.service, bench.a.write(Signal::Metrics)).await.brief(), "204", "A's fifth");
    assert_eq!(send(&bench.service, bench.b.write(Signal::Metrics)).await.brief(), "204", "B's first");
    assert_eq!(bench.store.recorded().len(), 2, "and nothing of the four has gone anywhere");
    for (body, response) in trickling {
        drop(body);
        assert_eq!(response.await.unwrap().brief(), "400 length-mismatch");
    }
    assert_eq!((bench.under_way(), bench.service.reserved_body_bytes()), ([(0, 0), (0, 0)], 0));
}

#[tokio::test]
async fn lesson_7_the_fifth_waits_then_is_told_when_to_come_back_and_costs_another_tenant_nothing() {
    let mut plan = two_tenants();
    plan.tenants[0].limits.max_wait = Duration::from_millis(300);
    let bench = Bench::with(true, plan).await;
    bench.store.hold();
    let first: Vec<_> = [Signal::Metrics, Signal::Logs, Signal::Traces, Signal::Logs]
        .map(|s| spawn(&bench.service, bench.a.write(s)))
        .into();
    bench.store.arrived(4).await;
    let before = Instant::now();
    let fifth = send(&bench.service, bench.a.write(Signal::Metrics)).await;
    assert_eq!(fifth.brief(), "429 tenant-busy");
    assert!(before.elapsed() >= Duration::from_millis(300), "it waits first");
    assert!((1..=300).contains(&fifth.retry_after()));
    assert_eq!(bench.under_way()[0], (4, 0));

    let of_b = spawn(&bench.service, bench.b.write(Signal::Metrics));
    bench.store.arrived(5).await;
    bench.store.release(5);
    assert_eq!(of_b.await.unwrap().brief(), "204");
    for response in first {
        assert_eq!(response.await.unwrap().brief(), "204");
    }
}

#[tokio::test]
async fn lesson_7_a_waiter_that_goes_away_frees_its_place_at_once() {
    let mut plan = two_tenants();
    plan.tenants[0].limits.max_in_flight = 1;
    plan.tenants[0].limits.max_waiting = 1;
    let bench = Bench::with(true, plan).await;
    bench.store.hold();
    let first = spawn(&bench.service, bench.a.write(Signal::Metrics));
    bench.store.arrived(1).await;
    let waiter = spawn(&bench.service, bench.a.write(Signal::Metrics));
    until(|| bench.under_way()[0] == (1, 1)).await;
    assert_eq!(send(&bench.service, bench.a.write(Signal::Logs)).await.brief(), "429 tenant-busy", "nowhere to wait");
    waiter.abort();
    let _ = waiter.await;
    assert_eq!(bench.under_way()[0], (1, 0));
    let next = spawn(&bench.service, bench.a.write(Signal::Metrics));
    until(|| bench.under_way()[0] == (1, 1)).await;
    bench.store.release(2);
    assert_eq!((first.await.unwrap().brief(), next.await.unwrap().brief()), ("204".to_owned(), "204".to_owned()));
    assert_eq!(bench.store.recorded().len(), 2, "the one that went away never reached the store");
}

/// Lesson 10, as far as it can be seen here: whatever is given up, at whatever stage, everything comes back.
#[tokio::test]
async fn lesson_10_requests_that_are_given_up_give_everything_back() {
    let bench = Bench::new().await;
    for i in 0..500_u32 {
        let (body, request) = bench.a.trickle(Signal::Logs, 17);
        let response = spawn(&bench.service, request);
        if i % 3 > 0 {
            body.send(b"{\"_msg\":\"hello\"}\n").await;
        }
        if i % 5 == 0 {
            tokio::task::yield_now().await;
        }
        response.abort();
    }
    until(|| bench.under_way() == [(0, 0), (0, 0)] && bench.service.reserved_body_bytes() == 0).await;
    assert_eq!(send(&bench.service, bench.a.write(Signal::Logs)).await.brief(), "204");
}

#[tokio::test]
async fn the_principal_chooses_and_whom_nobody_lists_is_refused() {
    let mut plan = two_tenants();
    let of_token = Rule { token_organization: Some("acme".to_owned()), ..Rule::default() };
    plan.tenants[1].rules.push(of_token);
    let bench = Bench::with(true, plan).await;
    for (id, certificate, token, account) in [
        ("a-2", "B", "acme", Some("12")),
        ("x", "B", "", Some("4")),
        ("x", "", "acme", Some("4")),
        ("x", "b", "Acme", None),
        ("A-1", "", "", None),
        ("x", "acme", "B", None),
    ] {
        let runner = bench.tokens.runner(id, certificate, token);
        let seen = send(&bench.service, runner.write(Signal::Logs)).await;
        let recorded = bench.store.take();
        match account {
            Some(account) => assert_eq!(recorded[0].values("AccountID"), [account], "{id} {certificate} {token}"),
            None => {
                assert_eq!(seen.brief(), "403 tenant-unknown", "{id} {certificate} {token}");
                assert!(recorded.is_empty());
            }
        }
    }
}

#[tokio::test]
async fn a_tenant_writes_what_it_is_said_to_write() {
    let mut plan = two_tenants();
    plan.tenants[0].signals = Some(vec![Signal::Logs]);
    let bench = Bench::with(true, plan).await;
    assert_eq!(send(&bench.service, bench.a.write(Signal::Metrics)).await.brief(), "403 signal-disabled");
    assert_eq!(send(&bench.service, bench.a.write(Signal::Logs)).await.brief(), "204");
    assert_eq!(send(&bench.service, bench.b.write(Signal::Metrics)).await.brief(), "204");
}

/// Validation refuses this; an embedder who goes around it still files nothing under an account of nobody.
#[tokio::test]
async fn where_an_account_is_needed_and_missing_nothing_arrives() {
    let tokens = Tokens::new();
    let store = Store::start().await;
    let mut plan = two_tenants();
    plan.tenants[0].account = None;
    let tenants = plan.check(&Default::default()).unwrap();
    let mut cluster = store.settings();
    cluster.cluster = true;
    let service =
        tokens.relay().store(Signal::Metrics, cluster).store(Signal::Logs, store.settings()).tenants(tenants).build();
    for signal in [Signal::Metrics, Signal::Logs] {
        let seen = send(&service, tokens.runner("a-1", "", "").write(signal)).await;
        assert_eq!(seen.brief(), "403 signal-disabled");
        assert!(seen.text.contains("needs an account"), "{}", seen.text);
    }
    assert!(store.recorded().is_empty());
}

#[tokio::test]
async fn a_tenant_over_its_rate_is_told_when_there_is_room_and_another_is_not_slowed() {
    let mut plan = two_tenants();
    let rate = |per_second: u64, burst: u64| {
        Some(Rate { per_second: per_second.try_into().unwrap(), burst: burst.try_into().unwrap() })
    };
    plan.tenants[0].limits.rates.requests = rate(1, 3);
    plan.tenants[1].limits.runner.rates.bytes = rate(10, 100);
    let bench = Bench::with(true, plan).await;
    for _ in 0..3 {
        assert_eq!(send(&bench.service, bench.a.write(Signal::Metrics)).await.brief(), "204");
    }
    let refused = send(&bench.service, bench.a.write(Signal::Logs)).await;
    assert_eq!((refused.brief().as_str(), refused.retry_after()), ("429 rate-limited", 1));
    let another = send(&bench.service, bench.tokens.runner("a-2", "", "").write(Signal::Logs)).await;
    assert_eq!((another.brief().as_str(), another.retry_after()), ("429 rate-limited", 2), "one after the other");

    let large = vec![b'\n'; 100];
    assert_eq!(send(&bench.service, bench.b.write_of(Signal::Metrics, large.clone())).await.brief(), "204");
    let refused = send(&bench.service, bench.b.write_of(Signal::Metrics, large.clone())).await;
    assert_eq!((refused.brief().as_str(), refused.retry_after()), ("429 rate-limited", 10));
    let other_runner = bench.tokens.runner("b-2", "B", "");
    assert_eq!(send(&bench.service, other_runner.write_of(Signal::Metrics, large)).await.brief(), "204");

    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(send(&bench.service, bench.a.write(Signal::Logs)).await.brief(), "204", "it was told so");
}

#[tokio::test]
async fn memory_is_shared_by_tenants_and_runners() {
    let mut plan = two_tenants();
    plan.tenants[0].limits.memory_bytes = Some(1_000);
    plan.tenants[0].limits.max_waiting = 1;
    let bench = Bench::with(true, plan).await;
    let (_body, request) = bench.a.trickle(Signal::Logs, 1_000);
    let _trickling = spawn(&bench.service, request);
    until(|| bench.service.reserved_body_bytes() == 1_000).await;
    // The one that may wait, of another runner of A, so that the tenant's share is what it waits for.
    let (_body, request) = bench.tokens.runner("a-2", "", "").trickle(Signal::Logs, 1_000);
    let _waiting = spawn(&bench.service, request);
    tokio::task::yield_now().await;
    let refused = send(&bench.service, bench.tokens.runner("a-3", "", "").write(Signal::Logs)).await;
    assert_eq!(refused.brief(), "429 memory-share-exhausted");
    assert_eq!(send(&bench.service, bench.b.write(Signal::Logs)).await.brief(), "204");
}

#[tokio::test]
async fn tenants_are_replaced_while_the_relay_runs() {
    let bench = Bench::new().await;
    bench.store.hold();
    let running = spawn(&bench.service, bench.a.write(Signal::Logs));
    bench.store.arrived(1).await;
    let stores = telemetry_relay::tenancy::Stores::default();

    let mut only_b = two_tenants();
    only_b.tenants.remove(0);
    let published = bench.service.tenancy().publish(&only_b.check(&stores).unwrap(), []);
    let removed: Vec<_> = published.removed.iter().map(|t| (t.name.as_str(), t.active_runners)).collect();
    assert_eq!(removed, [("A", 1)], "says how many runners there are");
    assert_eq!(send(&bench.service, bench.a.write(Signal::Logs)).await.brief(), "403 tenant-unknown");
    bench.store.release(1);
    assert_eq!(running.await.unwrap().brief(), "204", "what is running goes on");

    let mut moved = two_tenants();
    moved.tenants[0].account = Some(AccountSource::Derived { namespace: "a".to_owned(), uid: "1".to_owned() });
    let _ = bench.service.tenancy().publish(&moved.check(&stores).unwrap(), []);
    bench.store.take();
    bench.store.release(1);
    assert_eq!(send(&bench.service, bench.a.write(Signal::Logs)).await.brief(), "204");
    let derived = telemetry_relay::tenancy::derived_account("a", "1");
    assert_eq!(bench.store.take()[0].values("AccountID"), [derived.account.to_string()]);
}

#[tokio::test]
async fn each_tenant_has_its_metrics_and_takes_them_along() {
    let mut plan = two_tenants();
    plan.tenants[0].signals = Some(vec![Signal::Logs]);
    let bench = Bench::with(true, plan).await;
    send(&bench.service, bench.a.write(Signal::Logs)).await;
    send(&bench.service, bench.a.write(Signal::Metrics)).await;
    let text = || {
        let mut registry = prometheus_client::registry::Registry::default();
        bench.service.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    };
    let len = body_of(Signal::Logs).len();
    let before = text();
    for line in [
        "telemetry_relay_tenant_requests_total{tenant=\"A\",signal=\"logs\",verdict=\"delivered\",reason=\"\"} 1",
        "telemetry_relay_tenant_requests_total{tenant=\"A\",signal=\"metrics\",verdict=\"forbidden\",reason=\"signal-disabled\"} 1",
        "telemetry_relay_tenant_requests_total{tenant=\"B\",signal=\"logs\",verdict=\"delivered\",reason=\"\"} 0",
        &format!("telemetry_relay_tenant_received_bytes_total{{tenant=\"A\",signal=\"logs\"}} {len}"),
        &format!("telemetry_relay_tenant_forwarded_bytes_total{{tenant=\"A\",signal=\"logs\"}} {len}"),
        "telemetry_relay_tenant_in_flight{tenant=\"A\"} 0",
        "telemetry_relay_tenant_waiting{tenant=\"A\"} 0",
        "telemetry_relay_tenant_body_memory_bytes{tenant=\"A\"} 0",
        "telemetry_relay_tenant_active_runners{tenant=\"A\"} 1",
        "telemetry_relay_tenant_wait_seconds_count{tenant=\"A\"} 1",
    ] {
        assert!(before.lines().any(|l| l == line), "{line:?} is not in:\n{before}");
    }
    let mut only_b = two_tenants();
    only_b.tenants.remove(0);
    let _ = bench.service.tenancy().publish(&only_b.check(&Default::default()).unwrap(), []);
    assert!(!text().contains("tenant=\"A\""));
}
