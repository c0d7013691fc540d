//! Our client against a server of another stack that speaks the contract of the Go coordinator: 502 for whatever a store
//! says, no verdicts, no policy, nothing minted over HTTP. It must deliver there too, with tokens that are minted in process.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use telemetry_certs::Credentials;
use telemetry_certs::testing::{Hierarchy, Leaf, TestKey};
use telemetry_certs::{Issued, KeyKind};
use telemetry_proto::{Route, RunnerId, Signal};
use telemetry_relay::gate::{KeySet, SignatureAlgorithm};
use telemetry_relay::issuer::SigningKey;
use telemetry_rig::net::free_address;
use telemetry_rig::outcome;
use telemetry_rig::peers::{PeerServer, ServerParts, Stack};
use telemetry_rig::rig::{Cluster, ISSUER, TokenBuilder};
use telemetry_rig::stores::{BuiltInStore, Fault};
use telemetry_rig::suite::{Suite, TestResult};
use telemetry_rig::wait;
use telemetry_runner_client::{
    Client, ConnectErrorKind, IssueError, LateTokenSource, LogRecord, Point, Token, TokenIssuer,
};

use crate::needs;

const ITEMS: u32 = 200;
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn add(suite: Suite, stack: Stack) -> Suite {
    let name = |test: &str| format!("{stack:?} server: {test}").to_lowercase();
    let suite = suite
        .test(&name("what_is_written_is_delivered"), needs(stack), move || delivered(stack))
        .test(&name("a_store_that_refuses_costs_nothing"), needs(stack), move || flattened(stack))
        .test(&name("nothing_is_lost_while_nobody_mints"), needs(stack), move || late(stack))
        .test(&name("every_kind_of_key_is_trusted"), needs(stack), move || keys(stack))
        .test(&name("posers_get_nothing"), needs(stack), move || posers(stack));
    match stack {
        Stack::Go => suite.test(&name("a_refused_token_is_replaced"), needs(stack), move || refused_token(stack)),
        // It looks at no token.
        Stack::Python | Stack::Curl | Stack::Requests => suite,
    }
}

/// A coordinator on another stack with a store behind it, and a runner's client.
struct Pair {
    store: BuiltInStore,
    server: PeerServer,
    signing: Arc<SigningKey>,
    runner: RunnerId,
    tokens: LateTokenSource,
    client: Client,
}

impl Pair {
    async fn start(stack: Stack) -> Result<Self, Box<dyn std::error::Error>> {
        let cluster = Cluster::new("peer")?;
        Self::of(stack, &cluster, cluster.coordinator(), TestKey::Ed25519).await
    }

    async fn of(
        stack: Stack,
        cluster: &Cluster,
        coordinator: &Issued,
        key: TestKey,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let store = BuiltInStore::start().await?;
        let signing = Arc::new(SigningKey::generate(SignatureAlgorithm::EdDsa)?);
        let jwks = KeySet::of(signing.kid(), signing.public().clone())?.to_jwks();
        let parts = ServerParts {
            address: free_address()?,
            ca_pem: cluster.root_pem(),
            identity: coordinator,
            jwks: &jwks,
            issuer: ISSUER,
            stores: store.address(),
        };
        let server = PeerServer::start(stack, parts).await?;
        let runner = RunnerId::new("r1")?;
        let credentials: Credentials = Leaf::runner("r1").key(key).issued_by(cluster.authority()).credentials()?;
        let tokens = LateTokenSource::new();
        let client = Client::builder()
            .coordinator(server.address().to_string())
            .identity(credentials, cluster.roots().clone())
            .token_source(Arc::new(tokens.clone()))
            .build()?;
        Ok(Self { store, server, signing, runner, tokens, client })
    }

    /// An issuer in this process. Its first token is spoilt, if so wanted.
    fn issuer(&self, spoil_first: bool) -> Arc<dyn TokenIssuer> {
        let (signing, runner, minted) = (Arc::clone(&self.signing), self.runner.clone(), AtomicUsize::new(0));
        Arc::new(move || {
            let mut token = TokenBuilder::good(ISSUER, &runner);
            if minted.fetch_add(1, Ordering::SeqCst) == 0 && spoil_first {
                token = token.claim("iss", "https://elsewhere.test");
            }
            let token = Token::new(&token.sign(&signing), None);
            async move { token.map(Into::into).map_err(IssueError::from) }
        })
    }

    fn write(&self) -> TestResult {
        for number in 0..ITEMS {
            self.client.metrics().write(Point::new("written", f64::from(number)).label("entity", "e"))?;
            self.client.logs().write(&LogRecord::new("e", "stdout", "written").attribute("number", number))?;
        }
        Ok(())
    }

    /// Everything that was written is in the store once, and the client knows it.
    async fn expect_all(&self) -> TestResult {
        let report = self.client.flush(PATIENCE).await;
        let (metrics, logs) = (self.client.tally(Signal::Metrics), self.client.tally(Signal::Logs));
        let done = u64::from(ITEMS);
        self.note().await?;
        assert_eq!((metrics.delivered, logs.delivered), (done, done), "{report:?} {metrics:?} {logs:?}");
        assert_eq!((self.store.samples().len(), self.store.log_lines().len()), (ITEMS as usize, ITEMS as usize));
        Ok(())
    }

