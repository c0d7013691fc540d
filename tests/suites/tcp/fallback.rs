//! How a client gets round a network that blocks UDP, and back.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use telemetry_certs::testing::Leaf;
use telemetry_certs::{CertificateRefusal, Credentials, Roots};
use telemetry_rig::detour::{Detour, Open};
use telemetry_rig::program::Program;
use telemetry_rig::rig::{Cluster, Rig, RigRelay};
use telemetry_rig::suite::{Suite, TestResult};
use telemetry_rig::wait;
use telemetry_runner_client::{Carrier, Client, ConnectError, LateTokenSource, Point, TcpFallback};
use tokio::process::Command;

pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .test("with_udp_blocked_the_first_batch_is_there_within_3_s", &[], first_batch)
        .test("once_udp_is_open_the_client_is_back_on_quic_and_nothing_is_lost_or_twice", &[], return_to_quic)
        .test("udp_that_is_blocked_under_a_connection_costs_nothing", &[], blocked_under_way)
        .test("a_network_that_lets_only_handshakes_through_costs_one_stall_and_not_one_each_time", &[], handshakes_only)
        .test("tcp_that_is_cut_under_a_connection_costs_nothing", &[], cut_under_way)
        .test("a_relay_that_drains_loses_nothing_over_tcp", &[], drain)
        .test("quic_is_preferred_where_both_get_through", &[], quic_is_preferred)
        .test("who_distrusts_whom_is_known_over_tcp_too", &[], distrust)
        .test("a_stranger_on_the_tcp_port_keeps_nobody_from_quic", &[], stranger)
        .test("without_the_fallback_there_is_no_tcp", &[], off)
        .test("the_agent_says_what_it_is_connected_over", &[Program::RunnerAgent], agent)
}

pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Quick to return to QUIC.
pub(crate) const QUICK: TcpFallback =
    TcpFallback { head_start: Duration::from_millis(300), return_after: Duration::from_secs(1) };

/// A client of the rig's first runner that goes through the detour.
fn client(rig: &Rig, detour: &Detour, fallback: Option<TcpFallback>) -> Result<Client, Box<dyn Error>> {
    client_as(&rig.runner(0).credentials, rig.cluster().roots(), detour, fallback)
}

fn client_as(
    credentials: &Credentials,
    roots: &Roots,
    detour: &Detour,
    fallback: Option<TcpFallback>,
) -> Result<Client, Box<dyn Error>> {
    let tokens = LateTokenSource::new();
    let client = Client::builder()
        .coordinator(format!("localhost:{}", detour.address().port()))
        .identity(credentials.clone(), roots.clone())
        .token_source(Arc::new(tokens.clone()))
        .tcp_fallback(fallback)
        .build()?;
    tokens.arm(client.issuer());
    Ok(client)
}

pub(crate) fn write(client: &Client, numbers: std::ops::Range<u32>) -> TestResult {
    for number in numbers {
        client.metrics().write(Point::new("written", f64::from(number)).label("number", number.to_string()))?;
    }
    Ok(())
}

fn carrier(client: &Client) -> Option<Carrier> {
    client.peer().map(|peer| peer.carrier)
}

async fn is_on(client: &Client, wanted: Carrier) -> TestResult {
    let probe = async || match carrier(client) {
        Some(carrier) if carrier == wanted => Ok(()),
        other => Err(format!("{other:?}")),
    };
    Ok(wait::until(format!("the client on {wanted}"), DEADLINE, probe).await?)
}

/// Each of the numbers is stored, once.
async fn stored_once(rig: &Rig, client: &Client, numbers: std::ops::Range<u32>) -> TestResult {
    let report = client.flush(DEADLINE).await;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for sample in rig.metrics_store().wait_for_samples(numbers.len()).await? {
        *counts.entry(sample.label("number").to_owned()).or_default() += 1;
    }
    let wrong: Vec<_> = numbers.filter(|number| counts.get(&number.to_string()) != Some(&1)).take(5).collect();
    assert!(wrong.is_empty(), "not once: {wrong:?}; {report:?}");
    Ok(())
}

/// With the default settings. One of three, since other tests run beside this.
async fn first_batch() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let detour = Detour::to(rig.relay_address(), Open::TCP).await?;
    let mut took = Vec::new();
    for attempt in 0..3 {
        let client = client(&rig, &detour, Some(TcpFallback::default())).map_err(|e| e.to_string())?;
        let begun = Instant::now();
        write(&client, attempt..attempt + 1)?;
        client.flush(DEADLINE).await;
        took.push(begun.elapsed());
        assert_eq!(rig.metrics_store().samples().await?.len(), attempt as usize + 1);
        assert_eq!(carrier(&client), Some(Carrier::Tcp));
        if begun.elapsed() < Duration::from_secs(3) {
            return Ok(());
        }
    }
    Err(format!("it took {took:?}").into())
}

