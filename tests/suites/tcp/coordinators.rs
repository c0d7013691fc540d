//! Several coordinators in order of preference: the next one is used for as long as it has to be, and no longer.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use telemetry_certs::ClusterAuthority;
use telemetry_rig::detour::{Detour, Open};
use telemetry_rig::rig::{Cluster, Rig, RigRelay};
use telemetry_rig::suite::{Suite, TestResult};
use telemetry_rig::wait;
use telemetry_runner_client::{Carrier, Client, LateTokenSource, TcpFallback};

use crate::fallback::{DEADLINE, QUICK, connections, write};

pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .test("once_the_preferred_coordinator_is_back_it_is_used_and_nothing_is_lost_or_twice", &[], return_to_first)
        .test("a_coordinator_that_dies_before_the_client_went_back_loses_nothing", &[], second_dies)
        .test("without_tcp_the_client_goes_back_all_the_same", &[], quic_only)
        .test("a_preferred_coordinator_is_used_over_whatever_gets_through_to_it", &[], whatever_gets_through)
}

type AnyError = Box<dyn Error + Send + Sync>;

/// Two relays of one cluster, each with a store and a token issuer of its own.
struct Pair {
    first: Rig,
    second: Rig,
}

/// Nothing gets through.
const SHUT: Open = Open { udp: false, after_handshakes: false, tcp: false };

/// Far longer than a test.
const NEVER: Duration = Duration::from_secs(3_600);

impl Pair {
    async fn start() -> Result<Self, AnyError> {
        let first = Rig::builder().tcp().start().await?;
        let known = first.cluster();
        let authority = ClusterAuthority::load(&known.authority().certificate_pem(), &known.authority().key_pem())?;
        let cluster = Cluster::of(authority, known.root_pem())?;
        let second = Rig::builder().cluster(cluster).tcp().start().await?;
        Ok(Self { first, second })
    }

    /// A client that goes to the first by this port.
    fn client(
        &self,
        first_port: u16,
        fallback: Option<TcpFallback>,
        return_interval: Duration,
    ) -> Result<Client, AnyError> {
        let tokens = LateTokenSource::new();
        let client = Client::builder()
            .coordinator(format!("localhost:{first_port}"))
            .coordinator(format!("localhost:{}", self.second.relay_address().port()))
            .identity(self.first.runner(0).credentials.clone(), self.first.cluster().roots().clone())
            .token_source(Arc::new(tokens.clone()))
            .tcp_fallback(fallback)
            .return_interval(return_interval)
            .build()?;
        tokens.arm(client.issuer());
        Ok(client)
    }

    fn direct_client(&self, fallback: Option<TcpFallback>, return_interval: Duration) -> Result<Client, AnyError> {
        self.client(self.first.relay_address().port(), fallback, return_interval)
    }

    /// Each of the numbers is in one of the stores, once.
    async fn stored_once(&self, client: &Client, numbers: std::ops::Range<u32>) -> TestResult {
        let report = client.flush(DEADLINE).await;
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for rig in [&self.first, &self.second] {
            for sample in rig.metrics_store().samples().await? {
                *counts.entry(sample.label("number").to_owned()).or_default() += 1;
            }
        }
        let wrong: Vec<_> = numbers.filter(|number| counts.get(&number.to_string()) != Some(&1)).take(5).collect();
        assert!(wrong.is_empty(), "not once: {wrong:?}; {report:?}");
        Ok(())
    }

    /// Writes, and waits until the client is connected to that one, over whatever or as said.
    async fn is_at(&self, client: &Client, wanted: u16, over: Option<Carrier>, written: &mut u32) -> TestResult {
        let load = async {
            loop {
                if let Some(peer) = client.peer()
                    && peer.coordinator == format!("localhost:{wanted}")
                    && over.is_none_or(|over| over == peer.carrier)
                {
                    return TestResult::Ok(());
                }
                write(client, *written..*written + 5)?;
                *written += 5;
                client.flush(Duration::from_millis(20)).await;
            }
        };
        let in_time = tokio::time::timeout(DEADLINE, load).await;
        in_time.map_err(|_| format!("not at {wanted} over {over:?}, but at {:?}", client.peer()))?
    }
}

async fn return_to_first() -> TestResult {
    goes_back(Some(QUICK)).await
}

async fn quic_only() -> TestResult {
    goes_back(None).await
}

async fn goes_back(fallback: Option<TcpFallback>) -> TestResult {
    let pair = Pair::start().await?;
    let (first, second) = (pair.first.relay_address().port(), pair.second.relay_address().port());
    let client = pair.direct_client(fallback, Duration::from_millis(500))?;
    let mut written = 0;
    pair.is_at(&client, first, None, &mut written).await?;
    // Each store knows what it has, and not what the other has: a batch under way would be in both.
    pair.stored_once(&client, 0..written).await?;
    pair.first.relay().kill().await?;
    pair.is_at(&client, second, None, &mut written).await?;
    pair.first.relay().restart().await?;
    pair.is_at(&client, first, None, &mut written).await?;
    pair.stored_once(&client, 0..written).await?;
    pair.second.relay().kill().await?;
    write(&client, written..written + 10)?;
    pair.stored_once(&client, 0..written + 10).await?;
    assert_eq!(client.peer().map(|peer| peer.coordinator), Some(format!("localhost:{first}")));
    Ok(())
}

/// The client has no reason to look at the first, but for the death of the second.
async fn second_dies() -> TestResult {
    let pair = Pair::start().await?;
    let (first, second) = (pair.first.relay_address().port(), pair.second.relay_address().port());
    let client = pair.direct_client(Some(QUICK), NEVER)?;
    pair.first.relay().kill().await?;
    let mut written = 0;
    pair.is_at(&client, second, None, &mut written).await?;
    pair.stored_once(&client, 0..written).await?;
    pair.first.relay().restart().await?;
    pair.second.relay().kill().await?;
    pair.is_at(&client, first, None, &mut written).await?;
    pair.stored_once(&client, 0..written).await
}

async fn whatever_gets_through() -> TestResult {
    let pair = Pair::start().await?;
    let RigRelay::InProcess(relay) = pair.first.relay() else { return Err("no relay in this process".into()) };
    let detour = Detour::to(pair.first.relay_address(), SHUT).await?;
    let (first, second) = (detour.address().port(), pair.second.relay_address().port());
    let client = pair.client(first, Some(QUICK), Duration::from_millis(500))?;
    let mut written = 0;
    pair.is_at(&client, second, None, &mut written).await?;
    let used = connections(&client, Carrier::Quic)?;
    // A connection to the first stands, and nothing shows that it would carry anything.
    detour.set(Open { tcp: false, ..Open::HANDSHAKES });
    let tried = async || if relay.load().1 > 0 { Ok(()) } else { Err("no connection".to_owned()) };
    wait::until("the first to be tried", DEADLINE, tried).await?;
    write(&client, written..written + 10)?;
    written += 10;
    pair.stored_once(&client, 0..written).await?;
    assert_eq!(client.peer().map(|peer| peer.coordinator), Some(format!("localhost:{second}")));
    assert_eq!(connections(&client, Carrier::Quic)?, used, "the first got a request in vain");

    detour.set(Open::TCP);
    pair.is_at(&client, first, Some(Carrier::Tcp), &mut written).await?;
    detour.set(Open::ALL);
    pair.is_at(&client, first, Some(Carrier::Quic), &mut written).await?;
    pair.stored_once(&client, 0..written).await
}
