//! Fuzz targets of this crate. For fuzzers and the suite `fuzz` only.

use bytes::Bytes;
use telemetry_proto::fuzzing::Target;

use crate::frames::{Carries, FrameReader, Piece};
use crate::{GuardLimits, Violation, field_section, varint};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "frames",
        run: frames,
        seeds,
        words: &["\u{0}", "\u{1}", "\u{4}", "\u{7}", "\u{d}", "\u{1}\u{2}\u{3}\u{4}"],
    },
    Target { name: "fields", run: fields, seeds: field_seeds, words: &["\u{1}", "\u{7f}", "d\u{2}"] },
];

/// What one stream came to: its pieces, bodies in one, and how it ended.
type Outcome = (Vec<Piece>, Result<(), Violation>);

/// However a stream is cut into chunks, the same comes out of it, and nothing that is larger than it may be.
fn frames(data: &[u8]) {
    let Some((choice, stream)) = data.split_first() else { return };
    let carries = [Carries::Request, Carries::Response, Carries::Control][usize::from(choice % 3)];
    let whole = read(carries, stream, stream.len().max(1));
    for size in [1, 3, usize::from(choice / 3) + 2] {
        assert_eq!(read(carries, stream, size), whole, "chunks of {size}");
    }
    let limits = GuardLimits::default();
    let max = if carries == Carries::Control { limits.max_control_frame_bytes } else { limits.max_header_frame_bytes };
    for piece in &whole.0 {
        match piece {
            // Type and length are two integers of at most 8 bytes.
            Piece::Frame(frame) => assert!(frame.len() <= max + 16, "a frame of {} bytes", frame.len()),
            Piece::Data(data) => assert!(!data.is_empty() && data.len() <= stream.len()),
        }
    }
}

/// A HEADERS frame stays one, grows by less than Huffman's code can save, and has nothing left to be decoded.
fn fields(data: &[u8]) {
    let (length, len) = varint::write(data.len() as u64);
    let frame = Bytes::from([&[1], &length[..len], data].concat());
    let plain = field_section::plain(frame.clone());
    assert!(plain.len() <= 8 + frame.len() * 8 / 5, "{} bytes of {}", plain.len(), frame.len());
    assert_eq!(field_section::plain(plain.clone()), plain);
    let mut reader = FrameReader::new(
        Carries::Request,
        GuardLimits { max_header_frame_bytes: usize::MAX, ..GuardLimits::default() },
    );
    reader.push(plain.clone());
    assert_eq!(reader.next(), Ok(Some(Piece::Frame(plain))));
    assert_eq!(reader.check_end(), Ok(()));
}

fn read(carries: Carries, stream: &[u8], size: usize) -> Outcome {
    let mut reader = FrameReader::new(carries, GuardLimits::default());
    let mut pieces: Vec<Piece> = Vec::new();
    for chunk in stream.chunks(size) {
        reader.push(Bytes::copy_from_slice(chunk));
        loop {
            match reader.next() {
                Ok(None) => break,
                Ok(Some(piece)) => add(&mut pieces, piece),
                Err(violation) => return (pieces, Err(violation)),
            }
        }
    }
    let end = reader.check_end();
    (pieces, end)
}

fn add(pieces: &mut Vec<Piece>, piece: Piece) {
    match (pieces.last_mut(), piece) {
        (Some(Piece::Data(before)), Piece::Data(more)) => *before = [&before[..], &more[..]].concat().into(),
        (_, piece) => pieces.push(piece),
    }
}

fn field_seeds() -> Vec<Vec<u8>> {
    // Indexed, a coded value under a static name, a coded name, a long plain value.
    let mut section = vec![0, 0, 0xd1, 0x7f, 0x09, 0x82, 0x64, 0x02, 0x2a, 0x64, 0x02, 0x01, b'x'];
    section.extend([0x51, 0x7f, 0x80, 0x01]);
    section.extend([b'/'; 255]);
    vec![
        section,
        vec![0, 0, 0x10],
        vec![0, 0, 0x51, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff],
    ]
}

fn seeds() -> Vec<Vec<u8>> {
    let mut request = vec![0, 1, 4, 0, 0, 0xd1, 0xd7, 0, 5];
    request.extend(b"hello");
    // An unknown type, more body, trailers.
    request.extend([0x21, 2, 9, 9, 0, 0x40, 3, 1, 2, 3, 1, 2, 0, 0]);
    let mut control = vec![2, 4, 4, 1, 0, 6, 0x40];
    control.extend([0x64, 7, 1, 0, 0xd, 1, 8, 0x40, 0x21, 0]);
    let mut response = request.clone();
    response[0] = 1;
    vec![request, response, control]
}
