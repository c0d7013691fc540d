//! The same over TCP: TLS 1.3 with the same certificates, and HTTP/2 or HTTP/1.1, for networks that block UDP.
//!
//! hyper speaks HTTP. What it does not bound is bounded here: how long a peer may owe the rest of its headers, how long it
//! may leave a response where it is, how long it may be silent, and how much it may do to no effect.

mod accept;
mod connection;
mod exchange;
mod frames;
mod io;
mod vigil;

use std::io::{Error, ErrorKind};
use std::net::SocketAddr;

use quinn::{Endpoint, ServerConfig};
use tokio::net::{TcpListener, TcpSocket};

use super::{ListenError, ListenerConfig, quic};
pub(super) use accept::TcpAcceptance;

/// How many connections the system may hold that were not accepted yet. It grants 4,096 at most by default.
const BACKLOG: u32 = 1_024;
/// How often a port that the system chose for UDP is tried for TCP.
const ATTEMPTS: usize = 16;

/// Binds one port for UDP and TCP.
pub(super) fn bind_both(
    config: &ListenerConfig,
    server: &ServerConfig,
) -> Result<(Endpoint, TcpListener), ListenError> {
    let mut attempt = 1;
    loop {
        let endpoint = quic::bind(config, server)?;
        let address = endpoint.local_addr().map_err(|source| ListenError::Bind { address: config.address, source })?;
        match bind(address) {
            Ok(tcp) => return Ok((endpoint, tcp)),
            // Another program has the same number for TCP. The system chooses another one.
            Err(error) if config.address.port() == 0 && attempt < ATTEMPTS && error.kind() == ErrorKind::AddrInUse => {
                attempt += 1;
            }
            Err(source) => return Err(ListenError::BindTcp { address, source }),
        }
    }
}

fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    // `[::]` listens on IPv4 as well, as long as the system's default is not changed; UDP does so in any case.
    let socket = if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
    // What a former process left in TIME_WAIT must not keep its successor from the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
