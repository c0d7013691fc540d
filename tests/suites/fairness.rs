//! What a tenant costs another by flooding, trickling, bombs and resets, and a runner another of its tenant: no request, and
//! little time.
//!
//! Times are printed, and the best of three rounds is held to a bound that a loaded machine keeps. The stricter promise, that
//! the other's p99 at most doubles, is for an idle machine; `docs/performance.md` has the numbers. The attacker's own work is
//! not the relay's: it has a thread of its own, which goes last.

#![allow(clippy::print_stderr, reason = "measurements are for people")]

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::future::join_all;
use http::StatusCode;
use http::header::CONTENT_ENCODING;
use telemetry_proto::{Reason, Signal};
use telemetry_rig::raw::{Frame, RawClient, RawRequest, RequestHead};
use telemetry_rig::rig::Rig;
use telemetry_rig::stores::Fault;
use telemetry_rig::suite::TestResult;
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

telemetry_rig::suite! {
    a_tenant_that_floods_costs_another_nothing needs [Relay];
    a_tenant_that_trickles_costs_another_nothing needs [Relay];
    a_tenant_that_sends_bombs_costs_another_nothing needs [Relay];
    a_tenant_that_sends_bodies_that_are_dear_to_read_costs_another_nothing needs [Relay];
    a_tenant_that_opens_and_resets_fifty_thousand_streams_costs_another_nothing needs [Relay];
    a_runner_that_floods_leaves_the_others_of_its_tenant_served needs [Relay];
}

const TENANTS: &str = "[[tenants]]\nname = \"noisy\"\nmatch = [{ runner = \"r1\" }]\naccount = \"1\"\n\
                       [[tenants]]\nname = \"quiet\"\nmatch = [{ runner = \"r2\" }]\naccount = \"2\"\n";
const NOISY: usize = 0;
const QUIET: usize = 1;
const LINE: &str = "up 1 1790000000000\n";
/// How long an attack lasts, if it does not end before.
const ATTACK: Duration = Duration::from_secs(4);
/// How long the quiet one writes in a round.
const ROUND: Duration = Duration::from_secs(1);
/// How often it does so, at least.
const WRITES: usize = 10;
/// What the p99 of a good round may be on a machine that does much else, if that is more than twice what it is alone.
const BOUND: Duration = Duration::from_millis(300);

/// The quiet one writes alone, then while the other attacks.
async fn beside<A>(
    what: &str,
    store: Option<Duration>,
    attack: impl FnOnce(Arc<Rig>, Instant) -> A + Send + 'static,
) -> TestResult
where
    A: Future<Output = TestResult>,
{
    among(TENANTS, BOUND, what, store, attack).await
}

/// As [`beside`], with these tenants and another bound.
async fn among<A>(
    tenants: &str,
    bound: Duration,
    what: &str,
    store: Option<Duration>,
    attack: impl FnOnce(Arc<Rig>, Instant) -> A + Send + 'static,
) -> TestResult
where
    A: Future<Output = TestResult>,
{
    let rig = Arc::new(Rig::builder().runners(2).relay_program(tenants).start().await?);
    rig.built_in_store().always(store.map(Fault::Delay));
    let quiet = rig.raw_client(QUIET).await?;
    let mut writes = 0;
    let alone = p99(&rig, &quiet, &mut writes).await?;
    let attack = {
        let rig = Arc::clone(&rig);
        spawn_blocking(move || {
            #[cfg(target_os = "linux")]
            rustix::process::setpriority_process(None, 19)?;
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(attack(rig, Instant::now() + ATTACK))
        })
    };
    let mut rounds = Vec::new();
    while !attack.is_finished() {
        rounds.push(p99(&rig, &quiet, &mut writes).await?);
    }
    attack.await??;
    // The last was not all of it during the attack.
    rounds.pop();
    rounds.sort_unstable();
    let after = p99(&rig, &quiet, &mut writes).await?;
    eprintln!("{what}: p99 of the other {alone:.1?} alone, {rounds:.1?} meanwhile, {after:.1?} after");
    // However large and dear a body is, what its sender may not write is not in the store.
    let samples = rig.metrics_store().samples().await?;
    assert!(samples.len() >= writes && samples.iter().all(|sample| sample.label("entity").is_empty()));
    assert!(rounds.len() >= 2, "the attack was over before anything was measured: {rounds:?}");
    // The best of three; a long attack has more.
    let attacked = rounds[(rounds.len() - 1) / 3];
    assert!(attacked <= bound.max(2 * alone), "{attacked:?}, and {alone:?} alone");
    Ok(())
}

/// Writes for a round. Every write is delivered.
async fn p99(rig: &Rig, client: &RawClient, writes: &mut usize) -> Result<Duration, Box<dyn std::error::Error>> {
    let mut latencies = Vec::new();
    let end = Instant::now() + ROUND;
    while latencies.len() < WRITES || Instant::now() < end {
        let before = Instant::now();
        write(rig, client, QUIET).send().await?.expect_delivered()?;
        latencies.push(before.elapsed());
    }
    *writes += latencies.len();
    latencies.sort_unstable();
    Ok(latencies[latencies.len() * 99 / 100])
}

fn write(rig: &Rig, client: &RawClient, runner: usize) -> RawRequest {
    client.write(Signal::Metrics).token(&rig.token(runner)).body(LINE)
}

