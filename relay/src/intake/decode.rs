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

/// Decodes a body as it arrives and hands what comes out to a [`Write`], stopping at a limit.
pub(crate) enum Decoder<W: Write> {
    Identity(Limited<W>),
    Gzip(Box<MultiGzDecoder<Limited<W>>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, Limited<W>>>),
}

impl<W: Write> Decoder<W> {
    /// A decoder that lets at most `max_bytes` through.
    pub(crate) fn new(encoding: Encoding, max_bytes: u64, sink: W) -> io::Result<Self> {
        let limited = Limited { sink, left: max_bytes, exceeded: false };
        Ok(match encoding {
            Encoding::Identity => Self::Identity(limited),
            Encoding::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(limited))),
            Encoding::Zstd => {
                let mut decoder = zstd::stream::write::Decoder::new(limited)?;
                // A frame may ask for a window of gigabytes; 8 MiB is what RFC 8878 section 3.1.1.1.2 recommends.
                decoder.window_log_max(23)?;
                Self::Zstd(Box::new(decoder))
            }
        })
    }

    /// Takes the next piece of the encoded body.
    pub(crate) fn push(&mut self, chunk: &[u8]) -> Result<(), Reason> {
        let result = match self {
            Self::Identity(sink) => sink.write_all(chunk),
            Self::Gzip(decoder) => decoder.write_all(chunk),
            Self::Zstd(decoder) => decoder.write_all(chunk),
        };
        result.map_err(|_| self.fault())
    }

    /// The encoded body is complete.
    pub(crate) fn finish(mut self) -> Result<W, Reason> {
        let result = match &mut self {
            Self::Identity(_) => Ok(()),
            Self::Gzip(decoder) => decoder.try_finish(),
            Self::Zstd(decoder) => decoder.flush(),
        };
        if result.is_err() {
            return Err(self.fault());
        }
        match self {
            Self::Identity(limited) => Ok(limited.sink),
            Self::Gzip(decoder) => decoder.finish().map(|l| l.sink).map_err(|_| Reason::BodyMalformed),
            Self::Zstd(decoder) => Ok(decoder.into_inner().sink),
        }
    }

    fn fault(&self) -> Reason {
        let limited = match self {
            Self::Identity(limited) => limited,
            Self::Gzip(decoder) => decoder.get_ref(),
            Self::Zstd(decoder) => decoder.get_ref(),
        };
        if limited.exceeded { Reason::DecodedTooLarge } else { Reason::BodyMalformed }
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

    #[test]
    fn garbage_and_a_cut_body_are_malformed() {
        let whole = gzip(b"up 1\n");
        assert_eq!(decode(Encoding::Gzip, 100, b"not gzip at all"), Err(Reason::BodyMalformed));
        for cut in 1..whole.len() {
            assert_eq!(decode(Encoding::Gzip, 100, &whole[..cut]), Err(Reason::BodyMalformed), "cut at {cut}");
        }
    }
}