async fn return_to_quic() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let detour = Detour::to(rig.relay_address(), Open::TCP).await?;
    let client = client(&rig, &detour, Some(QUICK)).map_err(|e| e.to_string())?;
    write(&client, 0..10)?;
    client.flush(DEADLINE).await;
    assert_eq!(carrier(&client), Some(Carrier::Tcp));
    detour.set(Open::ALL);
    let mut written = 10;
    let begun = Instant::now();
    while carrier(&client) != Some(Carrier::Quic) {
        assert!(begun.elapsed() < DEADLINE, "still over {:?}", carrier(&client));
        write(&client, written..written + 10)?;
        written += 10;
        client.flush(DEADLINE).await;
    }
    // What comes now no longer needs TCP.
    detour.set(Open::UDP);
    write(&client, written..written + 10)?;
    stored_once(&rig, &client, 0..written + 10).await?;
    assert_eq!(carrier(&client), Some(Carrier::Quic));
    let mut registry = prometheus_client::registry::Registry::default();
    client.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    for line in [
        "telemetry_connections_total{transport=\"tcp\"} 1",
        "telemetry_connections_total{transport=\"quic\"} 1",
        "telemetry_connected{transport=\"quic\"} 1",
        "telemetry_connected{transport=\"tcp\"} 0",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    Ok(())
}

async fn blocked_under_way() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let detour = Detour::to(rig.relay_address(), Open::ALL).await?;
    let client = client(&rig, &detour, Some(QUICK)).map_err(|e| e.to_string())?;
    write(&client, 0..10)?;
    client.flush(DEADLINE).await;
    assert_eq!(carrier(&client), Some(Carrier::Quic));
    detour.set(Open::TCP);
    write(&client, 10..20)?;
    stored_once(&rig, &client, 0..20).await?;
    assert_eq!(carrier(&client), Some(Carrier::Tcp));
    Ok(())
}

/// Every connection over QUIC stands and carries nothing. One is enough to learn that, at the first dial; a return costs not
/// even one, since whoever is to take over has to answer first.
async fn handshakes_only() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let RigRelay::InProcess(relay) = rig.relay() else { return Err("the rig has no relay in this process".into()) };
    let detour = Detour::to(rig.relay_address(), Open::TCP).await?;
    let client = client(&rig, &detour, Some(QUICK)).map_err(|e| e.to_string())?;
    write(&client, 0..10)?;
    client.flush(DEADLINE).await;
    let ways = || Ok::<_, Box<dyn Error + Send + Sync>>((carrier(&client), connections(&client, Carrier::Quic)?));
    assert_eq!(ways()?, (Some(Carrier::Tcp), 0));

    detour.set(Open::HANDSHAKES);
    // The relay keeps the one that the client gives up until it is idle for too long.
    let tried = async || if relay.load().1 > 1 { Ok(()) } else { Err("no connection but the one over TCP".to_owned()) };
    wait::until("QUIC to be tried again", DEADLINE, tried).await?;
    write(&client, 10..20)?;
    stored_once(&rig, &client, 0..20).await?;
    assert_eq!(ways()?, (Some(Carrier::Tcp), 0));

    let cut = async || if carrier(&client).is_none() { Ok(()) } else { Err("still connected".to_owned()) };
    for numbers in [20..30, 30..40] {
        detour.set(Open { tcp: false, ..Open::HANDSHAKES });
        wait::until("the cut", DEADLINE, cut).await?;
        detour.set(Open::HANDSHAKES);
        let all = 0..numbers.end;
        write(&client, numbers)?;
        stored_once(&rig, &client, all).await?;
        // None, where TCP happened to be there first by far.
        assert!(matches!(ways()?, (Some(Carrier::Tcp), 0 | 1)), "{:?}", ways()?);
    }

    detour.set(Open::ALL);
    is_on(&client, Carrier::Quic).await?;
    write(&client, 40..50)?;
    stored_once(&rig, &client, 0..50).await
}

/// How many connections there were over this.
pub(crate) fn connections(client: &Client, over: Carrier) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let mut registry = prometheus_client::registry::Registry::default();
    client.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    let name = format!("telemetry_connections_total{{transport=\"{over}\"}} ");
    Ok(text.lines().find_map(|line| line.strip_prefix(&name)).map_or(Ok(0), str::parse)?)
}

async fn cut_under_way() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let detour = Detour::to(rig.relay_address(), Open::TCP).await?;
    let client = client(&rig, &detour, Some(QUICK)).map_err(|e| e.to_string())?;
    write(&client, 0..10)?;
    client.flush(DEADLINE).await;
    detour.set(Open::UDP);
    let cut = async || match carrier(&client) {
        Some(Carrier::Tcp) => Err("still on TCP".to_owned()),
        _ => Ok(()),
    };
    wait::until("the cut", DEADLINE, cut).await?;
    write(&client, 10..20)?;
    stored_once(&rig, &client, 0..20).await?;
    assert_eq!(carrier(&client), Some(Carrier::Quic));
    Ok(())
}