async fn a_tenant_that_floods_costs_another_nothing() -> TestResult {
    // The store takes its time, so that the noisy one's places are taken and its requests queue up.
    beside("flood", Some(Duration::from_millis(10)), async |rig: Arc<Rig>, end| flood(&rig, end, 200, 0).await).await
}

/// So many requests at a time, on one connection for 50 of them. One that is refused comes back after `pause` ms.
async fn flood(rig: &Rig, end: Instant, requests: usize, pause: u64) -> TestResult {
    let clients = join_all((0..requests.div_ceil(50)).map(|_| rig.raw_client(NOISY))).await;
    let clients = clients.into_iter().collect::<Result<Vec<_>, _>>()?;
    let flood = async |client: &RawClient| {
        let request = write(rig, client, NOISY);
        while Instant::now() < end {
            let answer = request.clone().send().await?;
            if answer.expect_delivered().is_err() {
                answer.expect_refusal(Reason::TenantBusy)?;
                sleep(Duration::from_millis(pause)).await;
            }
        }
        TestResult::Ok(())
    };
    join_all((0..requests).map(|n| flood(&clients[n / 50]))).await.into_iter().collect()
}

async fn a_runner_that_floods_leaves_the_others_of_its_tenant_served() -> TestResult {
    // Everyone is one tenant, and the limits are the default: 4 at the store, 256 waiting, 128 of them one runner's, and 32
    // more that come back when they were told to. The other one waits behind those: 0.4 s. The flood is of more than may wait,
    // and heeds no Retry-After.
    let bound = Duration::from_secs(1);
    among("", bound, "flood of one runner", Some(Duration::from_millis(10)), async |rig: Arc<Rig>, end: Instant| {
        flood(&rig, end + ATTACK, 400, 100).await
    })
    .await
}

async fn a_tenant_that_trickles_costs_another_nothing() -> TestResult {
    beside("trickle", None, async |rig: Arc<Rig>, end| {
        let peers = [rig.hand_made(NOISY).await?, rig.hand_made(NOISY).await?];
        let frames = [RequestHead::write(Signal::Metrics, &rig.token(NOISY), 1_000_000).frame(), Frame::data("u")];
        let mut held = Vec::new();
        for number in 0..100 {
            held.push(peers[number % 2].begin(&frames).await?);
        }
        let byte = Frame::encode(&[Frame::data("u")]);
        while Instant::now() < end {
            for request in &mut held {
                // The relay may end it: it is too slow.
                let _ = request.write(&byte).await;
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    })
    .await
}

fn gzip(piece: &[u8], times: usize) -> std::io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    for _ in 0..times {
        encoder.write_all(piece)?;
    }
    Ok(encoder.finish()?.into())
}

/// Sends one gzip body again and again, 16 at a time. Each is answered with this status, or told to wait.
async fn send_gzip(rig: &Rig, end: Instant, body: &Bytes, status: StatusCode) -> TestResult {
    let client = rig.raw_client(NOISY).await?;
    let send = async || {
        let request = write(rig, &client, NOISY).header(CONTENT_ENCODING, "gzip").body(body.clone());
        while Instant::now() < end {
            let answer = request.clone().send().await?;
            let expected = [status, StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
            assert!(expected.contains(&answer.status), "{answer:?}");
        }
        TestResult::Ok(())
    };
    join_all((0..16).map(|_| send())).await.into_iter().collect()
}

async fn a_tenant_that_sends_bombs_costs_another_nothing() -> TestResult {
    let bomb = gzip(&vec![0; 1 << 20], 160)?;
    beside("bombs", None, async move |rig: Arc<Rig>, end| {
        send_gzip(&rig, end, &bomb, StatusCode::PAYLOAD_TOO_LARGE).await
    })
    .await
}

async fn a_tenant_that_sends_bodies_that_are_dear_to_read_costs_another_nothing() -> TestResult {
    // Small on the wire, and to be decoded twice, searched and copied, since the marker's bytes are in it.
    let line = format!("up{{entity=\"miren/control\"}} 1\n#{}\n", "x".repeat(1 << 20));
    let dear = gzip(line.as_bytes(), 16)?;
    beside("dear bodies", None, async move |rig: Arc<Rig>, end| {
        send_gzip(&rig, end, &dear, StatusCode::NO_CONTENT).await
    })
    .await
}

async fn a_tenant_that_opens_and_resets_fifty_thousand_streams_costs_another_nothing() -> TestResult {
    const STREAMS: usize = 50_000;
    beside("resets", None, async |rig: Arc<Rig>, end: Instant| {
        // A fast machine has done that before a round is over: it goes on as long as the other attacks.
        let (least, end) = (end, end + 9 * ATTACK);
        let frames = [RequestHead::write(Signal::Metrics, &rig.token(NOISY), 1_000_000).frame(), Frame::data(LINE)];
        let (mut streams, mut connections) = (0, 0);
        let goes_on = |streams| {
            let now = Instant::now();
            (streams < STREAMS || now < least) && now < end
        };
        while goes_on(streams) {
            // The relay closes a connection that gives up too much, and takes so many handshakes a second and no more.
            let Ok(peer) = rig.hand_made(NOISY).await else { continue };
            connections += 1;
            while goes_on(streams)
                && let Ok(request) = peer.begin(&frames).await
            {
                request.give_up();
                streams += 1;
                // A thread that never offers its core keeps it until the next tick, however far back it has stepped.
                std::thread::yield_now();
            }
        }
        eprintln!("resets: {streams} streams on {connections} connections");
        assert!(streams >= STREAMS, "not even that many were opened");
        Ok(())
    })
    .await
}
