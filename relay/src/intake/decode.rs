//! Content encodings: which are taken, and how long a body is behind them.

use std::io::{self, Write};

use flate2::write::MultiGzDecoder;
use telemetry_proto::Reason;

/// How a body is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// As it is.
    Identity,
    /// gzip (RFC 1952).
    Gzip,
    /// Zstandard (RFC 8878).
    Zstd,
}

impl Encoding {
    /// Reads the value of `Content-Encoding`; `None` for one that is not taken.
    #[must_use]
    pub fn parse(value: Option<&str>, allow_zstd: bool) -> Option<Self> {
        match value {
            None => Some(Self::Identity),
            Some(v) if v.eq_ignore_ascii_case("identity") => Some(Self::Identity),
            Some(v) if v.eq_ignore_ascii_case("gzip") => Some(Self::Gzip),
            Some(v) if allow_zstd && v.eq_ignore_ascii_case("zstd") => Some(Self::Zstd),
            Some(_) => None,
        }
    }

    /// The value of `Content-Encoding` that goes to the store; `None` for identity.
    #[must_use]
    pub const fn header_value(self) -> Option<&'static str> {
        match self {
            Self::Identity => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
        }
    }
}

/// So many bytes, as received or decoded, are worked on before others may use the thread: about a tenth of a millisecond.
const TURN_BYTES: usize = 64 * 1024;
/// A body that has decoded to so much goes on where nobody waits for the thread. Honest batches mostly are smaller.
const DEAR_BYTES: u64 = 1024 * 1024;

/// Decodes a body as it arrives and hands what comes out to a [`Write`], stopping at a limit.
pub(crate) struct Decoder<W: Write> {
    coding: Coding<W>,
    max_bytes: u64,
    /// What this turn has worked on.
    turn: u64,
}

enum Coding<W: Write> {
    Identity(Limited<W>),
    Gzip(Box<MultiGzDecoder<Limited<W>>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, Limited<W>>>),
}

impl<W: Write> Decoder<W> {
    /// A decoder that lets at most `max_bytes` through.
    pub(crate) fn new(encoding: Encoding, max_bytes: u64, sink: W) -> io::Result<Self> {
        let limited = Limited { sink, left: max_bytes, exceeded: false };
        let coding = match encoding {
            Encoding::Identity => Coding::Identity(limited),
            Encoding::Gzip => Coding::Gzip(Box::new(MultiGzDecoder::new(limited))),
            Encoding::Zstd => {
                let mut decoder = zstd::stream::write::Decoder::new(limited)?;
                // A frame may ask for a window of gigabytes; 8 MiB is what RFC 8878 section 3.1.1.1.2 recommends.
                decoder.window_log_max(23)?;
                Coding::Zstd(Box::new(decoder))
            }
        };
        Ok(Self { coding, max_bytes, turn: 0 })
    }

    /// Takes the next piece of the encoded body, and lets others use the thread meanwhile.
    pub(crate) async fn push_in_turns(&mut self, mut piece: &[u8]) -> Result<(), Reason> {
        while !piece.is_empty() {
            piece = self.take_turn(piece).await?;
        }
        Ok(())
    }

    /// Takes the next piece of the encoded body in turns until it is dear: what is left then belongs on a thread that nobody
    /// else waits for, since a few bytes may decode to a hundred megabytes.
    pub(crate) async fn push_until_dear<'p>(&mut self, mut piece: &'p [u8]) -> Result<&'p [u8], Reason> {
        while !piece.is_empty() && !self.is_dear() {
            piece = self.take_turn(piece).await?;
        }
        Ok(piece)
    }

    async fn take_turn<'p>(&mut self, piece: &'p [u8]) -> Result<&'p [u8], Reason> {
        let left = self.step(piece)?;
        if self.turn >= TURN_BYTES as u64 {
            self.turn = 0;
            tokio::task::yield_now().await;
        }
        Ok(left)
    }

    fn is_dear(&self) -> bool {
        !matches!(self.coding, Coding::Identity(_)) && self.max_bytes - self.limited().left >= DEAR_BYTES
    }

    /// Takes the next piece of the encoded body at once, on a thread that nobody else waits for. That thread offers its core after
    /// each turn: Linux lets a thread that wakes up wait for the next tick of the clock, 4 ms, however little the running one counts.
    pub(crate) fn push(&mut self, mut piece: &[u8]) -> Result<(), Reason> {
        while !piece.is_empty() {
            piece = self.step(piece)?;
            if self.turn >= TURN_BYTES as u64 {
                self.turn = 0;
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Takes as much of `piece` as one buffer of the decoder has room for when decoded: 32 KiB for gzip, 128 KiB for zstd.
    /// Says what is left.
    fn step<'p>(&mut self, piece: &'p [u8]) -> Result<&'p [u8], Reason> {
        let now = &piece[..piece.len().min(TURN_BYTES)];
        let left_before = self.limited().left;
        let result = match &mut self.coding {
            Coding::Identity(sink) => sink.write(now),
            Coding::Gzip(decoder) => decoder.write(now),
            Coding::Zstd(decoder) => decoder.write(now),
        };
        match result {
            Ok(taken @ 1..) => {
                self.turn += (left_before - self.limited().left).max(taken as u64);
                Ok(&piece[taken..])
            }
            // A decoder that takes nothing of something has come to an end that is none.
            Ok(0) | Err(_) => Err(self.fault()),
        }
    }

    /// The encoded body is complete.
    pub(crate) fn finish(mut self) -> Result<W, Reason> {
        let result = match &mut self.coding {
            Coding::Identity(_) => Ok(()),
            Coding::Gzip(decoder) => decoder.try_finish(),
            Coding::Zstd(decoder) => decoder.flush(),
        };
        if result.is_err() {
            return Err(self.fault());
        }
        match self.coding {
            Coding::Identity(limited) => Ok(limited.sink),
            Coding::Gzip(decoder) => decoder.finish().map(|l| l.sink).map_err(|_| Reason::BodyMalformed),
            Coding::Zstd(decoder) => Ok(decoder.into_inner().sink),
        }
    }

    fn fault(&self) -> Reason {
        if self.limited().exceeded { Reason::DecodedTooLarge } else { Reason::BodyMalformed }
    }

    fn limited(&self) -> &Limited<W> {
        match &self.coding {
            Coding::Identity(limited) => limited,
            Coding::Gzip(decoder) => decoder.get_ref(),
            Coding::Zstd(decoder) => decoder.get_ref(),
        }
    }
}

