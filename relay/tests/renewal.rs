//! A runner has a new key certified over the wire: for itself, while it belongs to the cluster, and nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "support/files.rs"]
mod files;
#[path = "listener/harness.rs"]
mod harness;

use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes};
use files::load;
use harness::*;
use http::{Request, StatusCode};
use telemetry_certs::testing::Leaf;
use telemetry_certs::{Issued, KeyKind, MAX_CERTIFICATE_REQUEST_BYTES, PeerIdentity, PendingKey};
use telemetry_h3::client::SendRequest;
use telemetry_h3::transport::TransportLimits;
use telemetry_proto::renew::RenewResponse;
use telemetry_proto::{Reason, RunnerId, header};
use telemetry_relay::running::Running;
use tempfile::TempDir;

const CONFIG: &str = r#"
[listener]
address = "127.0.0.1:0"
[tls]
certificate = "coordinator.pem"
key = "coordinator-key.pem"
client_ca = "ca.pem"
[tokens]
issuer = "https://coordinator.test"
keys = ["jwks.json"]
[runners]
removed = "removed.txt"
[stores.metrics]
url = "http://127.0.0.1:9"
"#;
const IDENTITY: &str =
    "[identity]\nca_certificate = 'ca.pem'\nca_key = 'ca-key.pem'\ncertificate_lifetime_seconds = 60\n";
const JWKS: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

struct Relay {
    cluster: Cluster,
    dir: TempDir,
    running: Running,
}

