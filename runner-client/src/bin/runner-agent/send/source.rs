//! The file, in pieces that are a batch each.

use std::io::Read;
use std::path::Path;

use bytes::Bytes;
use telemetry_runner_client::Signal;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::exit::Failure;
use crate::intake::MAX_BYTES;

/// About the size of a batch of lines.
const BATCH_BYTES: usize = 1 << 20;
/// The longest line that is taken.
const MAX_LINE: usize = 16 << 20;
/// Pieces that are read ahead.
const AHEAD: usize = 2;

/// A file or standard input, read by a thread of its own: what nobody writes to must not keep the program from its end.
pub(super) struct Source {
    pieces: Receiver<Result<Bytes, String>>,
    /// The size, where it is known.
    pub(super) bytes: Option<u64>,
}

impl Source {
    pub(super) fn open(file: &Path, signal: Signal) -> Result<Self, Failure> {
        let name = file.display().to_string();
        let fail = |error: std::io::Error| Failure::Other(format!("{name}: {error}"));
        let (input, bytes): (Box<dyn Read + Send>, _) = if file.as_os_str() == "-" {
            (Box::new(std::io::stdin()), None)
        } else {
            let file = std::fs::File::open(file).map_err(fail)?;
            let metadata = file.metadata().map_err(fail)?;
            (Box::new(file), metadata.is_file().then_some(metadata.len()))
        };
        let (sender, pieces) = channel(AHEAD);
        let read = move || match signal {
            Signal::Traces => whole(input, &name, &sender),
            Signal::Metrics | Signal::Logs => in_lines(input, &name, &sender),
        };
        std::thread::Builder::new().name("telemetry-source".to_owned()).spawn(read).map_err(Failure::other)?;
        Ok(Self { pieces, bytes })
    }

    /// The next piece: whole lines, or all spans.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, String>> {
        self.pieces.recv().await
    }
}

type Pieces = Sender<Result<Bytes, String>>;

/// An export request is one message, and can't be divided.
fn whole(input: Box<dyn Read + Send>, name: &str, pieces: &Pieces) {
    let mut body = Vec::new();
    let piece = match input.take(MAX_BYTES as u64 + 1).read_to_end(&mut body) {
        Ok(_) if body.len() > MAX_BYTES => Err(format!("{name}: an export request has at most 32 MiB")),
        Ok(_) => Ok(body.into()),
        Err(error) => Err(format!("{name}: {error}")),
    };
    let _ = pieces.blocking_send(piece);
}

fn in_lines(mut input: Box<dyn Read + Send>, name: &str, pieces: &Pieces) {
    let mut rest = Vec::new();
    while let Some(piece) = next_lines(&mut *input, &mut rest).transpose() {
        let piece = piece.map_err(|error| format!("{name}: {error}"));
        let is_last = piece.is_err();
        if pieces.blocking_send(piece).is_err() || is_last {
            return;
        }
    }
}

/// About a batch of whole lines; what is behind the last line end stays in `rest`.
fn next_lines(input: &mut dyn Read, rest: &mut Vec<u8>) -> std::io::Result<Option<Bytes>> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let end = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if end >= BATCH_BYTES {
            let behind = rest.split_off(end);
            return Ok(Some(std::mem::replace(rest, behind).into()));
        }
        if rest.len() - end > MAX_LINE {
            return Err(std::io::Error::other("a line is longer than 16 MiB"));
        }
        match input.read(&mut buffer)? {
            0 => return Ok(Some(Bytes::from(std::mem::take(rest))).filter(|last| !last.is_empty())),
            read => rest.extend_from_slice(&buffer[..read]),
        }
    }
}
