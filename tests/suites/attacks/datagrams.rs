//! Datagrams as no QUIC library would send them: from many addresses, of unknown versions, of no version, and never answered.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use h3::error::Code;
use quinn::Endpoint;
use telemetry_rig::outcome;
use telemetry_rig::raw::{Frame, HandMade, client_config, dial_with};
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::{Suite, TestResult};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout, timeout_at};

use crate::NEEDS;
use crate::arena::{ATTACKER, LINE, serves_honest_runners, withstand, withstand_twice};
use crate::expected::{Expected, expect, good_head};

/// The smallest datagram that may begin a connection (RFC 9000 section 14.1).
const INITIAL: usize = 1_200;
const SHORT: Duration = Duration::from_millis(300);

pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .expecting(
            "datagrams: versions_that_nobody_speaks",
            "version negotiation, no larger than what asked for it; no answer to what is too small or no beginning",
            NEEDS,
            || withstand(versions),
        )
        .expecting("datagrams: noise", "no more bytes come back than were sent", NEEDS, || withstand(noise))
        .expecting(
            "datagrams: amplification",
            "less than three times the bytes and one datagram come back",
            NEEDS,
            || withstand(amplification),
        )
        .expecting(
            "datagrams: handshakes_from_many_addresses",
            "at most three times the bytes come back; the second round adds nothing",
            NEEDS,
            || withstand_twice(handshakes),
        )
        .expecting("datagrams: one_beginning_many_times", "at most three times the bytes come back", NEEDS, || {
            withstand(replay)
        })
        .expecting("datagrams: a_peer_that_moves", "the connection goes on from the new address", NEEDS, || {
            withstand(migration)
        })
}

/// RFC 9000 section 6: the versions that are spoken, in a datagram no larger than the one that asked.
async fn versions(rig: &Rig) -> TestResult {
    let socket = socket_on(Ipv4Addr::LOCALHOST).await?;
    let mut reply = [0; 65_536];
    let mut ask = async |first: u8, version: u32, size: usize| -> io::Result<Option<Vec<u8>>> {
        socket.send_to(&long_header(first, version, size), rig.relay_address()).await?;
        match timeout(SHORT, socket.recv(&mut reply)).await {
            Ok(received) => Ok(Some(reply[..received?].to_vec())),
            Err(_) => Ok(None),
        }
    };
    let offered = ask(0xc0, 0x1a2a_3a4a, INITIAL).await?.ok_or("no version negotiation")?;
    assert!(offered.len() <= INITIAL && offered[0] & 0x80 != 0 && offered[1..5] == [0; 4], "{offered:?}");
    assert!(offered.chunks(4).len() > 2 && offered.windows(4).any(|version| version == [0, 0, 0, 1]), "{offered:?}");
    outcome::saw(format!("version negotiation of {} bytes for {INITIAL}", offered.len()));
    // Too small to be worth an answer; an answer to an answer; a first packet that is none.
    for (first, version, size) in [(0xc0, 0x1a2a_3a4a, 100), (0xc0, 0, INITIAL), (0xe0, 1, INITIAL), (0xc0, 1, 100)] {
        let answer = ask(first, version, size).await?;
        assert!(answer.is_none(), "{first:#x} {version:#x} {size}: {answer:?}");
        outcome::saw(format!("nothing for {size} bytes that begin {first:#04x} and name version {version:#x}"));
    }
    Ok(())
}

async fn noise(rig: &Rig) -> TestResult {
    let socket = socket_on(Ipv4Addr::new(127, 0, 0, 9)).await?;
    let mut sent = 0;
    for round in 0..20 {
        for _ in 0..500 {
            let mut datagram = vec![0; fastrand::usize(1..1_500)];
            fastrand::fill(&mut datagram);
            sent += datagram.len();
            // The system may have no room for it.
            let _ = socket.try_send_to(&datagram, rig.relay_address());
        }
        if round % 5 == 0 {
            serves_honest_runners(rig).await?;
        }
    }
    let received = receive_for(&socket, SHORT).await;
    saw_bytes(received, sent);
    assert!(received <= sent, "{received} bytes came back for {sent}");
    Ok(())
}

/// RFC 9000 section 8.1: an address that has not proved itself gets three times what came from it at most, repetitions included.
/// quinn lets the datagram that reaches the limit out whole (quinn 1082), and no other.
async fn amplification(rig: &Rig) -> TestResult {
    let beginning = beginnings(rig, 1).await?.pop().ok_or("no beginning")?;
    let socket = socket_on(Ipv4Addr::new(127, 0, 0, 9)).await?;
    socket.send_to(&beginning, rig.relay_address()).await?;
    // Long enough for several repetitions.
    let received = receive_for(&socket, Duration::from_secs(5)).await;
    saw_bytes(received, beginning.len());
    assert!(received > 0, "there is no answer at all");
    assert!(received < 3 * beginning.len() + INITIAL, "{received} bytes came back for {}", beginning.len());
    Ok(())
}