/// Passes on at most so many bytes, then fails.
pub(crate) struct Limited<W> {
    sink: W,
    left: u64,
    exceeded: bool,
}

impl<W: Write> Write for Limited<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let len = buf.len() as u64;
        if len > self.left {
            self.exceeded = true;
            return Err(io::Error::other("the decoded body is larger than the limit"));
        }
        self.left -= len;
        self.sink.write_all(buf)?;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn decode(encoding: Encoding, max: u64, data: &[u8]) -> Result<Vec<u8>, Reason> {
        let mut decoder = Decoder::new(encoding, max, Vec::new()).unwrap();
        for chunk in data.chunks(7) {
            decoder.push(chunk)?;
        }
        decoder.finish()
    }

    #[test]
    fn what_was_encoded_comes_out() {
        let text = b"up{job=\"a\"} 1\n".repeat(100);
        assert_eq!(decode(Encoding::Identity, 10_000, &text).unwrap(), text);
        assert_eq!(decode(Encoding::Gzip, 10_000, &gzip(&text)).unwrap(), text);
        assert_eq!(decode(Encoding::Zstd, 10_000, &zstd::encode_all(&text[..], 3).unwrap()).unwrap(), text);
        let two_members = [gzip(b"a 1\n"), gzip(b"b 2\n")].concat();
        assert_eq!(decode(Encoding::Gzip, 100, &two_members).unwrap(), b"a 1\nb 2\n");
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let zeros = vec![0; 1 << 20];
        for (encoding, bomb) in
            [(Encoding::Gzip, gzip(&zeros)), (Encoding::Zstd, zstd::encode_all(&zeros[..], 19).unwrap())]
        {
            assert_eq!(decode(encoding, (1 << 20) - 1, &bomb), Err(Reason::DecodedTooLarge));
            assert_eq!(decode(encoding, 1 << 20, &bomb).unwrap().len(), 1 << 20);
        }
    }

    /// Polls to the end, and says how often it was polled.
    fn polls<T>(future: impl Future<Output = T>) -> (usize, T) {
        let mut future = std::pin::pin!(future);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        for polls in 1.. {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return (polls, value);
            }
        }
        unreachable!()
    }

    #[test]
    fn a_body_lets_others_take_turns_and_leaves_what_is_dear() {
        const LEN: usize = 8 << 20;
        let zeros = vec![0; LEN];
        for (encoding, body) in [
            (Encoding::Identity, zeros.clone()),
            (Encoding::Gzip, gzip(&zeros)),
            (Encoding::Zstd, zstd::encode_all(&zeros[..], 3).unwrap()),
        ] {
            let mut decoder = Decoder::new(encoding, LEN as u64, Vec::new()).unwrap();
            let (polls, left) = polls(decoder.push_until_dear(&body));
            let left = left.unwrap();
            let at_once = if encoding == Encoding::Identity { LEN } else { usize::try_from(DEAR_BYTES).unwrap() };
            assert_eq!(left.is_empty(), encoding == Encoding::Identity, "{encoding:?}");
            // A turn may be longer by what one step decodes, 128 KiB at most.
            assert!(polls > at_once / (TURN_BYTES + 128 * 1024), "{encoding:?}: {polls} turns");
            decoder.push(left).unwrap();
            assert_eq!(decoder.finish().unwrap().len(), LEN);
        }
    }

    #[test]
    fn garbage_and_a_cut_body_are_malformed() {
        let whole = gzip(b"up 1\n");
        assert_eq!(decode(Encoding::Gzip, 100, b"not gzip at all"), Err(Reason::BodyMalformed));
        for cut in 1..whole.len() {
            assert_eq!(decode(Encoding::Gzip, 100, &whole[..cut]), Err(Reason::BodyMalformed), "cut at {cut}");
        }
    }
}
