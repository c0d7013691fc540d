//! Where an attack is made, and what must hold afterwards.

use std::panic::{set_hook, take_hook};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use telemetry_proto::{Signal, header};
use telemetry_rig::process::Usage;
use telemetry_rig::rig::{Rig, RigRelay};
use telemetry_rig::suite::TestResult;
use telemetry_rig::tcp::Http;
use telemetry_rig::wait;

/// The runner that attacks.
pub(crate) const ATTACKER: usize = 0;
/// The runner that must not notice.
const HONEST: usize = 1;

pub(crate) const LINE: &str = "up 1 1790000000000\n";

const MIB: u64 = 1024 * 1024;
/// What the allocator may keep after an attack.
const MEMORY_KEPT: u64 = 16 * MIB;
/// What an attack may make the relay hold while it lasts. Far below the bodies that honest runners may send.
const MEMORY_PEAK: u64 = 64 * MIB;
const SERVED_WITHIN: Duration = Duration::from_secs(2);
/// A handshake that is begun and not continued is held for its 10 s, and QUIC remembers its end for some more.
const CALM_WITHIN: Duration = Duration::from_secs(20);

/// Panics in what runs beside the tests.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts panics from now on, but for those of failing tests.
pub(crate) fn count_panics() {
    let report = take_hook();
    set_hook(Box::new(move |panic| {
        if panic.location().is_none_or(|location| !location.file().contains("suites")) {
            PANICS.fetch_add(1, Ordering::SeqCst);
        }
        report(panic);
    }));
}

// The future of an attack is large, and a test's stack is small: each is boxed where it is made.

/// Makes the attack against the relay's program, and against a relay in this process.
pub(crate) async fn withstand(attack: impl AsyncFn(&Rig) -> TestResult) -> TestResult {
    tokio::try_join!(Box::pin(against_program(&attack)), Box::pin(in_process(&attack))).map(|_| ())
}

/// The same for an attack whose first round makes the process grow to the size at which it withstands it: the second must
/// add nothing.
pub(crate) async fn withstand_twice(attack: impl AsyncFn(&Rig) -> TestResult) -> TestResult {
    let rig = Rig::builder().runners(2).tcp().relay_program("").start().await?;
    Box::pin(attack(&rig)).await?;
    tokio::try_join!(Box::pin(against(&rig, &attack)), Box::pin(in_process(&attack))).map(|_| ())
}

async fn against_program(attack: &impl AsyncFn(&Rig) -> TestResult) -> TestResult {
    let rig = Rig::builder().runners(2).tcp().relay_program("").start().await?;
    Box::pin(against(&rig, attack)).await
}

/// Makes the attack against the program of this rig.
pub(crate) async fn against(rig: &Rig, attack: &impl AsyncFn(&Rig) -> TestResult) -> TestResult {
    // What the first request costs is no attack's doing.
    serves_honest_runners(rig).await?;
    let before = rig.relay_program().usage()?;
    Box::pin(attack(rig)).await?;
    serves_honest_runners(rig).await?;
    holds_what_it_held(rig, before).await?;
    let log = rig.relay_program().log()?;
    assert!(!log.contains("panicked"), "{log}");
    Ok(())
}

/// Makes the attack against a relay in this process.
pub(crate) async fn in_process(attack: &impl AsyncFn(&Rig) -> TestResult) -> TestResult {
    let rig = Rig::builder().runners(2).tcp().start().await?;
    Box::pin(attack(&rig)).await?;
    serves_honest_runners(&rig).await?;
    nothing_runs(&rig).await?;
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "something panicked");
    Ok(())
}

/// An honest runner that comes now is served at once, over QUIC and over TCP.
pub(crate) async fn serves_honest_runners(rig: &Rig) -> TestResult {
    serves_honest_runners_within(rig, SERVED_WITHIN).await
}

/// The same for a while in which this process and the relay have more to do than the machine has cores for.
pub(crate) async fn serves_honest_runners_within(rig: &Rig, within: Duration) -> TestResult {
    let over_quic = tokio::time::timeout(within, async {
        let client = rig.raw_client(HONEST).await?;
        client.write(Signal::Metrics).token(&rig.token(HONEST)).body(LINE).send().await
    });
    let over_tcp = tokio::time::timeout(within, async {
        let request = Request::post(Signal::Metrics.write_path())
            .header(header::WORKLOAD_TOKEN, rig.token(HONEST))
            .body(Bytes::from_static(LINE.as_bytes()))
            .map_err(std::io::Error::other)?;
        rig.tcp_client(HONEST, Http::Two).await?.send(request).await
    });
    let late = |_| format!("an honest runner was not served within {within:?}");
    over_quic.await.map_err(late)??.expect_delivered()?;
    Ok(over_tcp.await.map_err(late)??.expect_delivered()?)
}

async fn holds_what_it_held(rig: &Rig, before: Usage) -> TestResult {
    let held = async || {
        let now = rig.relay_program().usage().map_err(|error| error.to_string())?;
        let held = now.memory_bytes <= before.memory_bytes + MEMORY_KEPT
            && now.peak_memory_bytes <= before.peak_memory_bytes + MEMORY_PEAK
            && now.descriptors <= before.descriptors;
        if held { Ok(()) } else { Err(format!("{now:?}, and {before:?} before")) }
    };
    Ok(wait::until("memory and descriptors as before", CALM_WITHIN, held).await?)
}

async fn nothing_runs(rig: &Rig) -> TestResult {
    let RigRelay::InProcess(relay) = rig.relay() else { return Err("the relay is elsewhere".into()) };
    let nothing = async || {
        let reserved = relay.service().map_or(0, |service| service.reserved_body_bytes());
        match (relay.load(), reserved) {
            ((0, 0), 0) => Ok(()),
            ((requests, connections), bytes) => {
                Err(format!("{requests} requests, {connections} connections, {bytes} bytes reserved"))
            }
        }
    };
    Ok(wait::until("no requests, connections and reservations", CALM_WITHIN, nothing).await?)
}
