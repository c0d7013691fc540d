//! Fuzz targets of this crate. For fuzzers and the suite `fuzz` only.

use bytes::Bytes;
use telemetry_proto::fuzzing::Target;

use crate::frames::{Carries, FrameReader, Piece};
use crate::{GuardLimits, Violation};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[Target {
    name: "frames",
    run: frames,
    seeds,
    words: &["\u{0}", "\u{1}", "\u{4}", "\u{7}", "\u{d}", "\u{1}\u{2}\u{3}\u{4}"],
}];

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
