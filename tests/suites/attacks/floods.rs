//! Much of everything: resets, stops, requests, connections, handshakes. Each is bounded in count.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use h3::error::Code;
use quinn::VarInt;

use telemetry_proto::{Reason, Signal};
use telemetry_rig::outcome;
use telemetry_rig::raw::{Frame, RawClient, client_config, dial_with};
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::{Suite, TestResult};
use telemetry_rig::wait;

use crate::NEEDS;
use crate::arena::{ATTACKER, LINE, serves_honest_runners, withstand};
use crate::expected::{closed_with, good_head, saw_end};

pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .expecting("floods: resets_before_headers", "connection closed: H3_EXCESSIVE_LOAD", NEEDS, || {
            withstand(async |rig| resets(rig, b"\x01").await)
        })
        .expecting("floods: resets_after_headers", "connection closed: H3_EXCESSIVE_LOAD", NEEDS, || {
            withstand(async |rig| resets(rig, &Frame::encode(&[good_head(rig).frame()])).await)
        })
        .expecting("floods: responses_that_are_not_wanted", "connection closed: H3_EXCESSIVE_LOAD", NEEDS, || {
            withstand(stops)
        })
        .expecting("floods: requests_without_a_token", "each refused: token-missing", NEEDS, || withstand(requests))
        .expecting("floods: connections_of_one_runner", "the oldest are closed for new ones", NEEDS, || {
            withstand(connections)
        })
        .expecting("floods: connections_that_leave_at_once", "nothing is left of them", NEEDS, || {
            withstand(come_and_go)
        })
        .expecting("floods: tokens_of_addresses_that_are_made_up", "served as anyone without one", NEEDS, || {
            withstand(address_tokens)
        })
}

/// CVE-2023-44487 over QUIC: requests that are given up as soon as they are made.
async fn resets(rig: &Rig, bytes: &[u8]) -> TestResult {
    let peer = rig.hand_made(ATTACKER).await?;
    for _ in 0..5_000 {
        let Ok(mut request) = peer.begin(&[]).await else { break };
        let _ = request.write(bytes).await;
        request.give_up();
    }
    closed_with(&peer, Code::H3_EXCESSIVE_LOAD).await?;
    Ok(())
}

async fn stops(rig: &Rig) -> TestResult {
    let peer = rig.hand_made(ATTACKER).await?;
    let good = Frame::encode(&[good_head(rig).frame()]);
    for _ in 0..5_000 {
        let Ok((mut send, mut receive)) = peer.connection().open_bi().await else { break };
        let _ = receive.stop(VarInt::from_u32(0x10c));
        let _ = send.write_all(&good).await;
    }
    closed_with(&peer, Code::H3_EXCESSIVE_LOAD).await?;
    Ok(())
}

async fn requests(rig: &Rig) -> TestResult {
    let client = rig.raw_client(ATTACKER).await?;
    for _ in 0..20 {
        let answers = join_all((0..100).map(|_| client.write(Signal::Metrics).body(LINE).send())).await;
        for answer in answers {
            let answer = answer?;
            outcome::saw(answer.to_string());
            answer.expect_refusal(Reason::TokenMissing)?;
        }
        serves_honest_runners(rig).await?;
    }
    Ok(())
}

/// The oldest make room: one runner has so many connections and no more.
async fn connections(rig: &Rig) -> TestResult {
    const AT_A_TIME: usize = 16;
    let mut peers = Vec::new();
    for _ in 0..40 {
        peers.push(rig.hand_made(ATTACKER).await?);
    }
    let open = async || match peers.iter().filter(|peer| peer.connection().close_reason().is_none()).count() {
        AT_A_TIME => Ok(()),
        count => Err(format!("{count} open connections")),
    };
    wait::until("the close of the surplus", Duration::from_secs(5), open).await?;
    outcome::saw(format!("{AT_A_TIME} of {} stay open", peers.len()));
    peers.iter().for_each(|peer| saw_end(peer.connection()));
    serves_honest_runners(rig).await
}

async fn come_and_go(rig: &Rig) -> TestResult {
    let mut in_all = 0;
    for round in 0..10 {
        let arrivals = join_all((0..15).map(|_| rig.raw_client(ATTACKER))).await;
        let arrived = arrivals.iter().filter(|arrival| arrival.is_ok()).count();
        assert!(arrived > 0, "nobody got in in round {round}");
        in_all += arrived;
        serves_honest_runners(rig).await?;
    }
    outcome::saw(format!("{in_all} of 150 got in, and an honest runner was served after each fifteen"));
    Ok(())
}

/// Whoever shows a token that the relay never gave out is as anyone without one.
async fn address_tokens(rig: &Rig) -> TestResult {
    for bytes in [1, 16, 64, 100, 500] {
        let mut config = client_config(rig.cluster().roots(), Some(&rig.runner(ATTACKER).credentials))?;
        config.token_store(Arc::new(Forged(Bytes::from(vec![0x5a; bytes]))));
        let (_endpoint, connection) = dial_with(rig.relay_address(), config).await?;
        assert!(connection.close_reason().is_none());
        outcome::saw(format!("connected with {bytes} bytes"));
    }
    let _: RawClient = rig.raw_client(ATTACKER).await?;
    Ok(())
}

/// Has the same token for everyone.
struct Forged(Bytes);

impl quinn::TokenStore for Forged {
    fn insert(&self, _server_name: &str, _token: Bytes) {}

    fn take(&self, _server_name: &str) -> Option<Bytes> {
        Some(self.0.clone())
    }
}
