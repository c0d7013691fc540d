//! Unidirectional streams: control, push, QPACK, unknown (RFC 9114 section 6.2 and 7.2, RFC 9204 section 4.2).

use bytes::{BufMut as _, Bytes, BytesMut};
use h3::error::Code;
use quinn::VarInt;
use telemetry_rig::outcome;
use telemetry_rig::raw::{Frame, HandMade};
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::{Suite, TestResult};

use crate::NEEDS;
use crate::arena::{ATTACKER, LINE, withstand};
use crate::expected::{Expected, closed_with, expect, good_head};

// Stream types.
const CONTROL: u64 = 0x00;
const PUSH: u64 = 0x01;
const ENCODER: u64 = 0x02;
const DECODER: u64 = 0x03;
const GREASE: u64 = 0x21;
// Frame types.
const DATA: u64 = 0x0;
const HEADERS: u64 = 0x1;
const CANCEL_PUSH: u64 = 0x3;
const SETTINGS: u64 = 0x4;
const PUSH_PROMISE: u64 = 0x5;
const GOAWAY: u64 = 0x7;
const MAX_PUSH_ID: u64 = 0xd;

/// What is written on a control stream, and how the connection must end.
struct Control {
    name: &'static str,
    frames: Vec<Frame>,
    expected: Code,
}

pub(crate) fn add(suite: Suite) -> Suite {
    let suite = control_streams().into_iter().fold(suite, |suite, Control { name, frames, expected }| {
        suite.expecting(&format!("control: {name}"), Expected::Closed(expected).to_string(), NEEDS, move || {
            withstand(async move |rig| {
                let peer = silent(rig).await?;
                let _control = peer.open_uni(CONTROL, &Frame::encode(&frames)).await?;
                Ok(closed_with(&peer, expected).await?)
            })
        })
    });
    suite
        .expecting("streams: a_second_control_stream", "connection closed: H3_STREAM_CREATION_ERROR", NEEDS, || {
            withstand(second_control)
        })
        .expecting("streams: a_push_stream_from_a_client", "connection closed: H3_STREAM_CREATION_ERROR", NEEDS, || {
            withstand(push)
        })
        .expecting("streams: a_second_encoder_or_decoder", "connection closed: H3_STREAM_CREATION_ERROR", NEEDS, || {
            withstand(second_qpack)
        })
        .expecting("streams: critical_streams_that_end", "connection closed: H3_CLOSED_CRITICAL_STREAM", NEEDS, || {
            withstand(ended)
        })
        .expecting(
            "streams: critical_streams_that_are_reset",
            "connection closed: H3_CLOSED_CRITICAL_STREAM",
            NEEDS,
            || withstand(reset),
        )
        .expecting("streams: unknown_types_without_end", "connection closed: H3_EXCESSIVE_LOAD", NEEDS, || {
            withstand(unknown)
        })
        .expecting(
            "streams: too_many_at_a_time",
            "no more than 200 requests and 8 other streams can be opened",
            NEEDS,
            || withstand(too_many),
        )
        .expecting("streams: quic_datagrams", "not to be had", NEEDS, || withstand(datagrams))
        .expecting("control: goaway_without_end", "connection closed: H3_NO_ERROR or H3_EXCESSIVE_LOAD", NEEDS, || {
            withstand(goaway)
        })
        .expecting("control: harmless_frames", "delivered: it is harmless", NEEDS, || withstand(harmless))
}

