//! Bytes by hand.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use telemetry_certs::{Credentials, Roots};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{Http, TcpError, bounded, connect, frames};

/// How long the last words of a connection may take that takes nothing any more.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A connection to a relay over TCP, on which nothing was said yet.
pub struct TcpBytes {
    read: ReadHalf<TlsStream<TcpStream>>,
    write: WriteHalf<TlsStream<TcpStream>>,
}

/// What came of a flood.
#[derive(Debug, Clone)]
pub struct Flooded {
    /// Whether the other side had enough before the end.
    pub had_enough: bool,
    /// All that it said.
    pub answer: Vec<u8>,
}

impl fmt::Display for Flooded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.had_enough { "connection closed" } else { "all is taken" };
        write!(f, "{end}: {}", frames::what_came(&self.answer))
    }
}

impl TcpBytes {
    /// Connects, and agrees on this version of HTTP.
    ///
    /// # Errors
    /// The connection does not come up.
    pub async fn connect(
        address: SocketAddr,
        roots: &Roots,
        credentials: Option<&Credentials>,
        http: Http,
    ) -> Result<Self, TcpError> {
        let (read, write) = tokio::io::split(bounded(connect(address, roots, credentials, http)).await?);
        Ok(Self { read, write })
    }

    /// Sends these.
    ///
    /// # Errors
    /// The other side does not take them.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), TcpError> {
        bounded(async { Ok(self.write.write_all(bytes).await?) }).await
    }

    /// Sends no more, as TLS and TCP say it.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn finish(&mut self) -> Result<(), TcpError> {
        bounded(async { Ok(self.write.shutdown().await?) }).await
    }

    /// Reads something, nothing at the end.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn receive(&mut self) -> Result<Vec<u8>, TcpError> {
        let mut some = vec![0; 16 * 1024];
        let len = bounded(async { Ok(self.read.read(&mut some).await?) }).await?;
        some.truncate(len);
        Ok(some)
    }

    /// Reads until the other side ends it, in whatever way.
    pub async fn receive_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Ok(more) = self.receive().await {
            if more.is_empty() {
                break;
            }
            all.extend_from_slice(&more);
        }
        all
    }

    /// Sends what comes out of `next` until the other side has had enough, or there is no more, and reads meanwhile.
    pub async fn flood(self, mut next: impl FnMut() -> Option<Vec<u8>>) -> Flooded {
        let Self { mut read, mut write } = self;
        let mut answer = Vec::new();
        let send = async {
            while let Some(bytes) = next() {
                let sent = tokio::time::timeout(super::TIMEOUT, write.write_all(&bytes)).await;
                if !matches!(sent, Ok(Ok(()))) {
                    return true;
                }
            }
            false
        };
        let had_enough = tokio::select! {
            enough = send => enough,
            () = read_to_end(&mut read, &mut answer) => true,
        };
        if had_enough {
            let _ = tokio::time::timeout(LAST_WORDS, read_to_end(&mut read, &mut answer)).await;
        }
        Flooded { had_enough, answer }
    }
}

async fn read_to_end(read: &mut ReadHalf<TlsStream<TcpStream>>, into: &mut Vec<u8>) {
    while !matches!(read.read_buf(into).await, Ok(0) | Err(_)) {}
}