/// Half-open handshakes from a thousand addresses, none of which is ever heard of again.
async fn handshakes(rig: &Rig) -> TestResult {
    const AT_A_TIME: usize = 200;
    let (mut sent_in_all, mut received_in_all) = (0, 0);
    for network in 1..=5 {
        let beginnings = beginnings(rig, AT_A_TIME).await?;
        let mut sockets = Vec::new();
        let mut sent = 0;
        for (host, beginning) in (1_u8..).zip(&beginnings) {
            let socket = socket_on(Ipv4Addr::new(127, 1, network, host)).await?;
            socket.send_to(beginning, rig.relay_address()).await?;
            sent += beginning.len();
            sockets.push(socket);
        }
        serves_honest_runners(rig).await?;
        let mut received = 0;
        for socket in &sockets {
            received += receive_for(socket, Duration::from_millis(1)).await;
        }
        assert!(received <= 3 * sent, "{received} bytes came back for {sent}");
        (sent_in_all, received_in_all) = (sent_in_all + sent, received_in_all + received);
    }
    saw_bytes(received_in_all, sent_in_all);
    Ok(())
}

/// The same first packet over and over, from many ports.
async fn replay(rig: &Rig) -> TestResult {
    let beginning = beginnings(rig, 1).await?.pop().ok_or("no beginning")?;
    let mut sockets = Vec::new();
    for _ in 0..200 {
        let socket = socket_on(Ipv4Addr::new(127, 0, 0, 9)).await?;
        socket.send_to(&beginning, rig.relay_address()).await?;
        sockets.push(socket);
    }
    serves_honest_runners(rig).await?;
    let mut received = 0;
    for socket in &sockets {
        received += receive_for(socket, Duration::from_millis(1)).await;
    }
    saw_bytes(received, 200 * beginning.len());
    assert!(received <= 3 * 200 * beginning.len(), "{received} bytes came back");
    Ok(())
}

/// An address is never an identity: a runner that moves to another port and another address is the same.
async fn migration(rig: &Rig) -> TestResult {
    let config = client_config(rig.cluster().roots(), Some(&rig.runner(ATTACKER).credentials))?;
    let (endpoint, connection) = dial_with(rig.relay_address(), config).await?;
    let peer = HandMade::over(endpoint.clone(), connection);
    let _control = peer.open_uni(0, &Frame::encode(&[Frame::new(0x4, "")])).await?;
    for host in 1..=20 {
        endpoint.rebind(std::net::UdpSocket::bind((Ipv4Addr::new(127, 0, 1, host), 0))?)?;
        expect(&peer, &[good_head(rig).frame(), Frame::data(LINE)], Expected::Delivered).await?;
    }
    peer.connection().close(u32::try_from(Code::H3_NO_ERROR.value())?.into(), b"");
    endpoint.wait_idle().await;
    assert!(rig.built_in_store().samples().iter().any(|sample| sample.label("miren_runner") == "r1"));
    Ok(())
}

fn saw_bytes(received: usize, sent: usize) {
    outcome::saw(format!("{received} bytes came back for {sent}"));
}

/// First packets of handshakes, as our own client makes them, taken away before they reach the relay.
async fn beginnings(rig: &Rig, count: usize) -> Result<Vec<Vec<u8>>, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let sink = socket_on(Ipv4Addr::LOCALHOST).await.map_err(|e| failed(&e))?;
    let address = sink.local_addr().map_err(|e| failed(&e))?;
    let config =
        client_config(rig.cluster().roots(), Some(&rig.runner(ATTACKER).credentials)).map_err(|e| failed(&e))?;
    let endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).map_err(|e| failed(&e))?;
    let mut beginnings = Vec::new();
    let mut datagram = [0; 2_048];
    for _ in 0..count {
        let connecting = endpoint.connect_with(config.clone(), address, "localhost").map_err(|e| failed(&e))?;
        loop {
            let received = timeout(Duration::from_secs(5), sink.recv(&mut datagram)).await;
            let length = received.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
            let beginning = datagram[..length].to_vec();
            // Not the farewell of the one before, nor its repetition.
            if length >= INITIAL && !beginnings.contains(&beginning) {
                beginnings.push(beginning);
                break;
            }
        }
        drop(connecting);
    }
    Ok(beginnings)
}

async fn socket_on(address: Ipv4Addr) -> io::Result<UdpSocket> {
    UdpSocket::bind(SocketAddr::from((address, 0))).await
}

/// How many bytes come within this time.
async fn receive_for(socket: &UdpSocket, time: Duration) -> usize {
    let deadline = Instant::now() + time;
    let mut datagram = [0; 65_536];
    let mut bytes = 0;
    while let Ok(Ok(length)) = timeout_at(deadline, socket.recv(&mut datagram)).await {
        bytes += length;
    }
    bytes
}

/// A long header with connection IDs of 8 bytes, and nothing sensible behind it.
fn long_header(first: u8, version: u32, size: usize) -> Vec<u8> {
    let mut datagram = vec![first];
    datagram.extend(version.to_be_bytes());
    datagram.extend([8, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 7, 6, 5, 4, 3, 2, 1]);
    datagram.resize(size, 0);
    datagram
}
