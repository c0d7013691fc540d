//! Other people's HTTP/3, as child processes: a client and a server on quic-go, the same on aioquic, and a client on curl
//! with ngtcp2; and over TCP Go's net/http, curl and Python's requests. What they say and understand is written down in `tests/peers`.

mod client;
pub(crate) mod process;
mod server;

use std::path::PathBuf;

use crate::program::{NotFound, Program};

pub use client::{PeerClient, PeerRequest};
pub use server::{PeerServer, SeenRequest, ServerParts};

/// Whose HTTP/3 it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    /// quic-go.
    Go,
    /// aioquic.
    Python,
    /// curl, with ngtcp2 and nghttp3. It is no server.
    Curl,
    /// Python's requests, which speaks HTTP/1.1 only. It is no server.
    Requests,
}

/// There is no answer of a peer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// Its program is nowhere.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// There is no server on this stack.
    #[error("{0:?} is no server")]
    NoServer(Stack),
    /// It can't be run, or talked to.
    #[error("the peer can't be run: {0}")]
    Io(#[from] std::io::Error),
    /// It says something that can't be read.
    #[error("the peer's line can't be read: {0}")]
    Line(String),
    /// It got no response.
    #[error("the peer got no response: {0}")]
    NoResponse(String),
    /// It ended.
    #[error("the peer ended")]
    Ended,
    /// It said nothing in time.
    #[error("the peer said nothing in time")]
    Timeout,
}

/// What a peer can be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Side {
    Client,
    Server,
    /// A relay of the same contract, to be measured: it says nothing of what it sees. On Go alone.
    Relay,
}

impl Stack {
    /// The program, and what comes first on its command line.
    fn command(self, side: Side) -> Result<(PathBuf, Vec<PathBuf>), PeerError> {
        match (self, side) {
            (Self::Go, Side::Client) => Ok((Program::PeerGo.find()?, vec!["client".into()])),
            (Self::Go, Side::Server) => Ok((Program::PeerGo.find()?, vec!["server".into()])),
            (Self::Go, Side::Relay) => Ok((Program::PeerGo.find()?, vec!["relay".into()])),
            (Self::Python, Side::Client) => python("client.py"),
            (Self::Python, Side::Server) => python("server.py"),
            (Self::Curl, Side::Client) => python("curl.py"),
            (Self::Requests, Side::Client) => python("plain.py"),
            (Self::Python, Side::Relay) | (Self::Curl | Self::Requests, Side::Server | Side::Relay) => {
                Err(PeerError::NoServer(self))
            }
        }
    }
}

fn python(script: &str) -> Result<(PathBuf, Vec<PathBuf>), PeerError> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("peers/python").join(script);
    // -B: no compiled files beside the sources.
    Ok((Program::PeerPython.find()?, vec!["-B".into(), script]))
}