async fn drain() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let detour = Detour::to(rig.relay_address(), Open::TCP).await?;
    let client = client(&rig, &detour, Some(QUICK)).map_err(|e| e.to_string())?;
    let mut written = 0;
    for _ in 0..3 {
        let load = async {
            for _ in 0..20 {
                write(&client, written..written + 5)?;
                written += 5;
                client.flush(Duration::from_millis(20)).await;
            }
            TestResult::Ok(())
        };
        let restart = async {
            rig.relay().stop().await?;
            rig.relay().restart().await
        };
        let (load, restart) = tokio::join!(load, restart);
        load?;
        restart?;
    }
    stored_once(&rig, &client, 0..written).await?;
    assert_eq!(carrier(&client), Some(Carrier::Tcp));
    Ok(())
}

async fn quic_is_preferred() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let detour = Detour::to(rig.relay_address(), Open::ALL).await?;
    // TCP is dialled at once, too.
    let eager = TcpFallback { head_start: Duration::ZERO, ..QUICK };
    for number in 0..5 {
        let client = client(&rig, &detour, Some(eager)).map_err(|e| e.to_string())?;
        write(&client, number..number + 1)?;
        client.flush(DEADLINE).await;
        is_on(&client, Carrier::Quic).await?;
    }
    let client = client(&rig, &detour, Some(TcpFallback::default())).map_err(|e| e.to_string())?;
    client.connected().await?;
    rig.relay().kill().await?;
    write(&client, 5..6)?;
    // Longer than the head start: QUIC and TCP wait for the relay side by side.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    rig.relay().restart().await?;
    stored_once(&rig, &client, 0..6).await?;
    is_on(&client, Carrier::Quic).await
}

async fn distrust() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let detour = Detour::to(rig.relay_address(), Open::TCP).await?;
    let foreign = Cluster::new("foreign")?;
    let (ours, roots) = (rig.cluster().authority(), rig.cluster().roots());
    let refused = [
        (Leaf::runner("r1").issued_by(foreign.authority()).credentials()?, CertificateRefusal::UnknownCa),
        (Leaf::runner("r1").expired().issued_by(ours).credentials()?, CertificateRefusal::Expired),
    ];
    for (credentials, expected) in refused {
        let client = client_as(&credentials, roots, &detour, Some(QUICK)).map_err(|e| e.to_string())?;
        match client.connected().await {
            Err(ConnectError::Refused(refusal)) => assert_eq!(refusal, expected),
            other => return Err(format!("{expected:?}: {other:?}").into()),
        }
    }
    let client =
        client_as(&rig.runner(0).credentials, foreign.roots(), &detour, Some(QUICK)).map_err(|e| e.to_string())?;
    assert!(matches!(client.connected().await, Err(ConnectError::UntrustedServer(_))));
    Ok(())
}

/// Another program has the number on TCP. As long as QUIC works in the end, nothing is held up by that.
async fn stranger() -> TestResult {
    let rig = Rig::builder().start().await?;
    let foreign = Rig::builder().tcp().start().await?;
    let detour = Detour::between(rig.relay_address(), foreign.relay_address(), Open::TCP).await?;
    let client = client(&rig, &detour, Some(QUICK)).map_err(|e| e.to_string())?;
    write(&client, 0..1)?;
    client.flush(Duration::from_secs(2)).await;
    detour.set(Open::ALL);
    let begun = Instant::now();
    is_on(&client, Carrier::Quic).await?;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    stored_once(&rig, &client, 0..1).await
}

async fn off() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let detour = Detour::to(rig.relay_address(), Open::TCP).await?;
    let client = client(&rig, &detour, None).map_err(|e| e.to_string())?;
    assert!(matches!(client.connected().await, Err(ConnectError::Timeout)));
    detour.set(Open::ALL);
    is_on_after(&client).await
}

async fn is_on_after(client: &Client) -> TestResult {
    client.connected().await?;
    is_on(client, Carrier::Quic).await
}

async fn agent() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let detour = Detour::to(rig.relay_address(), Open::TCP).await?;
    let folder = tempfile::tempdir()?;
    let issued = rig.cluster().issue(&rig.runner(0).id)?;
    let path = |name: &str| folder.path().join(name);
    for (name, text) in [
        ("runner.pem", issued.chain_pem.as_str()),
        ("runner.key", issued.key_pem.as_str()),
        ("ca.pem", rig.cluster().root_pem()),
    ] {
        std::fs::write(path(name), text)?;
    }
    let config = format!(
        "coordinators = [\"localhost:{}\"]\ntcp = \"auto\"\n\
         [identity]\ncertificate = \"runner.pem\"\nkey = \"runner.key\"\nca = \"ca.pem\"\n",
        detour.address().port()
    );
    std::fs::write(path("agent.toml"), config)?;
    let mut check = Command::new(Program::RunnerAgent.find()?);
    check.arg("check").arg("--config").arg(path("agent.toml")).kill_on_drop(true);
    let output = check.output().await?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("over tcp") && text.contains("there is a token"), "{output:?}");
    // Unknown words are refused, with those that there are.
    let mut wrong = Command::new(Program::RunnerAgent.find()?);
    wrong.args(["check", "--tcp", "maybe", "--config"]).arg(path("agent.toml")).kill_on_drop(true);
    let output = wrong.output().await?;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    Ok(())
}
