//! `runner-agent send`: one shot.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use telemetry_runner_client::{NotTaken, RawBatch, Signal};

use crate::config::Settings;
use crate::exit::{Failure, Outcome};
use crate::intake::lines;
use crate::run::start;

/// About the size of a batch.
const BATCH_BYTES: usize = 1 << 20;
/// The longest line that is taken.
const MAX_LINE: usize = 16 << 20;
/// How long to wait for room.
const ROOM_PAUSE: Duration = Duration::from_millis(50);

/// Delivers a file's lines, in order, and succeeds only if all were delivered.
pub(crate) async fn send(settings: Settings, signal: Signal, file: &Path, within: u64) -> Outcome {
    let fail = |error| Failure::Other(format!("{}: {error}", file.display()));
    let mut source: Box<dyn Read> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(file).map_err(fail)?),
    };
    let (client, _) = start(&settings, |builder| builder)?;
    let deadline = Instant::now() + Duration::from_secs(within);
    let mut rest = Vec::new();
    let mut is_timely = true;
    while is_timely && let Some(body) = next_lines(&mut source, &mut rest).map_err(fail)? {
        let items = lines(&body).count() as u64;
        if items == 0 {
            continue;
        }
        loop {
            let batch = RawBatch { signal, body: body.clone(), items, query: None };
            match client.submit(batch).await {
                Ok(()) => break,
                Err(NotTaken::Full) if Instant::now() < deadline => tokio::time::sleep(ROOM_PAUSE).await,
                Err(NotTaken::Full) => {
                    is_timely = false;
                    break;
                }
                Err(error) => return Err(Failure::other(error)),
            }
        }
    }
    client.close(deadline.saturating_duration_since(Instant::now())).await;
    let tally = client.tally(signal);
    let missing = tally.written - tally.delivered;
    println!("{} of {} delivered", tally.delivered, tally.written);
    match (missing, is_timely) {
        (0, true) => Ok(()),
        (0, false) => Err(Failure::Other("the time is over, and the rest of the file was not read".to_owned())),
        (missing, _) => Err(Failure::Other(format!("{missing} were not delivered"))),
    }
}

/// About a batch of whole lines; what is behind the last line end stays in `rest`.
fn next_lines(source: &mut dyn Read, rest: &mut Vec<u8>) -> std::io::Result<Option<Bytes>> {
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
        match source.read(&mut buffer)? {
            0 => return Ok(Some(Bytes::from(std::mem::take(rest))).filter(|last| !last.is_empty())),
            read => rest.extend_from_slice(&buffer[..read]),
        }
    }
}
