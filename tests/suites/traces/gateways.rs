//! Writers that are no runners: the relay's program, configured as an operator would, and clients that try what they may not.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use serde_json::Value;
use telemetry_certs::testing::{Leaf, Usage};
use telemetry_certs::{CertificateRefusal, Credentials, WriterRequest};
use telemetry_proto::policy::Policy;
use telemetry_proto::{Reason, Signal, Verdict, WriterName};
use telemetry_rig::http::HttpClient;
use telemetry_rig::net::free_address;
use telemetry_rig::raw::{RawClient, RawError};
use telemetry_rig::rig::{Rig, StoreKind};
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;
use tempfile::TempDir;

use super::DEADLINE;
use super::canary::text;

const TOKEN: &str = "static.token-of-the.gateway";
const EDGE_TOKEN: &str = "another-token";

/// A cluster with two gateways: `gw`, known by its SPIFFE ID, writes everything; `edge`, known by its common name, spans.
struct Gateways {
    rig: Rig,
    admin: HttpClient,
    folder: TempDir,
}

impl Gateways {
    async fn start() -> Result<Self, Box<dyn std::error::Error>> {
        let folder = TempDir::new()?;
        let admin = free_address()?;
        fs::write(folder.path().join("gw.token"), format!("\n  {TOKEN}\r\n"))?;
        fs::write(folder.path().join("edge.token"), EDGE_TOKEN)?;
        let settings = settings(&folder, admin);
        let rig = Rig::builder().traces(StoreKind::BuiltIn).relay_program(&settings).start().await?;
        Ok(Self { rig, admin: HttpClient::new(admin), folder })
    }

    fn gateway(&self) -> Result<Credentials, Box<dyn std::error::Error>> {
        let request = WriterRequest::new(WriterName::new("gw")?);
        Ok(self.rig.cluster().authority().issue_writer(&request)?.credentials()?)
    }

    /// Someone with this common name and nothing else.
    fn named(&self, name: &str) -> Result<Credentials, Box<dyn std::error::Error>> {
        let leaf = Leaf::blank().common_name(name).usages(&[Usage::Client]);
        Ok(leaf.issued_by(self.rig.cluster().authority()).credentials()?)
    }

    async fn connect(&self, credentials: &Credentials) -> Result<RawClient, RawError> {
        self.rig.raw_client_with(Some(credentials)).await
    }

    async fn status(&self) -> Result<Value, Box<dyn std::error::Error>> {
        Ok(serde_json::from_slice(&self.admin.get("/status").await?.1)?)
    }

    /// The value of a series; 0 if it is not there.
    async fn series(&self, series: &str) -> Result<f64, Box<dyn std::error::Error>> {
        let text = String::from_utf8(self.admin.get("/metrics").await?.1.to_vec())?;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(value.map(str::parse).transpose()?.unwrap_or_default())
    }
}

fn settings(folder: &TempDir, admin: SocketAddr) -> String {
    let token = |name: &str| toml::Value::from(folder.path().join(name).display().to_string());
    format!(
        r#"
        [admin]
        address = "{admin}"
        [[tenants]]
        name = "runners"
        match = [{{ runner = "*" }}]
        account = "1"
        [[tenants]]
        name = "gateways"
        account = "7:3"
        [[writers]]
        name = "gw"
        certificate_uri = "spiffe://rig/writer/gw"
        token_file = {}
        signals = ["metrics", "logs", "traces"]
        tenant = "gateways"
        [[writers]]
        name = "edge"
        certificate_common_name = "edge.example"
        token_file = {}
        signals = ["traces"]
        tenant = "gateways"
        "#,
        token("gw.token"),
        token("edge.token"),
    )
}