impl Relay {
    async fn start(config: &str) -> Self {
        let (cluster, dir) = (Cluster::new(), TempDir::new().unwrap());
        let coordinator = Leaf::coordinator(COORDINATOR).issued_by(&cluster.authority);
        for (name, text) in [
            ("relay.toml", config),
            ("coordinator.pem", &coordinator.chain_pem),
            ("coordinator-key.pem", &coordinator.key_pem),
            ("ca.pem", &cluster.authority.certificate_pem()),
            ("ca-key.pem", &cluster.authority.key_pem()),
            ("jwks.json", JWKS),
            ("removed.txt", ""),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let running = Running::start(load(dir.path()).unwrap()).await.unwrap();
        Self { cluster, dir, running }
    }

    /// Whoever asks: the connection must be kept while its requests are sent.
    async fn connect(&self, issued: &Issued) -> (Client, SendRequest) {
        let tls = self.cluster.client_tls(issued);
        let client =
            within(Client::dial(self.running.listener().local_addr(), tls, TransportLimits::default())).await.unwrap();
        let requests = client.http().await;
        (client, requests)
    }
}

fn pending(runner: &str) -> PendingKey {
    PendingKey::generate(KeyKind::P256, &RunnerId::new(runner).unwrap()).unwrap()
}

async fn ask(requests: &mut SendRequest, content_type: &str, body: &[u8]) -> (StatusCode, Option<Reason>, Bytes) {
    let request = Request::post(format!("https://{COORDINATOR}/_identity/certificate"))
        .header("content-length", body.len())
        .header("content-type", content_type);
    let body = Bytes::copy_from_slice(body);
    let exchange = async {
        let mut stream = requests.send_request(request.body(()).unwrap()).await?;
        // The relay may answer before it has all.
        let _ = stream.send_data(body).await;
        let _ = stream.finish().await;
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

async fn renew(requests: &mut SendRequest, request: &[u8]) -> Option<Reason> {
    ask(requests, "application/pkcs10", request).await.1
}

#[tokio::test]
async fn a_renewed_certificate_is_the_same_runners_and_gets_in() {
    let relay = Relay::start(&format!("{CONFIG}{IDENTITY}")).await;
    let issued = Leaf::runner("r1").organization("Acme").issued_by(&relay.cluster.authority);
    let (_client, mut requests) = relay.connect(&issued).await;
    let pending = pending("r1");
    let (status, reason, body) = ask(&mut requests, "application/pkcs10; x=y", pending.request()).await;
    assert_eq!((status, reason), (StatusCode::OK, None));
    let response: RenewResponse = serde_json::from_slice(&body).unwrap();
    let credentials = pending.with_chain(&response.certificate_chain).unwrap();
    let identity = PeerIdentity::from_leaf(credentials.leaf()).unwrap();
    assert_eq!((identity.runner.as_str(), identity.organization.as_deref()), ("r1", Some("Acme")));
    assert_eq!(identity.not_after, SystemTime::from(response.not_after));
    assert!(identity.not_after < SystemTime::now() + Duration::from_secs(61), "as long as the configuration says");
    let renewed = Issued { chain_pem: response.certificate_chain, key_pem: pending.key_pem() };
    let (_again, mut requests) = relay.connect(&renewed).await;
    assert_eq!(renew(&mut requests, b"").await, Some(Reason::CertificateRequestMalformed), "it is in, and may ask");
}

#[tokio::test]
async fn what_is_no_request_of_the_runner_that_asks_is_refused_with_its_reason_and_counted() {
    let relay = Relay::start(&format!("{CONFIG}{IDENTITY}")).await;
    let (good, other) = (pending("r1"), pending("r2"));
    let mut forged = good.request().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let weak = telemetry_certs::testing::p384_request("runner-r3");
    let huge = vec![b'x'; MAX_CERTIFICATE_REQUEST_BYTES + 1];
    let cases: [(&[u8], Reason); 6] = [
        (other.request(), Reason::CertificateRequestMismatch),
        (&good.request()[..50], Reason::CertificateRequestMalformed),
        (b"-----BEGIN CERTIFICATE REQUEST-----\n", Reason::CertificateRequestMalformed),
        (&forged, Reason::CertificateRequestUnproven),
        (&weak, Reason::CertificateRequestKey),
        (&huge, Reason::BodyTooLarge),
    ];
    for (index, (body, reason)) in cases.into_iter().enumerate() {
        // Each asks as another runner, so that no rate is in the way, but for the name in the request.
        let runner = relay.cluster.runner(if index == 0 { "r1" } else { "r3" });
        let (_client, mut requests) = relay.connect(&runner).await;
        let before = relay.running.service().metrics().refused(reason);
        assert_eq!(renew(&mut requests, body).await, Some(reason), "case {index}");
        assert_eq!(relay.running.service().metrics().refused(reason), before + 1);
    }
    let (_client, mut requests) = relay.connect(&relay.cluster.runner("r1")).await;
    let typed = ask(&mut requests, "application/json", good.request()).await;
    assert_eq!(typed.1, Some(Reason::ContentTypeUnsupported));
}

#[tokio::test]
async fn a_runner_asks_a_few_times_a_minute_and_others_are_not_concerned() {
    let relay = Relay::start(&format!("{CONFIG}{IDENTITY}")).await;
    let (_first, mut eager) = relay.connect(&relay.cluster.runner("r1")).await;
    let mut reasons = Vec::new();
    for _ in 0..8 {
        reasons.push(renew(&mut eager, pending("r1").request()).await);
    }
    assert_eq!(reasons[..6], [None; 6]);
    assert_eq!(reasons[6..], [Some(Reason::RenewalRateLimited); 2]);
    let (_second, mut other) = relay.connect(&relay.cluster.runner("r2")).await;
    assert_eq!(renew(&mut other, pending("r2").request()).await, None);
}

#[tokio::test]
async fn a_removed_runner_gets_none() {
    let relay = Relay::start(&format!("{CONFIG}{IDENTITY}")).await;
    let r1 = relay.cluster.runner("r1");
    std::fs::write(relay.dir.path().join("removed.txt"), "r1\n").unwrap();
    relay.running.apply(load(relay.dir.path()).unwrap()).unwrap();
    let (_client, mut requests) = relay.connect(&r1).await;
    assert_eq!(renew(&mut requests, pending("r1").request()).await, Some(Reason::RunnerRemoved));
}

#[tokio::test]
async fn without_an_authority_nothing_is_renewed_and_one_may_come_and_go_while_the_relay_runs() {
    let relay = Relay::start(CONFIG).await;
    let (_client, mut requests) = relay.connect(&relay.cluster.runner("r1")).await;
    let (status, reason, _) = ask(&mut requests, "application/pkcs10", pending("r1").request()).await;
    assert_eq!((status, reason), (StatusCode::NOT_FOUND, Some(Reason::RenewalNotOffered)));
    for (config, expected) in
        [(format!("{CONFIG}{IDENTITY}"), None), (CONFIG.to_owned(), Some(Reason::RenewalNotOffered))]
    {
        std::fs::write(relay.dir.path().join("relay.toml"), config).unwrap();
        relay.running.apply(load(relay.dir.path()).unwrap()).unwrap();
        assert_eq!(renew(&mut requests, pending("r1").request()).await, expected);
    }
}

#[tokio::test]
async fn an_authority_whose_certificates_would_not_get_in_is_refused_at_start() {
    let relay = Relay::start(&format!("{CONFIG}{IDENTITY}")).await;
    let stranger = telemetry_certs::testing::authority();
    std::fs::write(relay.dir.path().join("ca-key.pem"), stranger.key_pem()).unwrap();
    let mismatch = load(relay.dir.path()).err().unwrap().to_string();
    assert!(mismatch.contains("identity.ca_key") && mismatch.contains("not the key"), "{mismatch}");
    let path = relay.dir.path().join("relay.toml");
    std::fs::write(&path, format!("{CONFIG}{}", IDENTITY.replace("'ca.pem'", "'other.pem'"))).unwrap();
    std::fs::write(relay.dir.path().join("other.pem"), stranger.certificate_pem()).unwrap();
    let foreign = load(relay.dir.path()).err().unwrap().to_string();
    assert!(foreign.contains("would not accept what it issues") && foreign.contains("tls.client_ca"), "{foreign}");
}