    /// Notes what the server answered, and what its store has.
    async fn note(&self) -> TestResult {
        // It tells of a request only after it was answered.
        let told = async || {
            let seen = self.server.seen();
            let stored = |signal: Signal| {
                seen.iter().any(|request| request.path == signal.write_path() && (200..300).contains(&request.status))
            };
            if stored(Signal::Metrics) && stored(Signal::Logs) { Ok(()) } else { Err(format!("{seen:?}")) }
        };
        wait::until("what the server says", PATIENCE, told).await?;
        let answers = self.server.seen().into_iter().map(|request| format!("{} for {}", request.status, request.path));
        answers.collect::<BTreeSet<_>>().into_iter().for_each(outcome::saw);
        let (points, records) = (self.store.samples().len(), self.store.log_lines().len());
        outcome::saw(format!("{points} points and {records} log records are stored, of {ITEMS} each"));
        Ok(())
    }
}

async fn pair(stack: Stack) -> Result<Pair, String> {
    Pair::start(stack).await.map_err(|error| error.to_string())
}

async fn delivered(stack: Stack) -> TestResult {
    let pair = pair(stack).await?;
    pair.tokens.arm(pair.issuer(false));
    pair.client.connected().await?;
    pair.write()?;
    pair.expect_all().await?;
    let seen = pair.server.seen();
    assert!(seen.iter().all(|request| request.status == 204 || request.status == 200), "{seen:?}");
    if stack == Stack::Go {
        assert!(seen.iter().all(|request| request.runner == "runner-r1"), "{seen:?}");
    }
    let report = pair.client.close(Duration::from_secs(5)).await;
    assert_eq!(report.lost, 0);
    Ok(())
}

async fn flattened(stack: Stack) -> TestResult {
    let pair = pair(stack).await?;
    pair.tokens.arm(pair.issuer(false));
    let refusals =
        [StatusCode::BAD_REQUEST, StatusCode::SERVICE_UNAVAILABLE, StatusCode::CREATED, StatusCode::NOT_FOUND];
    pair.store.script(refusals.map(Fault::Answer));
    pair.write()?;
    pair.expect_all().await?;
    assert_eq!(pair.server.seen().iter().filter(|request| request.status == 502).count(), refusals.len());
    Ok(())
}

/// The client asks the coordinator itself first, which has never heard of minting over HTTP.
async fn late(stack: Stack) -> TestResult {
    let pair = pair(stack).await?;
    pair.tokens.arm(pair.client.issuer());
    pair.write()?;
    let asked = async || {
        let seen = pair.server.seen();
        let asked = seen.iter().any(|request| request.path == Route::MintToken.path() && request.status == 404);
        if asked { Ok(()) } else { Err(format!("{seen:?}")) }
    };
    wait::until("a request for a token", PATIENCE, asked).await?;
    assert!(pair.store.requests().is_empty());
    assert_eq!(pair.client.tally(Signal::Metrics).dropped_in_all(), 0);
    pair.tokens.arm(pair.issuer(false));
    pair.expect_all().await
}

async fn refused_token(stack: Stack) -> TestResult {
    let pair = pair(stack).await?;
    pair.tokens.arm(pair.issuer(true));
    pair.write()?;
    pair.expect_all().await?;
    assert!(pair.server.seen().iter().any(|request| request.status == 401));
    Ok(())
}

/// Lesson 3 from the other side: whatever the coordinator's certificate looks like, and the runner's own.
async fn keys(stack: Stack) -> TestResult {
    let Hierarchy { root, intermediate } = Hierarchy::new(KeyKind::P256);
    let cluster = Cluster::of(intermediate, &root.certificate_pem())?;
    for key in [TestKey::Ed25519, TestKey::P256, TestKey::P384, TestKey::Rsa2048] {
        let coordinator = Leaf::coordinator("localhost").ip_address(Ipv4Addr::LOCALHOST.into()).key(key);
        let coordinator = coordinator.issued_by(cluster.authority());
        let pair = Pair::of(stack, &cluster, &coordinator, key).await.map_err(|error| error.to_string())?;
        pair.tokens.arm(pair.issuer(false));
        pair.client.connected().await.map_err(|error| format!("{key:?}: {error}"))?;
        pair.write()?;
        pair.expect_all().await?;
    }
    Ok(())
}

/// Whoever answers with a certificate that is not a coordinator's gets neither a token nor a batch.
async fn posers(stack: Stack) -> TestResult {
    let cluster = Cluster::new("peer")?;
    let foreign = Cluster::new("peer")?;
    let here = |leaf: Leaf| leaf.dns_name("localhost").ip_address(Ipv4Addr::LOCALHOST.into());
    let posers = [
        ("an older runner", here(Leaf::legacy_runner("r2")).issued_by(cluster.authority())),
        ("a runner", here(Leaf::runner("r2")).issued_by(cluster.authority())),
        ("another cluster", foreign.coordinator().clone()),
        ("another host", Leaf::coordinator("elsewhere.example").issued_by(cluster.authority())),
        ("expired", here(Leaf::coordinator("localhost")).expired().issued_by(cluster.authority())),
    ];
    for (who, identity) in posers {
        let pair = Pair::of(stack, &cluster, &identity, TestKey::Ed25519).await.map_err(|error| error.to_string())?;
        pair.tokens.arm(pair.issuer(false));
        pair.write()?;
        let refused = pair.client.connected().await.err().ok_or_else(|| format!("{who} is trusted"))?;
        outcome::saw(format!("{who}: {refused}"));
        assert_eq!(refused.kind(), ConnectErrorKind::Identity, "{who}: {refused}");
        assert!(pair.server.seen().is_empty() && pair.store.requests().is_empty(), "{who}");
        assert_eq!(pair.client.tally(Signal::Metrics).waiting, u64::from(ITEMS), "{who}: nothing is lost");
    }
    Ok(())
}