/// A span of someone who says that it is the runner `r1`.
fn claiming_span() -> Vec<u8> {
    let claims = vec![text("miren.runner.id", "r1"), text("service.name", "gateway")];
    let span = Span { trace_id: vec![1; 16], span_id: vec![2; 8], name: "s".to_owned(), ..Span::default() };
    let scope_spans = vec![ScopeSpans { spans: vec![span], ..ScopeSpans::default() }];
    let resource = Some(Resource { attributes: claims, ..Resource::default() });
    let resource_spans = vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

pub(crate) async fn a_gateway_writes_under_its_own_name_and_tenant_whatever_it_claims() -> TestResult {
    let gateways = Gateways::start().await?;
    let store = gateways.rig.built_in_store();
    let client = gateways.connect(&gateways.gateway()?).await?;
    let write = |signal: Signal, body: Vec<u8>| client.write(signal).token(TOKEN).body(body).send();
    write(Signal::Traces, claiming_span()).await?.expect_delivered()?;
    write(Signal::Metrics, b"up{miren_runner=\"r1\"} 1\n".to_vec()).await?.expect_delivered()?;
    write(Signal::Logs, b"{\"_msg\":\"m\",\"miren_runner\":\"r1\"}\n".to_vec()).await?.expect_delivered()?;
    // A runner's own series are not a gateway's to write: these go where its others go.
    let own = client.write(Signal::Metrics).token(TOKEN).header("miren-telemetry-stream", "operational");
    own.body("own{miren_runner=\"r1\"} 1\n").send().await?.expect_delivered()?;

    let spans = store.spans();
    assert_eq!((spans[0].runner(), spans[0].service.as_str()), ("writer:gw", "gateway"), "{spans:?}");
    for request in store.requests() {
        let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
        match request.path.as_str() {
            "/api/v1/import/prometheus" => {
                let pinned = "extra_label=miren_tenant%3Dgateways&extra_label=miren_runner%3Dwriter:gw";
                assert_eq!(request.query, pinned);
            }
            _ => assert_eq!((header("accountid"), header("projectid")), (Some("7"), Some("3")), "{request:?}"),
        }
        assert!(!String::from_utf8_lossy(&request.body).contains(TOKEN) && header("miren-workload-token").is_none());
    }
    let account = "7:3".parse()?;
    assert!(store.samples().iter().all(|sample| sample.label("miren_runner") == "writer:gw"));
    assert_eq!(store.samples().len(), 2);
    assert_eq!(store.log_lines_of(account)[0].field("miren_runner"), "writer:gw");

    let status = gateways.status().await?;
    let [gw, edge] = &status["writers"].as_array().ok_or("a list")?[..] else { return Err("two writers".into()) };
    assert_eq!((&gw["name"], &gw["tenant"]), (&"gw".into(), &"gateways".into()), "{status}");
    assert_eq!((&gw["connection"]["requests"], &gw["connection"]["refused"]), (&4.into(), &0.into()));
    assert_eq!((&edge["name"], &edge["connection"]), (&"edge".into(), &Value::Null));
    assert!(status["runners"].as_array().ok_or("a list")?.iter().all(|runner| runner["id"] != "writer:gw"));
    let log = gateways.rig.relay_program().log()?;
    assert!(!log.contains(TOKEN) && !log.contains(EDGE_TOKEN), "tokens are never logged");
    Ok(())
}

pub(crate) async fn a_gateway_needs_its_own_certificate_its_own_token_and_a_signal_of_its_own() -> TestResult {
    let gateways = Gateways::start().await?;
    let (rig, good) = (&gateways.rig, claiming_span());
    let gateway = gateways.connect(&gateways.gateway()?).await?;
    let edge = gateways.connect(&gateways.named("edge.example")?).await?;
    let runner = rig.raw_client(0).await?;
    let traces = |client: &RawClient, token: &str| client.write(Signal::Traces).token(token).body(good.clone()).send();

    // Another's token, none, a runner's; and a runner with a gateway's.
    for token in ["wrong", EDGE_TOKEN, &TOKEN[1..], &format!("{TOKEN}x"), &rig.token(0)] {
        traces(&gateway, token).await?.expect_refusal(Reason::TokenWrongWriter)?;
    }
    traces(&edge, TOKEN).await?.expect_refusal(Reason::TokenWrongWriter)?;
    traces(&runner, TOKEN).await?.expect_refusal(Reason::TokenMalformed)?;
    let bare = || gateway.write(Signal::Traces).body(good.clone());
    bare().send().await?.expect_refusal(Reason::TokenMissing)?;
    bare().header("authorization", format!("Bearer {TOKEN}")).send().await?.expect_refusal(Reason::TokenMissing)?;
    bare().token(TOKEN).token(TOKEN).send().await?.expect_refusal(Reason::TokenMalformed)?;
    // Another signal.
    let other = edge.write(Signal::Metrics).token(EDGE_TOKEN).body("up 1\n");
    other.send().await?.expect_refusal(Reason::TokenSignalNotGranted)?;
    // Tokens of runners are not for it.
    let mint = edge.request(http::Method::POST, "/_identity/token").body("{}");
    mint.send().await?.expect_refusal(Reason::MintNotAllowed)?;
    // No certificate, one that is nobody's, and names that only look like its own.
    let nobody = async |credentials: Option<&Credentials>| -> Result<RawError, String> {
        let outcome = match rig.raw_client_with(credentials).await {
            Ok(client) => traces(&client, EDGE_TOKEN).await,
            Err(error) => Err(error),
        };
        outcome.err().ok_or_else(|| "the relay answered".to_owned())
    };
    assert_eq!(nobody(None).await?.certificate_refusal(), Some(CertificateRefusal::NoCertificate));
    for name in ["stranger", "Edge.example", "edge.example.", "edge"] {
        assert!(matches!(nobody(Some(&gateways.named(name)?)).await?, RawError::Closed(_)), "{name}");
    }
    let both = Leaf::runner("r9").common_name("edge.example").issued_by(rig.cluster().authority()).credentials()?;
    let as_runner = gateways.connect(&both).await?;
    traces(&as_runner, EDGE_TOKEN).await?.expect_refusal(Reason::TokenMalformed)?;

    assert!(rig.built_in_store().requests().is_empty(), "nothing of all that reached the store");
    traces(&edge, EDGE_TOKEN).await?.expect_delivered()?;

    let refused = |route: &str, reason: Reason| {
        let verdict = reason.verdict();
        format!("telemetry_relay_requests_total{{route=\"{route}\",verdict=\"{verdict}\",reason=\"{reason}\"}}")
    };
    for (route, reason, count) in [
        ("traces", Reason::TokenWrongWriter, 6.0),
        ("traces", Reason::TokenMissing, 2.0),
        ("metrics", Reason::TokenSignalNotGranted, 1.0),
        ("token", Reason::MintNotAllowed, 1.0),
    ] {
        assert_eq!(gateways.series(&refused(route, reason)).await?, count, "{route} {reason}");
    }
    let status = gateways.status().await?;
    let lines = status["refusals"].as_array().ok_or("a list")?;
    let of = |runner: &str, reason: Reason| {
        lines.iter().any(|line| line["runner"] == runner && line["reason"] == reason.as_str())
    };
    assert!(of("writer:gw", Reason::TokenWrongWriter) && of("writer:edge", Reason::TokenSignalNotGranted), "{status}");
    assert_eq!(status["writers"][1]["connection"]["last_refusal"], "mint-not-allowed");
    Ok(())
}

/// A gateway that asks what it may send is not told to send what would be refused.
pub(crate) async fn a_gateway_is_told_of_the_signals_that_it_may_write_and_a_runner_of_all() -> TestResult {
    let gateways = Gateways::start().await?;
    let asks = async |client: &RawClient| -> Result<Policy, Box<dyn std::error::Error>> {
        let answer = client.request(http::Method::GET, "/_telemetry/policy").send().await?;
        Ok(serde_json::from_str(&answer.body)?)
    };
    let edge = asks(&gateways.connect(&gateways.named("edge.example")?).await?).await?;
    assert_eq!((&edge.signals[..], edge.traces.is_some()), (&[Signal::Traces][..], true));
    for client in [gateways.connect(&gateways.gateway()?).await?, gateways.rig.raw_client(0).await?] {
        assert_eq!(asks(&client).await?.signals, Signal::ALL);
    }
    // What is taken from it is not offered any more.
    let config = fs::read_to_string(gateways.rig.relay_program().folder().join("relay.toml"))?;
    let less = config.replacen("signals = [\"metrics\", \"logs\", \"traces\"]", "signals = [\"logs\"]", 1);
    gateways.rig.relay_program().replace(&[("relay.toml", &less)]).await?;
    let gw = asks(&gateways.connect(&gateways.gateway()?).await?).await?;
    assert_eq!((&gw.signals[..], gw.traces), (&[Signal::Logs][..], None));
    Ok(())
}

pub(crate) async fn another_token_in_the_file_is_the_one_that_counts_within_seconds() -> TestResult {
    let gateways = Gateways::start().await?;
    let client = gateways.connect(&gateways.gateway()?).await?;
    let send = |token: &'static str| client.write(Signal::Traces).token(token).body(claiming_span()).send();
    send(TOKEN).await?.expect_delivered()?;
    fs::write(gateways.folder.path().join("gw.token"), "the-next-one\n")?;
    let look = async || match send("the-next-one").await {
        Ok(response) if response.verdict() == Some(Verdict::Delivered) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait::until("the next token counts", DEADLINE, look).await?;
    send(TOKEN).await?.expect_refusal(Reason::TokenWrongWriter)?;
    // What can't be used changes nothing, and is told.
    fs::write(gateways.folder.path().join("gw.token"), " \n")?;
    let look = async || match gateways.status().await {
        Ok(status) if status["config"]["fault"].as_str().is_some_and(|fault| fault.contains("is empty")) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait::until("the fault shows", DEADLINE + Duration::from_secs(5), look).await?;
    send("the-next-one").await?.expect_delivered()?;
    Ok(())
}