fn control_streams() -> Vec<Control> {
    let settings = || Frame::new(SETTINGS, "");
    let case = |name, frames, expected| Control { name, frames, expected };
    let after_settings = |name, frame: Frame, expected| Control { name, frames: vec![settings(), frame], expected };
    let two = |name, first: Frame, second: Frame, expected| case(name, vec![settings(), first, second], expected);
    let number = |kind, id: u64| Frame::new(kind, varints(&[id]));
    vec![
        case("does_not_begin_with_settings", vec![number(GOAWAY, 0)], Code::H3_MISSING_SETTINGS),
        case("begins_with_data", vec![Frame::data(LINE)], Code::H3_MISSING_SETTINGS),
        case("begins_with_an_unknown_frame", vec![Frame::new(GREASE, "")], Code::H3_MISSING_SETTINGS),
        after_settings("settings_twice", settings(), Code::H3_FRAME_UNEXPECTED),
        after_settings("data", Frame::new(DATA, LINE), Code::H3_FRAME_UNEXPECTED),
        after_settings("headers", Frame::new(HEADERS, &b"\0\0"[..]), Code::H3_FRAME_UNEXPECTED),
        after_settings("push_promise", Frame::new(PUSH_PROMISE, &b"\0\0\0"[..]), Code::H3_FRAME_UNEXPECTED),
        after_settings("http2_ping", Frame::new(0x6, &b"12345678"[..]), Code::H3_FRAME_UNEXPECTED),
        case("settings_truncated", vec![Frame::new(SETTINGS, &b"\x06"[..])], Code::H3_FRAME_ERROR),
        case("settings_large", vec![Frame::new(SETTINGS, Bytes::from(vec![0; 100_000]))], Code::H3_EXCESSIVE_LOAD),
        case("settings_of_2_62_bytes", vec![settings().announcing((1 << 62) - 1)], Code::H3_EXCESSIVE_LOAD),
        case("settings_of_http2", vec![Frame::new(SETTINGS, varints(&[0x4, 65_535]))], Code::H3_SETTINGS_ERROR),
        case("settings_repeated", vec![Frame::new(SETTINGS, varints(&[0x6, 1, 0x6, 2]))], Code::H3_SETTINGS_ERROR),
        after_settings("goaway_empty", Frame::new(GOAWAY, ""), Code::H3_FRAME_ERROR),
        after_settings("goaway_too_long", Frame::new(GOAWAY, varints(&[0, 0])), Code::H3_FRAME_ERROR),
        two("goaway_that_grows", number(GOAWAY, 4), number(GOAWAY, 8), Code::H3_ID_ERROR),
        two("max_push_id_that_shrinks", number(MAX_PUSH_ID, 8), number(MAX_PUSH_ID, 4), Code::H3_ID_ERROR),
        after_settings("cancel_push_of_nothing", number(CANCEL_PUSH, 7), Code::H3_ID_ERROR),
        case("frames_without_end", flood(number(MAX_PUSH_ID, 1)), Code::H3_EXCESSIVE_LOAD),
        case("unknown_frames_without_end", flood(Frame::new(GREASE, "")), Code::H3_EXCESSIVE_LOAD),
    ]
}

fn flood(frame: Frame) -> Vec<Frame> {
    let mut frames = vec![Frame::new(SETTINGS, "")];
    frames.extend(std::iter::repeat_n(frame, 20_000));
    frames
}

fn varints(numbers: &[u64]) -> Bytes {
    let mut bytes = BytesMut::new();
    for number in numbers {
        bytes.put_u64(number | 0b11 << 62);
    }
    bytes.freeze()
}

async fn silent(rig: &Rig) -> Result<HandMade, telemetry_rig::raw::RawError> {
    HandMade::silent(rig.relay_address(), rig.cluster().roots(), &rig.runner(ATTACKER).credentials).await
}

async fn second_control(rig: &Rig) -> TestResult {
    let peer = rig.hand_made(ATTACKER).await?;
    let _second = peer.open_uni(CONTROL, &Frame::encode(&[Frame::new(SETTINGS, "")])).await?;
    Ok(closed_with(&peer, Code::H3_STREAM_CREATION_ERROR).await?)
}

async fn push(rig: &Rig) -> TestResult {
    let peer = rig.hand_made(ATTACKER).await?;
    let _push = peer.open_uni(PUSH, b"\0").await?;
    Ok(closed_with(&peer, Code::H3_STREAM_CREATION_ERROR).await?)
}

async fn second_qpack(rig: &Rig) -> TestResult {
    for kind in [ENCODER, DECODER] {
        let peer = rig.hand_made(ATTACKER).await?;
        let _first = peer.open_uni(kind, b"").await?;
        let _second = peer.open_uni(kind, b"").await?;
        closed_with(&peer, Code::H3_STREAM_CREATION_ERROR).await?;
    }
    Ok(())
}

