//! The frames of one stream (RFC 9114 section 7), without any I/O.
//!
//! Bytes go in as they arrive; what comes out is fit for h3:
//!
//! - a HEADERS or control frame comes out whole, and only if its size is within limits and its layout is right;
//! - the payload of DATA frames comes out as it arrives, untouched and uncopied, and never empty;
//! - frames of unknown types do not come out at all, and are not held while they arrive;
//! - the end of the stream is an error unless it falls between two frames.

use bytes::{Buf, Bytes, BytesMut};

use crate::{GuardLimits, Violation, varint};

/// What comes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// One whole frame that is not DATA: type, length and payload.
    Frame(Bytes),
    /// The next part of the body. Never empty.
    Data(Bytes),
}

/// Which frames a stream may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carries {
    /// HEADERS, DATA, and HEADERS again for trailers.
    Request,
    /// The same, but the head may be preceded by any number of interim ones.
    Response,
    /// SETTINGS first, then the other frames of a control stream.
    Control,
}

/// Takes the bytes of one stream apart.
#[derive(Debug)]
pub(crate) struct FrameReader {
    carries: Carries,
    limits: GuardLimits,
    input: Bytes,
    state: State,
    /// Where in its sequence a message is.
    place: Place,
    /// Useless frames so far on a message stream, all frames on a control stream.
    counted: u32,
    settings_seen: bool,
    /// The largest push that the peer allows so far. We make none.
    max_push_id: u64,
}

/// Where in its sequence of frames a message is (RFC 9114 section 4.1). h3 has no eye for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    BeforeHead,
    AfterHead,
    InBody,
    AfterTrailers,
}

#[derive(Debug)]
enum State {
    /// Between two frames, or inside a frame's type and length.
    Header(Header),
    /// Inside a frame that comes out whole.
    Whole { kind: u64, frame: BytesMut, header_len: usize, missing: usize },
    /// Inside a DATA frame.
    Data { missing: u64 },
    /// Inside a frame that is thrown away.
    Skipped { missing: u64 },
}

impl FrameReader {
    pub(crate) fn new(carries: Carries, limits: GuardLimits) -> Self {
        let state = State::Header(Header::default());
        Self {
            carries,
            limits,
            input: Bytes::new(),
            state,
            place: Place::BeforeHead,
            counted: 0,
            settings_seen: false,
            max_push_id: 0,
        }
    }

