//! A relay takes another configuration while it runs: certificates, revocations, removed runners, keys.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "support/files.rs"]
mod files;
#[path = "listener/harness.rs"]
mod harness;

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{Buf, Bytes};
use files::{CONFIG, crl, load, signing_key, write_certificate};
use harness::*;
use http::{Method, Request, StatusCode};
use telemetry_certs::testing::Leaf;
use telemetry_certs::{Issued, WriterRequest};
use telemetry_h3::client::SendRequest;
use telemetry_h3::transport::TransportLimits;
use telemetry_proto::mint::{MintRequest, MintResponse};
use telemetry_proto::{Reason, Signal, WriterName, header};
use telemetry_relay::gate::{KeySet, MAX_KEYS, SignatureAlgorithm};
use telemetry_relay::issuer::SigningKey;
use telemetry_relay::running::{Applied, ApplyError, Running};
use tempfile::TempDir;

/// A relay that runs from files. Its stores are away, which no test here minds.
struct Relay {
    cluster: Cluster,
    dir: TempDir,
    running: Running,
}

impl Relay {
    async fn start() -> Self {
        Self::start_with(CONFIG).await
    }

    async fn start_with(config: &str) -> Self {
        let (cluster, dir) = (Cluster::new(), TempDir::new().unwrap());
        files::write_all(dir.path(), &cluster, config);
        let running = Running::start(load(dir.path()).unwrap()).await.unwrap();
        Self { cluster, dir, running }
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.dir.path().join(name)).unwrap()
    }

    /// Reads the files anew and puts them in force.
    fn reload(&self) -> Applied {
        self.running.apply(load(self.dir.path()).unwrap()).unwrap()
    }

    async fn connect(&self, issued: &Issued) -> Client {
        let tls = self.cluster.client_tls(issued);
        let address = self.running.listener().local_addr();
        within(Client::dial(address, tls, TransportLimits::default())).await.unwrap()
    }
}

async fn call(
    requests: &mut SendRequest,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: Vec<u8>,
) -> (StatusCode, Option<Reason>, Bytes) {
    let length = Some(body.len());
    call_with(requests, method, path, token, body, length).await
}