async fn ended(rig: &Rig) -> TestResult {
    for kind in [CONTROL, ENCODER, DECODER] {
        let mut peer = rig.hand_made(ATTACKER).await?;
        let mut stream = match kind {
            CONTROL => peer.take_control().ok_or("there is no control stream")?,
            _ => peer.open_uni(kind, b"").await?,
        };
        stream.finish()?;
        closed_with(&peer, Code::H3_CLOSED_CRITICAL_STREAM).await?;
    }
    Ok(())
}

async fn reset(rig: &Rig) -> TestResult {
    for kind in [CONTROL, ENCODER, DECODER] {
        let mut peer = rig.hand_made(ATTACKER).await?;
        let mut stream = match kind {
            CONTROL => peer.take_control().ok_or("there is no control stream")?,
            _ => peer.open_uni(kind, b"").await?,
        };
        // Its type must be there, or it is a stream of no type, which may well be reset.
        expect(&peer, &[good_head(rig).frame(), Frame::data(LINE)], Expected::Delivered).await?;
        stream.reset(VarInt::from_u32(0))?;
        closed_with(&peer, Code::H3_CLOSED_CRITICAL_STREAM).await?;
    }
    Ok(())
}

async fn unknown(rig: &Rig) -> TestResult {
    let peer = rig.hand_made(ATTACKER).await?;
    let flood = async { while peer.open_uni(GREASE, b"nothing that anyone knows").await.is_ok() {} };
    flood.await;
    Ok(closed_with(&peer, Code::H3_EXCESSIVE_LOAD).await?)
}

/// The peer may open as many as it was allowed to; more it can't, and those that it has it may leave lying.
async fn too_many(rig: &Rig) -> TestResult {
    let peer = rig.hand_made(ATTACKER).await?;
    let mut open = Vec::new();
    while let Ok(opened) =
        tokio::time::timeout(std::time::Duration::from_millis(200), peer.connection().open_bi()).await
    {
        open.push(opened?);
    }
    assert!((1..=200).contains(&open.len()), "{} requests at a time", open.len());
    let mut unidirectional = Vec::new();
    let short = std::time::Duration::from_millis(200);
    while let Ok(opened) = tokio::time::timeout(short, peer.connection().open_uni()).await {
        unidirectional.push(opened?);
    }
    outcome::saw(format!("{} requests and {} other streams were opened", open.len(), unidirectional.len()));
    assert!(unidirectional.len() <= 8, "{} unidirectional streams at a time", unidirectional.len());
    Ok(())
}

async fn datagrams(rig: &Rig) -> TestResult {
    let peer = rig.hand_made(ATTACKER).await?;
    expect(&peer, &[good_head(rig).frame(), Frame::data(LINE)], Expected::Delivered).await?;
    let refused = peer.connection().send_datagram(Bytes::from_static(b"x"));
    outcome::saw(refused.as_ref().map_or_else(ToString::to_string, |()| "a datagram was sent".to_owned()));
    assert_eq!(refused, Err(quinn::SendDatagramError::UnsupportedByPeer));
    Ok(())
}

/// The first may be taken at its word before the others are counted.
async fn goaway(rig: &Rig) -> TestResult {
    let peer = silent(rig).await?;
    let _control = peer.open_uni(CONTROL, &Frame::encode(&flood(Frame::new(GOAWAY, varints(&[0]))))).await?;
    let code = peer.closed().await?;
    outcome::saw(Expected::Closed(Code::from(code)).to_string());
    assert!([Code::H3_NO_ERROR.value(), Code::H3_EXCESSIVE_LOAD.value()].contains(&code), "{code:#x}");
    Ok(())
}

async fn harmless(rig: &Rig) -> TestResult {
    let peer = silent(rig).await?;
    let frames = [
        Frame::new(SETTINGS, varints(&[0x6, 1 << 61, 0x21, 7, 0x33, 1])),
        Frame::new(GREASE, "x"),
        Frame::new(MAX_PUSH_ID, varints(&[4])),
        Frame::new(MAX_PUSH_ID, varints(&[4])),
    ];
    let _control = peer.open_uni(CONTROL, &Frame::encode(&frames)).await?;
    expect(&peer, &[good_head(rig).frame(), Frame::data(LINE)], Expected::Delivered).await
}
