//! Peers that take their time, and peers that never come to the point.

use std::sync::Arc;
use std::time::Duration;

use h3::error::Code;
use quinn::{TransportConfig, VarInt};

use libtest_mimic::Failed;
use telemetry_proto::{Route, Signal, limits};
use telemetry_rig::outcome;
use telemetry_rig::raw::{Frame, HandMade, OpenRequest, Outcome, RequestHead, client_config, dial_with};
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::{Suite, TestResult};
use tokio::time::{sleep, timeout};

use crate::NEEDS;
use crate::arena::{ATTACKER, serves_honest_runners, withstand};
use crate::expected::{Expected, saw_outcome};

/// Longer than a relay waits for headers and SETTINGS.
const PATIENCE: Duration = Duration::from_secs(14);
/// Between two bytes of a trickle.
const BETWEEN: Duration = Duration::from_millis(250);

pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .expecting("slowness: headers_that_trickle", "each is given up when its headers took too long", NEEDS, || {
            withstand(slow_headers)
        })
        .expecting("slowness: bodies_that_trickle", "they hold nobody up", NEEDS, || withstand(slow_bodies))
        .expecting("slowness: settings_that_never_come", "connection closed within 14 s", NEEDS, || {
            withstand(no_settings)
        })
        .expecting("slowness: responses_that_nobody_reads", "they hold nobody up", NEEDS, || withstand(no_reads))
        .expecting(
            "slowness: requests_that_wait_for_nothing",
            "stream reset: H3_REQUEST_CANCELLED within 14 s",
            NEEDS,
            || withstand(idle_requests),
        )
}

/// A byte at a time, on fifty streams: each is given up when its headers took too long.
async fn slow_headers(rig: &Rig) -> TestResult {
    let peer = rig.hand_made(ATTACKER).await?;
    let mut requests = begin(&peer, &[], 50).await?;
    let trickle = async {
        // Type and length of a HEADERS frame that never comes to its end.
        for byte in [0x01, 0x44, 0x00].into_iter().chain(std::iter::repeat(0)) {
            for at in 0..requests.len() {
                if requests[at].write(&[byte]).await.is_err() {
                    saw_outcome(&requests.swap_remove(at).wait().await?);
                    return Ok::<_, Failed>(());
                }
            }
            serves_honest_runners(rig).await?;
            sleep(BETWEEN).await;
        }
        Ok(())
    };
    timeout(PATIENCE, trickle).await.map_err(|_| "headers may trickle for ever")?
}

/// Fifty bodies of a byte now and then hold nobody up. How long they may go on is another test's business.
async fn slow_bodies(rig: &Rig) -> TestResult {
    let peer = rig.hand_made(ATTACKER).await?;
    let head = RequestHead::write(Signal::Metrics, &rig.token(ATTACKER), limits::MAX_BODY_BYTES).frame();
    let mut requests = begin(&peer, &[head], 50).await?;
    let mut most = 0;
    for _ in 0..12 {
        let mut held = Vec::new();
        for mut request in requests {
            // Some have their memory, and some wait for it, and their bodies for them. A runner has so many places for that
            // and no more: the others are refused, and their bodies stopped.
            if request.write(&Frame::encode(&[Frame::data("#")])).await.is_ok() {
                held.push(request);
            }
        }
        requests = held;
        most = most.max(requests.len());
        serves_honest_runners(rig).await?;
        sleep(BETWEEN).await;
    }
    outcome::saw(format!("{most} of 50 were held at most, and an honest runner was served meanwhile"));
    assert!(most >= 32, "{most} were held, as many as a runner may have waiting");
    Ok(())
}

async fn no_settings(rig: &Rig) -> TestResult {
    let mut peers = Vec::new();
    for _ in 0..10 {
        let relay = rig.relay_address();
        peers.push(HandMade::silent(relay, rig.cluster().roots(), &rig.runner(ATTACKER).credentials).await?);
    }
    serves_honest_runners(rig).await?;
    for peer in &peers {
        let code = timeout(PATIENCE, peer.closed()).await.map_err(|_| "a peer may be silent for ever")??;
        outcome::saw(Expected::Closed(Code::from(code)).to_string());
    }
    Ok(())
}

/// A window of a few bytes: no response fits.
async fn no_reads(rig: &Rig) -> TestResult {
    let mut config = client_config(rig.cluster().roots(), Some(&rig.runner(ATTACKER).credentials))?;
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(8)).max_idle_timeout(Some(VarInt::from_u32(5_000).into()));
    config.transport_config(Arc::new(transport));
    let (endpoint, connection) = dial_with(rig.relay_address(), config).await?;
    let peer = HandMade::over(endpoint, connection);
    let _control = peer.open_uni(0, &Frame::encode(&[Frame::new(0x4, "")])).await?;
    let head = RequestHead::default()
        .field(":method", "GET")
        .field(":scheme", "https")
        .field(":authority", "localhost")
        .field(":path", Route::Policy.path());
    let requests = begin(&peer, &[head.frame()], 50).await?;
    for _ in 0..8 {
        serves_honest_runners(rig).await?;
        sleep(BETWEEN).await;
    }
    assert!(peer.connection().close_reason().is_none());
    let open = requests.len();
    outcome::saw(format!("{open} responses wait, their connection lives, and an honest runner was served meanwhile"));
    drop(requests);
    Ok(())
}

/// As many requests as may be open, none of which ever says a word, and none more.
async fn idle_requests(rig: &Rig) -> TestResult {
    let peer = rig.hand_made(ATTACKER).await?;
    // The first byte, or the relay would not know of them.
    let mut requests = begin(&peer, &[], 100).await?;
    for request in &mut requests {
        request.write(&[0x01]).await?;
    }
    serves_honest_runners(rig).await?;
    for request in requests {
        let outcome = timeout(PATIENCE, request.wait()).await.map_err(|_| "a request may be silent for ever")??;
        saw_outcome(&outcome);
        let cancelled = Code::H3_REQUEST_CANCELLED.value();
        assert!(outcome == Outcome::Reset(cancelled) || matches!(outcome, Outcome::Closed(_)), "{outcome:?}");
    }
    Ok(())
}

async fn begin(peer: &HandMade, frames: &[Frame], count: usize) -> Result<Vec<OpenRequest>, String> {
    let mut requests = Vec::new();
    for _ in 0..count {
        requests.push(peer.begin(frames).await.map_err(|error| error.to_string())?);
    }
    Ok(requests)
}