async fn call_with(
    requests: &mut SendRequest,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: Vec<u8>,
    length: Option<usize>,
) -> (StatusCode, Option<Reason>, Bytes) {
    let mut request = Request::builder().method(method).uri(format!("https://{COORDINATOR}{path}"));
    if let Some(length) = length {
        request = request.header("content-length", length);
    }
    if let Some(token) = token {
        request = request.header(header::WORKLOAD_TOKEN, token);
    }
    let exchange = async {
        let mut stream = requests.send_request(request.body(()).unwrap()).await?;
        stream.send_data(body.into()).await?;
        stream.finish().await?;
        let head = stream.recv_response().await?;
        let mut body = Vec::new();
        while let Some(mut data) = stream.recv_data().await? {
            body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        Ok::<_, h3::error::StreamError>((head, Bytes::from(body)))
    };
    let (head, body) = within(exchange).await.unwrap();
    let reason = head.headers().get(header::REASON).and_then(|value| Reason::from_header(value.as_bytes()));
    (head.status(), reason, body)
}

async fn mint(requests: &mut SendRequest) -> String {
    let (status, _, body) = ask_for_a_token(requests).await;
    assert_eq!(status, StatusCode::OK);
    serde_json::from_slice::<MintResponse>(&body).unwrap().token
}

async fn ask_for_a_token(requests: &mut SendRequest) -> (StatusCode, Option<Reason>, Bytes) {
    let request = serde_json::to_vec(&MintRequest::telemetry_writer(&[Signal::Metrics])).unwrap();
    call(requests, Method::POST, "/_identity/token", None, request).await
}

async fn policy(requests: &mut SendRequest) -> serde_json::Value {
    let (status, _, body) = call(requests, Method::GET, "/_telemetry/policy", None, Vec::new()).await;
    assert_eq!(status, StatusCode::OK);
    serde_json::from_slice(&body).unwrap()
}

/// What a token says, without a look at its signature.
fn claims(token: &str) -> serde_json::Value {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice(&claims).unwrap()
}

/// The public half of a private key, as a JWKS document.
fn jwks_of(pem: &[u8]) -> String {
    let key = SigningKey::from_pem(pem).unwrap();
    KeySet::of(key.kid(), key.public().clone()).unwrap().to_jwks()
}

fn with_previous_keys(files: &[&str]) -> String {
    CONFIG.replace("signing_key", &format!("previous_keys = {files:?}\nsigning_key"))
}

/// What becomes of a write. The store is away, so a token that is good ends as `backend-unreachable`.
async fn write(requests: &mut SendRequest, token: &str) -> Option<Reason> {
    call(requests, Method::POST, Signal::Metrics.write_path(), Some(token), b"up 1\n".to_vec()).await.1
}

#[tokio::test]
async fn a_removed_runner_loses_its_connection_and_its_token_and_nobody_else_does() {
    let relay = Relay::start().await;
    let (r1, r2) = (relay.cluster.runner("r1"), relay.cluster.runner("r2"));
    let (first, second) = (relay.connect(&r1).await, relay.connect(&r2).await);
    let mut requests = first.http().await;
    let token = mint(&mut requests).await;
    assert_eq!(write(&mut requests, &token).await, Some(Reason::BackendUnreachable));
    let mut others = second.http().await;
    let other_token = mint(&mut others).await;

    relay.write("removed.txt", "r1\n");
    assert_eq!(relay.reload().closed_connections, 1);
    within(first.quic.closed()).await;
    let again = relay.connect(&r1).await;
    let mut requests = again.http().await;
    assert_eq!(write(&mut requests, &token).await, Some(Reason::RunnerRemoved));
    assert_eq!(write(&mut others, &other_token).await, Some(Reason::BackendUnreachable));
}

#[tokio::test]
async fn a_revoked_certificate_loses_its_connection_and_does_not_get_in_again() {
    let relay = Relay::start().await;
    let (r1, r2) = (relay.cluster.runner("r1"), relay.cluster.runner("r2"));
    let (first, second) = (relay.connect(&r1).await, relay.connect(&r2).await);
    let (mut requests, mut others) = (first.http().await, second.http().await);
    let token = mint(&mut requests).await;
    let other_token = mint(&mut others).await;

    relay.write("crl.pem", crl(&relay.cluster, &[&r1]));
    assert_eq!(relay.reload().closed_connections, 1);
    within(first.quic.closed()).await;
    let again = relay.connect(&r1).await;
    assert!(matches!(within(again.quic.closed()).await, quinn::ConnectionError::ConnectionClosed(_)));
    assert_eq!(write(&mut others, &other_token).await, Some(Reason::BackendUnreachable));
    drop(token);
}

#[tokio::test]
async fn a_new_certificate_is_shown_to_new_connections_and_old_ones_stay() {
    let relay = Relay::start().await;
    let r1 = relay.cluster.runner("r1");
    let before = relay.connect(&r1).await;
    let mut requests = before.http().await;
    let token = mint(&mut requests).await;
    write_certificate(relay.dir.path(), &relay.cluster);
    assert_eq!(relay.reload(), Applied::default());
    let after = relay.connect(&r1).await;
    after.http().await;
    assert_ne!(before.server_certificate(), after.server_certificate());
    assert_eq!(write(&mut requests, &token).await, Some(Reason::BackendUnreachable));
}

/// What has ended while it was in force keeps nobody from removing a runner; what has ended is not taken in.
#[tokio::test]
async fn a_certificate_that_has_ended_is_not_put_in_force_and_one_that_ends_in_force_stops_no_other_change() {
    let relay = Relay::start().await;
    let write_until = |ends: SystemTime| {
        let leaf = Leaf::coordinator(COORDINATOR).valid(SystemTime::UNIX_EPOCH + Duration::from_secs(1), ends);
        let issued = leaf.issued_by(&relay.cluster.authority);
        relay.write("coordinator.pem", issued.chain_pem);
        relay.write("coordinator-key.pem", issued.key_pem);
    };
    let r1 = relay.cluster.runner("r1");
    let before = relay.connect(&r1).await;
    write_until(SystemTime::now() - Duration::from_secs(60));
    let fault = relay.running.apply(load(relay.dir.path()).unwrap()).unwrap_err().to_string();
    assert!(fault.contains("coordinator.pem") && fault.contains("has ended"), "{fault}");
    let after = relay.connect(&r1).await;
    assert_eq!(before.server_certificate(), after.server_certificate(), "the one before is shown");

    // Certificates count whole seconds: this one ends within two.
    let ends = SystemTime::now() + Duration::from_secs(2);
    write_until(ends);
    relay.reload();
    let over = async {
        while SystemTime::now() < ends {
            tokio::time::sleep(Duration::from_millis(50)).await
        }
    };
    within(over).await;
    relay.write("removed.txt", "r1\n");
    assert!(relay.reload().closed_connections > 0, "its connections are closed all the same");
}

#[tokio::test]
async fn a_key_is_rotated_with_old_and_new_side_by_side_and_the_old_one_taken_away() {
    let relay = Relay::start().await;
    let r1 = relay.cluster.runner("r1");
    let client = relay.connect(&r1).await;
    let mut requests = client.http().await;
    let old = mint(&mut requests).await;
    let old_key = std::fs::read_to_string(relay.dir.path().join("signing.pem")).unwrap();
    let public = SigningKey::from_pem(old_key.as_bytes()).unwrap();

    let jwks = telemetry_relay::gate::KeySet::of(public.kid(), public.public().clone()).unwrap().to_jwks();
    relay.write("old.json", jwks);
    relay.write("signing.pem", signing_key());
    relay.write("relay.toml", CONFIG.replace("signing_key", "previous_keys = [\"old.json\"]\nsigning_key"));
    assert_eq!(relay.reload(), Applied::default());
    let new = mint(&mut requests).await;
    assert_eq!(write(&mut requests, &old).await, Some(Reason::BackendUnreachable));
    assert_eq!(write(&mut requests, &new).await, Some(Reason::BackendUnreachable));

    relay.write("relay.toml", CONFIG);
    relay.reload();
    assert_eq!(write(&mut requests, &old).await, Some(Reason::TokenUnknownKey));
    assert_eq!(write(&mut requests, &new).await, Some(Reason::BackendUnreachable));

    relay.write("signing.pem", old_key);
    relay.reload();
    assert_eq!(write(&mut requests, &old).await, Some(Reason::BackendUnreachable), "and back again");
}

#[tokio::test]
async fn tenants_are_replaced_and_faulty_ones_leave_the_old_ones_in_force() {
    const TENANTS: &str =
        "[[tenants]]\nname = 'a'\nmatch = [{ runner = 'r1' }]\n[[tenants]]\nname = 'b'\nmatch = [{ runner = 'r2' }]\n";
    let relay = Relay::start().await;
    let (first, second) =
        (relay.connect(&relay.cluster.runner("r1")).await, relay.connect(&relay.cluster.runner("r2")).await);
    let (mut requests, mut others) = (first.http().await, second.http().await);
    let (token, other_token) = (mint(&mut requests).await, mint(&mut others).await);

    relay.write("relay.toml", CONFIG.to_owned() + TENANTS);
    assert_eq!(relay.reload(), Applied::default());
    assert_eq!(write(&mut requests, &token).await, Some(Reason::BackendUnreachable));

    relay.write("relay.toml", CONFIG.to_owned() + &TENANTS.replace("'r2'", "'r1'"));
    let faults = load(relay.dir.path()).err().unwrap().to_string();
    assert!(faults.contains("tenants.b: rule 1 (runner = \"r1\") can never match"), "{faults}");
    assert_eq!(write(&mut others, &other_token).await, Some(Reason::BackendUnreachable));

    relay.write("relay.toml", CONFIG.to_owned() + &TENANTS.replace("'r2'", "'r3'"));
    assert_eq!(relay.reload(), Applied::default());
    assert_eq!(write(&mut requests, &token).await, Some(Reason::BackendUnreachable));
    assert_eq!(write(&mut others, &other_token).await, Some(Reason::TenantUnknown));
}

#[tokio::test]
async fn a_writer_is_let_in_and_loses_its_connection_when_it_is_none_any_more() {
    const WRITERS: &str = "[[writers]]\nname = 'gw'\ncertificate_uri = 'spiffe://test/writer/gw'\n\
                           token_file = 'gw.token'\nsignals = ['metrics']\n";
    let relay = Relay::start().await;
    let request = WriterRequest::new(WriterName::new("gw").unwrap());
    let issued = relay.cluster.authority.issue_writer(&request).unwrap();
    let early = relay.connect(&issued).await;
    within(early.quic.closed()).await;

    relay.write("gw.token", "secret\n");
    relay.write("relay.toml", CONFIG.to_owned() + WRITERS);
    assert_eq!(relay.reload(), Applied::default());
    let (writer, runner) = (relay.connect(&issued).await, relay.connect(&relay.cluster.runner("r1")).await);
    let (mut requests, mut others) = (writer.http().await, runner.http().await);
    let token = mint(&mut others).await;
    assert_eq!(write(&mut requests, "secret").await, Some(Reason::BackendUnreachable));

    relay.write("gw.token", "");
    assert!(load(relay.dir.path()).err().unwrap().to_string().contains("is empty"));
    relay.write("gw.token", "next");
    assert_eq!(relay.reload(), Applied::default(), "another token ends no connection");
    assert_eq!(write(&mut requests, "secret").await, Some(Reason::TokenWrongWriter));
    assert_eq!(write(&mut requests, "next").await, Some(Reason::BackendUnreachable));

    relay.write("relay.toml", CONFIG);
    assert_eq!(relay.reload().closed_connections, 1);
    within(writer.quic.closed()).await;
    assert_eq!(write(&mut others, &token).await, Some(Reason::BackendUnreachable));
}

#[tokio::test]
async fn what_the_issuer_shares_with_the_verifier_changes_for_both() {
    let relay = Relay::start().await;
    let client = relay.connect(&relay.cluster.runner("r1")).await;
    let mut requests = client.http().await;
    let first = mint(&mut requests).await;

    let renamed = CONFIG
        .replace("https://coordinator.test", "https://next.test")
        .replace("[issuer]", "runner_id_claim = \"host\"\n[issuer]\norganization = \"acme\"\ncluster = \"eu-1\"");
    relay.write("relay.toml", renamed);
    assert_eq!(relay.reload(), Applied::default());
    assert_eq!(write(&mut requests, &first).await, Some(Reason::TokenWrongIssuer));
    let second = mint(&mut requests).await;
    assert_eq!(write(&mut requests, &second).await, Some(Reason::BackendUnreachable));
    let claims = claims(&second);
    for (claim, value) in
        [("iss", "https://next.test"), ("host", "r1"), ("organization_id", "acme"), ("cluster_id", "eu-1")]
    {
        assert_eq!(claims[claim], value, "{claim}");
    }
}

#[tokio::test]
async fn minting_is_switched_off_and_on_and_nobody_asks_more_often_for_it() {
    let relay = Relay::start().await;
    let client = relay.connect(&relay.cluster.runner("r1")).await;
    let mut requests = client.http().await;
    let token = mint(&mut requests).await;
    relay.write("public.json", jwks_of(&relay.read("signing.pem")));
    let without = CONFIG
        .replace("[issuer]\nsigning_key = \"signing.pem\"\n", "")
        .replace("[runners]", "keys = [\"public.json\"]\n[runners]");
    relay.write("relay.toml", without);
    assert_eq!(relay.reload(), Applied::default());
    assert_eq!(write(&mut requests, &token).await, Some(Reason::BackendUnreachable));
    assert_eq!(ask_for_a_token(&mut requests).await.1, Some(Reason::RouteUnknown));

    relay.write("relay.toml", CONFIG);
    for _ in 0..5 {
        relay.reload();
        mint(&mut requests).await;
    }
    relay.reload();
    mint(&mut requests).await;
    relay.reload();
    assert_eq!(ask_for_a_token(&mut requests).await.1, Some(Reason::MintRateLimited));
}

#[tokio::test]
async fn a_key_of_before_that_is_named_later_counts_and_a_full_ring_can_be_replaced() {
    let relay = Relay::start().await;
    let client = relay.connect(&relay.cluster.runner("r1")).await;
    let mut requests = client.http().await;
    let old = mint(&mut requests).await;
    relay.write("old.json", jwks_of(&relay.read("signing.pem")));
    relay.write("signing.pem", signing_key());
    relay.reload();
    assert_eq!(write(&mut requests, &old).await, Some(Reason::TokenUnknownKey), "only its successor is named");

    relay.write("relay.toml", with_previous_keys(&["old.json"]));
    relay.reload();
    assert_eq!(write(&mut requests, &old).await, Some(Reason::BackendUnreachable));

    let files: Vec<_> = (0..MAX_KEYS - 1).map(|i| format!("{i}.json")).collect();
    files.iter().for_each(|file| relay.write(file, jwks_of(signing_key().as_bytes())));
    relay.write("relay.toml", with_previous_keys(&files.iter().map(String::as_str).collect::<Vec<_>>()));
    relay.reload();
    relay.write("signing.pem", signing_key());
    relay.write("relay.toml", CONFIG);
    relay.reload();
    let new = mint(&mut requests).await;
    assert_eq!(write(&mut requests, &new).await, Some(Reason::BackendUnreachable));
}

#[tokio::test]
async fn of_settings_that_cannot_be_put_in_force_nothing_is() {
    let relay = Relay::start().await;
    let r1 = relay.cluster.runner("r1");
    let client = relay.connect(&r1).await;
    let mut requests = client.http().await;
    let token = mint(&mut requests).await;

    write_certificate(relay.dir.path(), &relay.cluster);
    relay.write("removed.txt", "r1\n");
    relay.write("relay.toml", CONFIG.replace("https://coordinator.test", "https://next.test"));
    let mut settings = load(relay.dir.path()).unwrap();
    // A key under the name of the issuer's own, which is another.
    let own = SigningKey::from_pem(&relay.read("signing.pem")).unwrap();
    let other = SigningKey::generate(SignatureAlgorithm::EdDsa).unwrap();
    settings.keys = KeySet::of(own.kid(), other.public().clone()).unwrap();
    assert!(matches!(relay.running.apply(settings), Err(ApplyError::Keys(_))));

    let again = relay.connect(&r1).await;
    again.http().await;
    assert_eq!(again.server_certificate(), client.server_certificate());
    assert_eq!(write(&mut requests, &token).await, Some(Reason::BackendUnreachable));
    let minted = mint(&mut requests).await;
    assert_eq!(write(&mut requests, &minted).await, Some(Reason::BackendUnreachable));
}

#[tokio::test]
async fn limits_hold_from_the_next_request_on() {
    let relay = Relay::start().await;
    let client = relay.connect(&relay.cluster.runner("r1")).await;
    let mut requests = client.http().await;
    let token = mint(&mut requests).await;
    let without_length = |requests: SendRequest, token: String| async move {
        let mut requests = requests;
        let path = Signal::Metrics.write_path();
        call_with(&mut requests, Method::POST, path, Some(&token), b"up 1\n".to_vec(), None).await.1
    };
    assert_eq!(policy(&mut requests).await["limits"]["max_decoded_bytes"], 128 << 20);
    assert_eq!(without_length(requests.clone(), token.clone()).await, Some(Reason::LengthRequired));

    let limits = "[limits]\nallow_unknown_length = true\nmax_decoded_bytes = 50000000\nbody_memory_bytes = 60000000\n";
    relay.write("relay.toml", CONFIG.to_owned() + limits);
    assert_eq!(relay.reload(), Applied::default());
    assert_eq!(policy(&mut requests).await["limits"]["max_decoded_bytes"], 50_000_000);
    assert_eq!(without_length(requests.clone(), token).await, Some(Reason::BackendUnreachable));
}

#[tokio::test]
async fn each_section_takes_effect_at_once_or_is_named_as_one_that_needs_a_restart() {
    let relay = Relay::start().await;
    relay.write("authority.pem", relay.cluster.authority.certificate_pem());
    relay.write("authority-key.pem", relay.cluster.authority.key_pem());
    relay.write("gw.token", "secret");
    let added = |text: &str| CONFIG.to_owned() + text;
    let traces = "[stores.traces]\nurl = \"http://127.0.0.1:9\"\n";
    let writer = "[[writers]]\nname = 'gw'\ncertificate_uri = 'spiffe://test/writer/gw'\ntoken_file = 'gw.token'\n\
                  signals = ['metrics']\n";
    let identity = "[identity]\nca_certificate = 'authority.pem'\nca_key = 'authority-key.pem'\n";
    let operational = "[operational]\nmax_points = 7\n";
    let cases: [(String, &[&str]); 15] = [
        (CONFIG.to_owned(), &[]),
        (CONFIG.replace("[tls]", "max_connections = 7\n[tls]"), &["[listener]"]),
        (CONFIG.replace("[tls]", "drain_seconds = 7\n[tls]"), &["[listener]"]),
        (CONFIG.replace("crls = [\"crl.pem\"]", ""), &[]),
        (CONFIG.replace("[issuer]", "leeway_seconds = 7\n[issuer]"), &[]),
        (CONFIG.replace("[runners]", "organization = \"acme\"\n[runners]"), &[]),
        (added(identity), &[]),
        (CONFIG.replace("removed = \"removed.txt\"", ""), &[]),
        (CONFIG.replace("127.0.0.1:9", "127.0.0.1:10"), &["[stores]"]),
        (added("[limits]\ntenant_in_flight = 7\nmax_decoded_bytes = 50000000\n"), &[]),
        (added(&format!("{traces}[traces]\nsample_ratio = 0.5\n")), &["[stores]"]),
        (added(operational), &["[operational]"]),
        (added("[state]\nfolder = \"state\"\n"), &["[state]"]),
        (added("[admin]\naddress = \"127.0.0.1:0\"\n"), &["[admin]"]),
        (added(&format!("{writer}tenant = 'a'\n[[tenants]]\nname = 'a'\nmatch = [{{ runner = '*' }}]\n")), &[]),
    ];
    for (config, needs_restart) in cases {
        relay.write("relay.toml", &config);
        assert_eq!(relay.reload().needs_restart, needs_restart, "{config}");
    }
}

#[tokio::test]
async fn a_runner_is_told_to_make_spans_if_its_tenant_may_write_them() {
    let relay = Relay::start_with(&(CONFIG.to_owned() + "[stores.traces]\nurl = \"http://127.0.0.1:9\"\n")).await;
    let (first, second) =
        (relay.connect(&relay.cluster.runner("r1")).await, relay.connect(&relay.cluster.runner("r2")).await);
    let (mut with, mut without) = (first.http().await, second.http().await);
    for requests in [&mut with, &mut without] {
        assert_eq!(policy(requests).await["traces"]["sample_ratio"], 0.01);
    }
    let tenants = "[stores.traces]\nurl = \"http://127.0.0.1:9\"\n[traces]\nsample_ratio = 0.5\n\
                   [[tenants]]\nname = 'a'\naccount = '1'\nmatch = [{ runner = 'r1' }]\n\
                   [[tenants]]\nname = 'b'\naccount = '2'\nmatch = [{ runner = 'r2' }]\nsignals = ['metrics']\n";
    relay.write("relay.toml", CONFIG.to_owned() + tenants);
    assert_eq!(relay.reload(), Applied::default());
    assert_eq!(policy(&mut with).await["traces"]["sample_ratio"], 0.5);
    let told = policy(&mut without).await;
    assert!(told["traces"].is_null(), "{told}");
    assert_eq!(told["signals"], serde_json::json!(["metrics"]));
}

#[tokio::test]
async fn a_relay_that_is_told_to_go_is_not_ready_at_once_and_serves_until_the_delay_is_over() {
    let config = CONFIG.replace("[tls]", "drain_delay_seconds = 600\n[tls]") + "[admin]\naddress = \"127.0.0.1:0\"\n";
    let relay = Relay::start_with(&config).await;
    let client = relay.connect(&relay.cluster.runner("r1")).await;
    let mut requests = client.http().await;
    let token = mint(&mut requests).await;
    let observer = std::sync::Arc::clone(relay.running.observer());
    let stopping = tokio::spawn(relay.running.stop());
    eventually("the relay is told", || observer.status().draining).await;
    assert!(!observer.status().ready);
    assert_eq!(write(&mut requests, &token).await, Some(Reason::BackendUnreachable), "not yet refused as draining");
    stopping.abort();
}

#[tokio::test]
async fn a_broken_file_is_not_put_in_force() {
    let relay = Relay::start().await;
    relay.write("ca.pem", "cut");
    assert!(load(relay.dir.path()).err().unwrap().to_string().contains("ca.pem"));
}
