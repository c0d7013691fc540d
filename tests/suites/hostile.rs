//! Peers that mean harm: the memory and the descriptors of the relay's program stay flat, and others do not notice.

use std::num::NonZeroU64;
use std::time::Duration;

use bytes::Bytes;
use telemetry_proto::{Reason, Signal, limits};
use telemetry_relay::admission::Rate;
use telemetry_rig::process::Usage;
use telemetry_rig::raw::{Frame, HandMade, OpenRequest, RawClient, RawError, RequestHead};
use telemetry_rig::rig::{Rig, RigRelay, tenant};
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;

telemetry_rig::suite! {
    eight_of_the_largest_bodies_at_once_stay_within_the_memory_budget needs [Relay];
    ten_thousand_resets_leave_no_memory_and_no_descriptors needs [Relay];
    a_thousand_resets_leave_no_request_and_no_reservation;
    heads_of_large_bodies_that_never_come_use_up_nobodys_bytes;
    bodies_that_are_announced_and_never_come_cost_no_memory_and_nobody_else needs [Relay];
    huge_headers_and_unknown_frames_are_not_held needs [Relay];
    lesson_6_trickling_bodies_hold_no_place_at_the_store;
}

const LINE: &str = "up 1 1790000000000\n";
const MIB: u64 = 1024 * 1024;
/// What the relay's program may need beside the bodies that it holds.
const SLACK: u64 = 32 * MIB;

async fn write(rig: &Rig, client: &RawClient, runner: usize, body: impl Into<Bytes>) -> TestResult {
    client.write(Signal::Metrics).token(&rig.token(runner)).body(body).send().await?.expect_delivered()?;
    Ok(())
}

/// A relay program with a neighbour who has written once, and what the program holds then.
async fn with_neighbour() -> Result<(Rig, RawClient, Usage), Box<dyn std::error::Error>> {
    let rig = Rig::builder().runners(2).relay_program("").start().await?;
    let neighbour = rig.raw_client(1).await?;
    neighbour.write(Signal::Metrics).token(&rig.token(1)).body(LINE).send().await?.expect_delivered()?;
    let usage = rig.relay_program().usage()?;
    Ok((rig, neighbour, usage))
}

/// The neighbour still writes, and the program holds what it held before.
async fn flat_again(rig: &Rig, neighbour: &RawClient, before: Usage) -> TestResult {
    write(rig, neighbour, 1, LINE).await?;
    let flat = async || {
        let now = rig.relay_program().usage().map_err(|error| error.to_string())?;
        let flat = now.peak_memory_bytes <= before.peak_memory_bytes + SLACK && now.descriptors <= before.descriptors;
        if flat { Ok(()) } else { Err(format!("{now:?}, and {before:?} before")) }
    };
    Ok(wait::until("memory and descriptors as before", Duration::from_secs(10), flat).await?)
}

fn largest_body() -> Result<Bytes, std::num::TryFromIntError> {
    let mut body = LINE.as_bytes().to_vec();
    body.resize(usize::try_from(limits::MAX_BODY_BYTES)?, b'#');
    Ok(body.into())
}

async fn eight_of_the_largest_bodies_at_once_stay_within_the_memory_budget() -> TestResult {
    const BUDGET: u64 = 96 * MIB;
    let settings = format!("[limits]\nbody_memory_bytes = {BUDGET}\nbody_memory_per_runner_bytes = {BUDGET}\n");
    let rig = Rig::builder().runners(2).relay_program(&settings).start().await?;
    let clients = [rig.raw_client(0).await?, rig.raw_client(1).await?];
    write(&rig, &clients[0], 0, LINE).await?;
    let before = rig.relay_program().usage()?;

    let body = largest_body()?;
    let writes = (0..8).map(|number| write(&rig, &clients[number % 2], number % 2, body.clone()));
    futures_util::future::try_join_all(writes).await?;
    let peak = rig.relay_program().usage()?.peak_memory_bytes;
    assert!(peak <= before.peak_memory_bytes + BUDGET + SLACK, "{} MiB", peak / MIB);
    assert_eq!(rig.metrics_store().samples().await?.len(), 9);
    Ok(())
}

/// Begins requests and gives each up at once. The relay closes a connection that does so too often; then comes the next.
async fn reset(rig: &Rig, count: usize) -> TestResult {
    let frames = [RequestHead::write(Signal::Metrics, &rig.token(0), 1_000_000).frame(), Frame::data(LINE)];
    let mut peer = rig.hand_made(0).await?;
    for _ in 0..count {
        match peer.begin(&frames).await {
            Ok(request) => request.give_up(),
            Err(_) => peer = rig.hand_made(0).await?,
        }
    }
    Ok(())
}

async fn ten_thousand_resets_leave_no_memory_and_no_descriptors() -> TestResult {
    let (rig, neighbour, before) = with_neighbour().await.map_err(|error| error.to_string())?;
    reset(&rig, 10_000).await?;
    flat_again(&rig, &neighbour, before).await
}