    /// Adds what arrived. Call it when [`next`](Self::next) has nothing more, so that nothing piles up here.
    pub(crate) fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.input.is_empty(), "a chunk is used up before the next one comes");
        self.input = chunk;
    }

    /// The next piece; `None` when more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Piece>, Violation> {
        loop {
            match &mut self.state {
                State::Header(header) => {
                    let Some((kind, len)) = header.read(&mut self.input) else { return Ok(None) };
                    let header = *header;
                    self.state = match self.carries {
                        Carries::Request | Carries::Response => self.enter_message_frame(kind, len, header)?,
                        Carries::Control => self.enter_control_frame(kind, len, header)?,
                    };
                }
                State::Whole { kind, frame, header_len, missing } => {
                    let part = self.input.split_to(self.input.len().min(*missing));
                    frame.extend_from_slice(&part);
                    *missing -= part.len();
                    if *missing > 0 {
                        return Ok(None);
                    }
                    if !has_layout(*kind, &frame[*header_len..]) {
                        return Err(Violation::MalformedFrame);
                    }
                    self.settings_seen |= *kind == SETTINGS;
                    if *kind == MAX_PUSH_ID {
                        let allowed = varint::read(&frame[*header_len..]).map_or(0, |(id, _)| id);
                        if allowed < self.max_push_id {
                            return Err(Violation::BadPushId);
                        }
                        self.max_push_id = allowed;
                    }
                    let frame = std::mem::take(frame).freeze();
                    self.state = State::Header(Header::default());
                    return Ok(Some(Piece::Frame(frame)));
                }
                State::Data { missing: 0 } | State::Skipped { missing: 0 } => {
                    self.state = State::Header(Header::default());
                }
                State::Data { missing } => {
                    let part = self.input.split_to(fitting(&self.input, *missing));
                    *missing -= part.len() as u64;
                    return Ok((!part.is_empty()).then_some(Piece::Data(part)));
                }
                State::Skipped { missing } => {
                    let skipped = fitting(&self.input, *missing);
                    self.input.advance(skipped);
                    *missing -= skipped as u64;
                    if *missing > 0 {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Asks whether the stream may end here. Meaningful once [`next`](Self::next) has nothing more.
    pub(crate) fn check_end(&self) -> Result<(), Violation> {
        match &self.state {
            State::Data { missing: 0 } | State::Skipped { missing: 0 } => Ok(()),
            State::Header(header) if header.is_empty() => Ok(()),
            _ => Err(Violation::TruncatedFrame),
        }
    }

    /// Whether SETTINGS came out.
    pub(crate) fn settings_seen(&self) -> bool {
        self.settings_seen
    }

    // What to do with a frame is decided by its type and length, before its payload arrives.

    fn enter_message_frame(&mut self, kind: u64, len: u64, header: Header) -> Result<State, Violation> {
        self.place = self.next_place(kind)?;
        match kind {
            DATA if len > 0 => Ok(State::Data { missing: len }),
            HEADERS => header.start(kind, len, self.limits.max_header_frame_bytes, Violation::HeadersTooLarge),
            // Not even PUSH_PROMISE: we never allow a push.
            _ if kind != DATA && is_known(kind) => Err(Violation::UnexpectedFrame),
            // An empty DATA frame is skipped as well: h3 takes it for the end of the body.
            _ => {
                self.count(self.limits.max_useless_frames, Violation::TooManyUselessFrames)?;
                self.skip(len)
            }
        }
    }

    fn next_place(&self, kind: u64) -> Result<Place, Violation> {
        match (self.place, kind) {
            (Place::BeforeHead, HEADERS) => Ok(Place::AfterHead),
            // Which of a response's heads is the last, only h3 can read.
            (Place::AfterHead, HEADERS) if self.carries == Carries::Response => Ok(Place::AfterHead),
            (Place::AfterHead | Place::InBody, HEADERS) => Ok(Place::AfterTrailers),
            (Place::AfterHead | Place::InBody, DATA) => Ok(Place::InBody),
            (Place::BeforeHead | Place::AfterTrailers, HEADERS | DATA) => Err(Violation::UnexpectedFrame),
            (place, _) => Ok(place),
        }
    }

    fn enter_control_frame(&mut self, kind: u64, len: u64, header: Header) -> Result<State, Violation> {
        if !self.settings_seen && kind != SETTINGS {
            return Err(Violation::MissingSettings);
        }
        if self.settings_seen && kind == SETTINGS {
            return Err(Violation::UnexpectedFrame);
        }
        self.count(self.limits.max_control_frames, Violation::TooManyControlFrames)?;
        match kind {
            // Of pushes that are neither made nor allowed there are none to cancel.
            CANCEL_PUSH => Err(Violation::BadPushId),
            SETTINGS | GOAWAY | MAX_PUSH_ID => {
                header.start(kind, len, self.limits.max_control_frame_bytes, Violation::ControlFrameTooLarge)
            }
            _ if is_known(kind) => Err(Violation::UnexpectedFrame),
            _ => self.skip(len),
        }
    }

    fn skip(&self, len: u64) -> Result<State, Violation> {
        if len > self.limits.max_unknown_frame_bytes {
            return Err(Violation::UnknownFrameTooLarge);
        }
        Ok(State::Skipped { missing: len })
    }

    fn count(&mut self, limit: u32, violation: Violation) -> Result<(), Violation> {
        self.counted = self.counted.saturating_add(1);
        if self.counted > limit { Err(violation) } else { Ok(()) }
    }
}

/// The type and length of a frame, as far as they arrived.
#[derive(Debug, Clone, Copy, Default)]
struct Header {
    bytes: [u8; 2 * varint::MAX_LEN],
    len: usize,
}

impl Header {
    /// Takes bytes from `input` until the type and the length are complete.
    fn read(&mut self, input: &mut Bytes) -> Option<(u64, u64)> {
        loop {
            if let Some(header) = self.parse() {
                return Some(header);
            }
            if input.is_empty() {
                return None;
            }
            self.bytes[self.len] = input.get_u8();
            self.len += 1;
        }
    }

    fn parse(&self) -> Option<(u64, u64)> {
        let bytes = &self.bytes[..self.len];
        let (kind, kind_len) = varint::read(bytes)?;
        let (len, _) = varint::read(&bytes[kind_len..])?;
        Some((kind, len))
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Begins a frame that comes out whole.
    fn start(self, kind: u64, len: u64, limit: usize, violation: Violation) -> Result<State, Violation> {
        let missing = usize::try_from(len).ok().filter(|len| *len <= limit).ok_or(violation)?;
        let frame = BytesMut::from(&self.bytes[..self.len]);
        Ok(State::Whole { kind, frame, header_len: self.len, missing })
    }
}

// Frame types (RFC 9114 section 7.2).
const DATA: u64 = 0x0;
const HEADERS: u64 = 0x1;
const CANCEL_PUSH: u64 = 0x3;
const SETTINGS: u64 = 0x4;
const GOAWAY: u64 = 0x7;
const MAX_PUSH_ID: u64 = 0xd;

/// Whether HTTP/3 defines the type, or forbids it because HTTP/2 used it (RFC 9114 section 7.2.8).
const fn is_known(kind: u64) -> bool {
    matches!(kind, 0x0..=0x9 | MAX_PUSH_ID)
}

/// Whether a payload has the layout of its type. h3 waits for ever for the rest of a control frame that is too short, and
/// loses its place after one that is too long.
fn has_layout(kind: u64, payload: &[u8]) -> bool {
    match kind {
        HEADERS => true,
        SETTINGS => {
            let mut rest = payload;
            while !rest.is_empty() {
                let Some((_, id_len)) = varint::read(rest) else { return false };
                let Some((_, value_len)) = varint::read(&rest[id_len..]) else { return false };
                rest = &rest[id_len + value_len..];
            }
            true
        }
        _ => varint::read(payload).is_some_and(|(_, len)| len == payload.len()),
    }
}

/// How much of `input` belongs to a frame that misses `missing` bytes.
fn fitting(input: &Bytes, missing: u64) -> usize {
    usize::try_from(missing).map_or(input.len(), |missing| missing.min(input.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
        announced(kind, payload.len() as u64, payload)
    }

    fn announced(kind: u64, len: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [kind, len] {
            let (encoded, len) = varint::write(number);
            bytes.extend_from_slice(&encoded[..len]);
        }
        bytes.extend_from_slice(payload);
        bytes
    }

    /// What a stream comes to: whole frames, the body in one piece, and how it ended.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Outcome {
        frames: Vec<Bytes>,
        body: Vec<u8>,
        violation: Option<Violation>,
    }

    fn read<'a>(carries: Carries, limits: GuardLimits, chunks: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
        let mut reader = FrameReader::new(carries, limits);
        let mut outcome = Outcome::default();
        for chunk in chunks {
            reader.push(Bytes::copy_from_slice(chunk));
            loop {
                match reader.next() {
                    Ok(Some(Piece::Frame(frame))) => outcome.frames.push(frame),
                    Ok(Some(Piece::Data(data))) => {
                        assert!(!data.is_empty(), "an empty part of the body would end it");
                        outcome.body.extend_from_slice(&data);
                    }
                    Ok(None) => break,
                    Err(violation) => return Outcome { violation: Some(violation), ..outcome },
                }
            }
            assert!(reader.input.is_empty(), "nothing is held back");
        }
        outcome.violation = reader.check_end().err();
        outcome
    }

    fn message(bytes: &[u8]) -> Outcome {
        read(Carries::Request, GuardLimits::default(), [bytes])
    }

    fn control(bytes: &[u8]) -> Outcome {
        read(Carries::Control, GuardLimits::default(), [bytes])
    }

    #[test]
    fn a_message_comes_out_as_whole_headers_and_its_body() {
        let headers = frame(HEADERS, b"fields");
        let stream = [headers.clone(), frame(DATA, b"ab"), frame(DATA, b"c"), frame(HEADERS, b"t")].concat();
        let outcome = message(&stream);
        assert_eq!(outcome.frames, [Bytes::from(headers), frame(HEADERS, b"t").into()]);
        assert_eq!((outcome.body.as_slice(), outcome.violation), (&b"abc"[..], None));
    }

    #[test]
    fn a_message_is_a_head_then_a_body_then_trailers() {
        let (head, data, grease) = (frame(HEADERS, b"h"), frame(DATA, b"d"), frame(0x21, b""));
        let empty = frame(DATA, b"");
        let violation = |carries, frames: &[&Vec<u8>]| {
            let stream: Vec<u8> = frames.iter().flat_map(|frame| frame.iter().copied()).collect();
            read(carries, GuardLimits::default(), [stream.as_slice()]).violation
        };
        for carries in [Carries::Request, Carries::Response] {
            for good in [&[&grease, &head, &grease, &data, &head, &grease][..], &[&head, &head], &[&head]] {
                assert_eq!(violation(carries, good), None, "{carries:?}");
            }
            for bad in [
                &[&data][..],
                &[&empty],
                &[&grease, &data],
                &[&head, &data, &head, &head],
                &[&head, &data, &head, &empty],
            ] {
                assert_eq!(violation(carries, bad), Some(Violation::UnexpectedFrame), "{carries:?}");
            }
        }
        // Interim responses come before the head; requests have none.
        let interim = [&head, &head, &head, &data];
        assert_eq!(violation(Carries::Response, &interim), None);
        assert_eq!(violation(Carries::Request, &interim), Some(Violation::UnexpectedFrame));
    }

    #[test]
    fn the_end_inside_a_frame_is_truncation_wherever_it_falls() {
        // Fact 1.
        let stream = [frame(HEADERS, b"fields"), announced(DATA, 100, &[7; 50])].concat();
        assert_eq!(message(&stream).violation, Some(Violation::TruncatedFrame));
        let whole = [frame(HEADERS, b"fields"), frame(0x21, b"grease"), frame(DATA, b"body")].concat();
        let ends = [0, 8, 16, whole.len()];
        for cut in 0..=whole.len() {
            let expected = (!ends.contains(&cut)).then_some(Violation::TruncatedFrame);
            assert_eq!(message(&whole[..cut]).violation, expected, "cut at {cut}");
        }
    }

    #[test]
    fn empty_data_frames_are_swallowed_up_to_a_limit() {
        // Fact 2.
        let head = frame(HEADERS, b"h");
        let stream = [head.clone(), frame(DATA, b"ab"), frame(DATA, b""), frame(DATA, b"c")].concat();
        assert_eq!(message(&stream).body, b"abc");
        let limit = GuardLimits::default().max_useless_frames as usize;
        let empty = |count| [head.clone(), frame(DATA, b"").repeat(count)].concat();
        assert_eq!(message(&empty(limit)).violation, None);
        assert_eq!(message(&empty(limit + 1)).violation, Some(Violation::TooManyUselessFrames));
    }

    #[test]
    fn sizes_are_judged_when_they_are_announced_and_before_anything_is_held() {
        // Fact 4.
        let limits = GuardLimits::default();
        let header = limits.max_header_frame_bytes as u64;
        let unknown = limits.max_unknown_frame_bytes;
        let cases = [
            (announced(HEADERS, header + 1, b""), Violation::HeadersTooLarge),
            (announced(HEADERS, (1 << 62) - 1, b""), Violation::HeadersTooLarge),
            (announced(0x21, unknown + 1, b""), Violation::UnknownFrameTooLarge),
            (announced(0x21, (1 << 62) - 1, b""), Violation::UnknownFrameTooLarge),
        ];
        for (stream, violation) in cases {
            assert_eq!(message(&stream).violation, Some(violation));
        }
        assert_eq!(message(&frame(HEADERS, &vec![0; limits.max_header_frame_bytes])).violation, None);
        assert_eq!(message(&announced(HEADERS, header, b"")).violation, Some(Violation::TruncatedFrame));
        let settings = announced(SETTINGS, limits.max_control_frame_bytes as u64 + 1, b"");
        assert_eq!(control(&settings).violation, Some(Violation::ControlFrameTooLarge));
    }

    #[test]
    fn a_body_is_never_too_large_here() {
        let stream = [frame(HEADERS, b"h"), announced(DATA, (1 << 62) - 1, &[1; 64])].concat();
        let outcome = message(&stream);
        assert_eq!((outcome.body.len(), outcome.violation), (64, Some(Violation::TruncatedFrame)));
    }

    #[test]
    fn frames_of_unknown_types_disappear_up_to_a_limit() {
        // 0x41 would be the start of a WebTransport stream for h3, which then has no end.
        let stream = [frame(0x21, b"grease"), frame(HEADERS, b"h"), frame(0x41, b"x"), frame(DATA, b"b")].concat();
        let outcome = message(&stream);
        assert_eq!((outcome.frames.len(), outcome.body.as_slice(), outcome.violation), (1, &b"b"[..], None));
        let flood = frame(0x21, b"").repeat(GuardLimits::default().max_useless_frames as usize + 1);
        assert_eq!(message(&flood).violation, Some(Violation::TooManyUselessFrames));
    }

    #[test]
    fn only_the_frames_of_a_message_pass_on_a_message_stream() {
        for kind in [0x2, CANCEL_PUSH, SETTINGS, 0x5, 0x6, GOAWAY, 0x8, 0x9, MAX_PUSH_ID] {
            assert_eq!(message(&frame(kind, b"\0")).violation, Some(Violation::UnexpectedFrame), "{kind:#x}");
        }
    }

    #[test]
    fn a_control_stream_begins_with_settings_and_has_them_once() {
        let settings = frame(SETTINGS, &[0x6, 0x40, 0x64]);
        assert_eq!(control(&settings).frames, [Bytes::from(settings.clone())]);
        assert_eq!(control(&frame(GOAWAY, b"\0")).violation, Some(Violation::MissingSettings));
        assert_eq!(control(&frame(0x21, b"")).violation, Some(Violation::MissingSettings));
        assert_eq!(control(&[settings.clone(), settings.clone()].concat()).violation, Some(Violation::UnexpectedFrame));
        for kind in [DATA, HEADERS, 0x2, 0x5, 0x6, 0x8, 0x9] {
            let stream = [settings.clone(), frame(kind, b"\0")].concat();
            assert_eq!(control(&stream).violation, Some(Violation::UnexpectedFrame), "{kind:#x}");
        }
    }

    #[test]
    fn control_frames_have_exactly_the_layout_of_their_type() {
        let settings = frame(SETTINGS, b"");
        for kind in [GOAWAY, MAX_PUSH_ID] {
            for (payload, good) in
                [(&b"\x04"[..], true), (b"\x40\x04", true), (b"", false), (b"\x40", false), (b"\0\0", false)]
            {
                let stream = [settings.clone(), frame(kind, payload)].concat();
                assert_eq!(control(&stream).violation.is_none(), good, "{kind:#x} {payload:?}");
            }
        }
        for payload in [&b"\x06"[..], b"\x06\x40", b"\x40"] {
            assert_eq!(control(&frame(SETTINGS, payload)).violation, Some(Violation::MalformedFrame));
        }
    }

    #[test]
    fn no_push_is_cancelled_and_the_allowance_does_not_shrink() {
        let after_settings = |frames: &[Vec<u8>]| control(&[frame(SETTINGS, b""), frames.concat()].concat()).violation;
        let allow = |id: u8| frame(MAX_PUSH_ID, &[id]);
        assert_eq!(after_settings(&[frame(CANCEL_PUSH, b"\0")]), Some(Violation::BadPushId));
        assert_eq!(after_settings(&[allow(4), allow(4), allow(5)]), None);
        assert_eq!(after_settings(&[allow(4), allow(3)]), Some(Violation::BadPushId));
    }

    #[test]
    fn control_frames_are_counted() {
        let limit = GuardLimits::default().max_control_frames as usize;
        for kind in [MAX_PUSH_ID, 0x21] {
            let flood = [frame(SETTINGS, b""), frame(kind, b"\0").repeat(limit)].concat();
            assert_eq!(control(&flood).violation, Some(Violation::TooManyControlFrames));
        }
    }

    /// Streams that are mostly well-formed, so that the interesting states are reached.
    fn streams() -> impl Strategy<Value = Vec<u8>> {
        let kind =
            prop_oneof![8 => Just(DATA), 3 => Just(HEADERS), 2 => Just(0x21), 1 => Just(SETTINGS), 1 => any::<u64>()];
        let piece = (kind, 0..3_u64, proptest::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(kind, extra, payload)| announced(kind, payload.len() as u64 + extra / 2, &payload));
        let noise = proptest::collection::vec(any::<u8>(), 0..16);
        let parts = proptest::collection::vec(prop_oneof![12 => piece, 1 => noise], 0..12);
        parts.prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn how_the_bytes_are_cut_into_chunks_changes_nothing(
            stream in streams(),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
            on_control in any::<bool>(),
        ) {
            let carries = if on_control { Carries::Control } else { Carries::Request };
            let limits = GuardLimits { max_header_frame_bytes: 30, max_unknown_frame_bytes: 30, max_useless_frames: 3,
                ..GuardLimits::default() };
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let chunks = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]);
            let at_once = read(carries, limits, [stream.as_slice()]);
            prop_assert_eq!(&read(carries, limits, chunks), &at_once);
            prop_assert_eq!(&read(carries, limits, stream.chunks(1)), &at_once);
        }

        #[test]
        fn a_well_formed_message_survives_whatever_its_frames(
            sizes in proptest::collection::vec(0..200_usize, 0..20),
        ) {
            let body: Vec<u8> = (0..sizes.iter().sum()).map(|i: usize| i.to_le_bytes()[0]).collect();
            let mut stream = frame(HEADERS, b"fields");
            let mut rest = body.as_slice();
            for size in sizes {
                let (part, after) = rest.split_at(size);
                stream.extend(frame(DATA, part));
                rest = after;
            }
            let outcome = message(&stream);
            prop_assert_eq!(outcome, Outcome { frames: vec![frame(HEADERS, b"fields").into()], body, violation: None });
        }
    }
}
