//! Loopback addresses.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;

/// Below the range that systems take ports for port 0 and for outgoing connections from. What is killed and comes back
/// on its port must find it free.
const PORTS: Range<u16> = 10_240..32_768;
const ATTEMPTS: usize = 100;

/// A loopback address whose port is free for TCP and UDP, and not given out to anyone who asks for any port.
///
/// # Errors
/// When a hundred ports in a row are taken.
pub fn free_address() -> io::Result<SocketAddr> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..ATTEMPTS {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(PORTS)));
        match TcpListener::bind(address).and_then(|_| UdpSocket::bind(address)) {
            Ok(_) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(last)
}
