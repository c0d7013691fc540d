//! What an attack on one stream must come to.

use std::fmt;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use h3::error::Code;
use quinn::{Connection, ConnectionError};
use telemetry_proto::{Reason, Signal};
use telemetry_rig::outcome;
use telemetry_rig::raw::{Frame, HandMade, Outcome, RequestHead};
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::{Suite, TestResult};

use crate::NEEDS;
use crate::arena::{ATTACKER, LINE, withstand};

const CLOSED_WITHIN: Duration = Duration::from_secs(3);

/// What a stream must come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Harmless, and served.
    Delivered,
    /// Answered with a refusal for this reason.
    Refused(Reason),
    /// The stream is reset with this code; the connection lives.
    Reset(Code),
    /// The connection is closed with this code.
    Closed(Code),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delivered => f.write_str("delivered: it is harmless"),
            Self::Refused(reason) => write!(f, "refused: {reason}"),
            Self::Reset(code) => write!(f, "stream reset: {code}"),
            Self::Closed(code) => write!(f, "connection closed: {code}"),
        }
    }
}

/// An attack that is made of frames on one request stream.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) frames: fn(&Rig) -> Vec<Frame>,
    pub(crate) expected: Expected,
}

/// Adds every case of a table.
pub(crate) fn add_cases(suite: Suite, room: &str, cases: impl IntoIterator<Item = Case>) -> Suite {
    cases.into_iter().fold(suite, |suite, Case { name, frames, expected }| {
        suite.expecting(&format!("{room}: {name}"), expected.to_string(), NEEDS, move || {
            withstand(async move |rig| {
                let peer = rig.hand_made(ATTACKER).await?;
                expect(&peer, &frames(rig), expected).await
            })
        })
    })
}

/// Sends frames on a stream and compares what comes of it.
pub(crate) async fn expect(peer: &HandMade, frames: &[Frame], expected: Expected) -> TestResult {
    let outcome = peer.exchange(frames).await?;
    if let Expected::Closed(code) = expected {
        // The end of the stream may come first.
        return closed_with(peer, code).await.map_err(|error| format!("{error}, after {outcome:?}").into());
    }
    let seen = read(&outcome)?;
    outcome::saw(seen.to_string());
    if seen != expected {
        return Err(format!("expected {expected:?}, got {seen:?}").into());
    }
    assert!(peer.connection().close_reason().is_none(), "the connection is closed too");
    Ok(())
}

/// The relay closes the connection with this code.
pub(crate) async fn closed_with(peer: &HandMade, expected: Code) -> Result<(), String> {
    let closed = tokio::time::timeout(CLOSED_WITHIN, peer.closed()).await;
    let closed = closed.map_err(|_| format!("expected a close with {expected:?}, got none"))?;
    let seen = Code::from(closed.map_err(|error| error.to_string())?);
    outcome::saw(Expected::Closed(seen).to_string());
    if seen == expected { Ok(()) } else { Err(format!("expected a close with {expected:?}, got {seen:?}")) }
}

/// Notes what came of a stream.
pub(crate) fn saw_outcome(outcome: &Outcome) {
    outcome::saw(read(outcome).map_or_else(|error| error, |seen| seen.to_string()));
}

/// Notes how a connection ended, if it has.
pub(crate) fn saw_end(connection: &Connection) {
    match connection.close_reason() {
        Some(ConnectionError::ApplicationClosed(close)) => {
            outcome::saw(Expected::Closed(Code::from(close.error_code.into_inner())).to_string());
        }
        Some(other) => outcome::saw(other.to_string()),
        None => {}
    }
}

/// A write that would be delivered, to be spoilt.
pub(crate) fn good_head(rig: &Rig) -> RequestHead {
    RequestHead::write(Signal::Metrics, &rig.token(ATTACKER), LINE.len() as u64)
}

fn read(outcome: &Outcome) -> Result<Expected, String> {
    match outcome {
        Outcome::Answered(frames) => read_answer(frames.clone()),
        Outcome::Reset(code) => Ok(Expected::Reset(Code::from(*code))),
        Outcome::Closed(code) => Ok(Expected::Closed(Code::from(*code))),
    }
}

/// Reads an answer by the sentence in its body, which saves a decoder of QPACK.
fn read_answer(mut frames: Bytes) -> Result<Expected, String> {
    let mut text = Vec::new();
    let mut has_head = false;
    while frames.has_remaining() {
        let (kind, length) = (varint(&mut frames), varint(&mut frames));
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(frames.len());
        let payload = frames.split_to(length);
        match kind {
            0 => text.extend_from_slice(&payload),
            1 => has_head = true,
            _ => {}
        }
    }
    let text = String::from_utf8_lossy(&text);
    match (has_head, text.trim()) {
        (false, _) => Err("an answer without a head".to_owned()),
        (true, "") => Ok(Expected::Delivered),
        (true, sentence) => Reason::ALL
            .iter()
            .find(|reason| reason.text() == sentence)
            .map(|reason| Expected::Refused(*reason))
            .ok_or_else(|| format!("an answer that says {sentence:?}")),
    }
}

fn varint(bytes: &mut Bytes) -> u64 {
    let Some(first) = bytes.first() else { return 0 };
    let length = 1 << (first >> 6);
    if bytes.len() < length {
        bytes.clear();
        return 0;
    }
    let number = bytes.split_to(length);
    number.iter().skip(1).fold(u64::from(number[0] & 0x3f), |value, byte| value << 8 | u64::from(*byte))
}