async fn a_thousand_resets_leave_no_request_and_no_reservation() -> TestResult {
    let rig = Rig::builder().start().await?;
    reset(&rig, 1_000).await?;
    let RigRelay::InProcess(relay) = rig.relay() else { return Err("the relay is elsewhere".into()) };
    let nothing_left = async || {
        let reserved = relay.service().map_or(0, |service| service.reserved_body_bytes());
        match (relay.load(), reserved) {
            ((0, 0), 0) => Ok(()),
            left => Err(format!("{left:?}")),
        }
    };
    wait::until("no requests, connections and reservations", Duration::from_secs(10), nothing_left).await?;
    assert!(rig.built_in_store().requests().is_empty());
    Ok(())
}

async fn heads_of_large_bodies_that_never_come_use_up_nobodys_bytes() -> TestResult {
    // The tenant of both may send four of the largest bodies at once, and then one in eight minutes.
    let mut both = tenant("both", "r*", "1");
    let rate = |bytes| NonZeroU64::new(bytes).ok_or("zero");
    both.limits.rates.bytes = Some(Rate { per_second: rate(64 * 1024)?, burst: rate(4 * limits::MAX_BODY_BYTES)? });
    let rig = Rig::builder().runners(2).tenants([both]).start().await?;
    let RigRelay::InProcess(relay) = rig.relay() else { return Err("the relay is elsewhere".into()) };
    let reserves = async |some: bool| {
        let look = async || match relay.service().map_or(0, |service| service.reserved_body_bytes()) {
            bytes if (bytes > 0) == some => Ok(()),
            bytes => Err(format!("{bytes} bytes")),
        };
        wait::until(format!("memory for bodies is held: {some}"), Duration::from_secs(10), look).await
    };
    let peer = rig.hand_made(0).await?;
    let head = RequestHead::write(Signal::Metrics, &rig.token(0), limits::MAX_BODY_BYTES).frame();
    for _ in 0..12 {
        let request = peer.begin(&[head.clone(), Frame::data(LINE)]).await?;
        reserves(true).await?;
        request.give_up();
        reserves(false).await?;
    }
    // All four are still to be had, but for the few bytes that came of the twelve.
    let neighbour = rig.raw_client(1).await?;
    let body = largest_body()?;
    for _ in 0..4 {
        write(&rig, &neighbour, 1, body.clone()).await?;
    }
    // What arrives is never given back.
    let answer = neighbour.write(Signal::Metrics).token(&rig.token(1)).body(body).send().await?;
    answer.expect_refusal(Reason::RateLimited)?;
    Ok(())
}

async fn hold(rig: &Rig, peer: &HandMade, announced: u64, count: usize) -> Result<Vec<OpenRequest>, RawError> {
    let frames = [RequestHead::write(Signal::Metrics, &rig.token(0), announced).frame(), Frame::data("u")];
    let mut held = Vec::new();
    for _ in 0..count {
        held.push(peer.begin(&frames).await?);
    }
    Ok(held)
}

async fn bodies_that_are_announced_and_never_come_cost_no_memory_and_nobody_else() -> TestResult {
    let (rig, neighbour, before) = with_neighbour().await.map_err(|error| error.to_string())?;
    let peers = [rig.hand_made(0).await?, rig.hand_made(0).await?];
    let mut held = hold(&rig, &peers[0], limits::MAX_BODY_BYTES, 50).await?;
    held.extend(hold(&rig, &peers[1], limits::MAX_BODY_BYTES, 50).await?);
    write(&rig, &neighbour, 1, LINE).await?;
    drop((held, peers));
    flat_again(&rig, &neighbour, before).await
}

async fn huge_headers_and_unknown_frames_are_not_held() -> TestResult {
    let (rig, neighbour, before) = with_neighbour().await.map_err(|error| error.to_string())?;
    let large = Bytes::from(vec![0; usize::try_from(64 * MIB)?]);
    let unknown = Frame { kind: 0x21, announced: large.len() as u64, payload: large.clone() };
    for frame in [Frame::headers(large), unknown] {
        let peer = rig.hand_made(0).await?;
        // Whether stream or connection ends is the guard's affair; that nothing is held is the promise.
        let _ = peer.exchange(&[frame]).await;
    }
    flat_again(&rig, &neighbour, before).await
}

async fn lesson_6_trickling_bodies_hold_no_place_at_the_store() -> TestResult {
    let rig = Rig::builder().runners(2).start().await?;
    let peer = rig.hand_made(0).await?;
    let held = hold(&rig, &peer, 1_000, 50).await?;
    for runner in 0..2 {
        write(&rig, &rig.raw_client(runner).await?, runner, LINE).await?;
    }
    assert_eq!(rig.built_in_store().requests().len(), 2);
    drop(held);
    Ok(())
}
