//! Other people's HTTP/3, as child processes: a client and a server on quic-go, and the same on aioquic. What they say and
//! understand is written down in `tests/peers`.

mod client;
mod process;
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
}

/// There is no answer of a peer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// Its program is nowhere.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// It can't be run, or talked to.
    #[error("the peer can't be run")]
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

/// The two sides that a peer can be.
#[derive(Debug, Clone, Copy)]
enum Side {
    Client,
    Server,
}

impl Stack {
    /// The program, and what comes first on its command line.
    fn command(self, side: Side) -> Result<(PathBuf, Vec<PathBuf>), NotFound> {
        match self {
            Self::Go => {
                let side = match side {
                    Side::Client => "client",
                    Side::Server => "server",
                };
                Ok((Program::PeerGo.find()?, vec![side.into()]))
            }
            Self::Python => {
                let script = match side {
                    Side::Client => "client.py",
                    Side::Server => "server.py",
                };
                let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("peers/python");
                // -B: no compiled files beside the sources.
                Ok((Program::PeerPython.find()?, vec!["-B".into(), folder.join(script)]))
            }
        }
    }
}
