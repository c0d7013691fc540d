//! A child process that talks in lines of JSON.

use std::ffi::OsString;
use std::fs;
use std::process::Stdio;

use serde::de::DeserializeOwned;
use telemetry_certs::Issued;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{PeerError, Side, Stack};

/// Its output, line by line.
pub(crate) struct Output(Lines<BufReader<ChildStdout>>);

/// A peer that runs. Killed when dropped.
pub(crate) struct PeerProcess {
    pub(crate) child: Child,
    pub(crate) input: ChildStdin,
    pub(crate) output: Output,
    /// Its files; they outlive it.
    pub(crate) folder: TempDir,
}

/// Starts a peer with its address, certificate and trust, and whatever flags more.
pub(crate) fn start(
    stack: Stack,
    side: Side,
    address: &str,
    ca_pem: &str,
    identity: &Issued,
    more: Vec<(&str, Flag)>,
) -> Result<PeerProcess, PeerError> {
    let folder = tempfile::Builder::new().prefix("telemetry-peer-").tempdir()?;
    let common = [
        ("-address", Flag::Text(address.to_owned())),
        ("-ca", Flag::File(ca_pem.to_owned())),
        ("-cert", Flag::File(identity.chain_pem.clone())),
        ("-key", Flag::File(identity.key_pem.clone())),
    ];
    let mut arguments: Vec<OsString> = Vec::new();
    for (name, value) in common.into_iter().chain(more) {
        arguments.push(name.into());
        arguments.push(match value {
            Flag::Text(text) => text.into(),
            Flag::File(text) => {
                let path = folder.path().join(name.trim_start_matches('-'));
                fs::write(&path, text)?;
                path.into()
            }
        });
    }
    let (program, first) = stack.command(side)?;
    let mut child = Command::new(program)
        .args(first)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (input, output) = (child.stdin.take().ok_or(PeerError::Ended)?, child.stdout.take().ok_or(PeerError::Ended)?);
    let output = Output(BufReader::new(output).lines());
    Ok(PeerProcess { child, input, output, folder })
}

/// The value of a flag.
pub(crate) enum Flag {
    /// The text itself.
    Text(String),
    /// The name of a file with this text.
    File(String),
}

impl Output {
    /// The next line, read.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<T, PeerError> {
        let line = self.0.next_line().await?.ok_or(PeerError::Ended)?;
        serde_json::from_str(&line).map_err(|error| PeerError::Line(format!("{error} in {line}")))
    }
}
