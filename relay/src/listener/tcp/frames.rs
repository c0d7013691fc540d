//! Where one HTTP/2 frame ends and the next begins (RFC 9113 section 4.1), on bytes that hyper reads anyway.
//!
//! hyper waits for the rest of a frame, and of a header block, for as long as it takes. This tells how long that is, and
//! which frames are of no use.

use tokio::time::Instant;

/// What a client begins with (RFC 9113 section 3.4).
const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// Follows the frames of one direction of a connection.
#[derive(Debug)]
pub(super) struct FrameScan {
    at: At,
    /// Headers have begun and not ended.
    in_headers: bool,
    /// Since when something is begun and not finished that should not take long.
    unfinished: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
enum At {
    /// In the preface, with so many bytes to come.
    Preface(usize),
    /// In the head of a frame, of which so many bytes are here.
    Head([u8; HEAD_BYTES], usize),
    /// In the payload of a frame of a type, with so many bytes to come.
    Payload(u8, usize),
}

/// What some bytes held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Requests that began, or trailers.
    pub(super) headers: u32,
    /// Frames that bring no request any further.
    pub(super) useless: u32,
}

impl FrameScan {
    /// From the beginning of a connection.
    pub(super) const fn new(now: Instant) -> Self {
        Self { at: At::Preface(PREFACE_BYTES), in_headers: false, unfinished: Some(now) }
    }

    /// Since when the peer owes the rest of its headers, or of another frame that should come in one piece. The contents of
    /// a body may take their time.
    pub(super) const fn unfinished_since(&self) -> Option<Instant> {
        self.unfinished
    }

    /// Looks at what came.
    pub(super) fn feed(&mut self, mut bytes: &[u8], now: Instant) -> Seen {
        let mut seen = Seen::default();
        while !bytes.is_empty() {
            match &mut self.at {
                At::Preface(left) | At::Payload(_, left) => {
                    let taken = (*left).min(bytes.len());
                    *left -= taken;
                    bytes = &bytes[taken..];
                }
                At::Head(head, have) => {
                    let taken = (HEAD_BYTES - *have).min(bytes.len());
                    head[*have..*have + taken].copy_from_slice(&bytes[..taken]);
                    *have += taken;
                    bytes = &bytes[taken..];
                    if *have == HEAD_BYTES {
                        let head = *head;
                        self.begin(head, &mut seen);
                    }
                }
            }
            self.step(now);
        }
        seen
    }

    /// A frame's head is whole.
    fn begin(&mut self, head: [u8; HEAD_BYTES], seen: &mut Seen) {
        let [a, b, c, kind, flags, ..] = head;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        match kind {
            HEADERS => {
                seen.headers += 1;
                self.in_headers = flags & END_HEADERS == 0;
            }
            CONTINUATION => self.in_headers &= flags & END_HEADERS == 0,
            DATA if len > 0 || flags & END_STREAM != 0 => {}
            _ => seen.useless += 1,
        }
        self.at = At::Payload(kind, len);
    }

    /// Goes on to the next frame where one has ended, and notes what is owed.
    fn step(&mut self, now: Instant) {
        if let At::Preface(0) | At::Payload(_, 0) = self.at {
            self.at = At::Head([0; HEAD_BYTES], 0);
            if !self.in_headers {
                self.unfinished = None;
            }
        }
        let is_owed = match self.at {
            At::Preface(_) => true,
            At::Head(_, have) => have > 0 || self.in_headers,
            At::Payload(kind, _) => kind != DATA,
        };
        if !is_owed {
            self.unfinished = None;
        } else if self.unfinished.is_none() {
            self.unfinished = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[a, b, c, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn what_is_owed_is_the_rest_of_headers_and_not_of_a_body_however_the_bytes_are_cut() {
        let bytes = [
            PREFACE.to_vec(),
            frame(4, 0, &[0; 6]),
            frame(HEADERS, 0, &[1; 30]),
            frame(CONTINUATION, END_HEADERS, &[2; 5]),
            frame(DATA, 0, &[3; 40]),
            frame(DATA, END_STREAM, &[]),
            frame(6, 0, &[4; 8]),
        ]
        .concat();
        let start = Instant::now();
        let at = |i: usize| start + Duration::from_secs(i as u64);
        let settings = PREFACE.len();
        let headers = settings + 15;
        let data = headers + 39 + 14;
        let last_data = data + 49;
        let ping = last_data + 9;
        let mut scan = FrameScan::new(start);
        let mut seen = Seen::default();
        for (i, byte) in bytes.iter().enumerate() {
            let now = scan.feed(&[*byte], at(i));
            seen = Seen { headers: seen.headers + now.headers, useless: seen.useless + now.useless };
            let begun = match i + 1 {
                n if n < settings => Some(start),
                n if n == settings || n == headers || n == data || n == last_data || n == ping => None,
                n if n < headers => Some(at(settings)),
                n if n < data => Some(at(headers)),
                n if n < data + 9 => Some(at(data)),
                n if n < last_data => None,
                n if n < ping => Some(at(last_data)),
                n if n < bytes.len() => Some(at(ping)),
                _ => None,
            };
            assert_eq!(scan.unfinished_since(), begun, "after {} bytes", i + 1);
        }
        assert_eq!(seen, Seen { headers: 1, useless: 2 });
        let whole = FrameScan::new(start).feed(&bytes, start);
        assert_eq!(whole, seen);
    }

    #[test]
    fn frames_without_effect_are_counted() {
        let now = Instant::now();
        let mut scan = FrameScan::new(now);
        scan.feed(PREFACE, now);
        for (kind, flags, payload, useless) in [
            (DATA, 0, &[1][..], 0),
            (DATA, END_STREAM, &[], 0),
            (DATA, 0, &[], 1),
            (2, 0, &[0; 5], 1),
            (3, 0, &[0; 4], 1),
            (4, 0, &[], 1),
            (6, 0, &[0; 8], 1),
            (8, 0, &[0; 4], 1),
            (0x42, 0, &[0; 3], 1),
        ] {
            assert_eq!(scan.feed(&frame(kind, flags, payload), now).useless, useless, "type {kind}");
            assert_eq!(scan.unfinished_since(), None);
        }
    }
}
