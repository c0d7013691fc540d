//! UDP sockets with buffers large enough for bursts.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

/// The socket buffers to ask for: 4 MiB. The usual default loses packets even on loopback.
pub const WANTED_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// The sizes of a socket's buffers, in bytes, as the kernel granted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantedBuffers {
    /// For packets that arrived and were not read.
    pub receive: usize,
    /// For packets that were written and not sent.
    pub send: usize,
}

/// Binds a UDP socket for QUIC and asks for buffers of `wanted_buffer_bytes`.
///
/// The kernel may grant less (on Linux at most `net.core.rmem_max` and `wmem_max`); that is no error, but worth a warning to
/// the operator. `[::]` listens on IPv4 as well. Needs no runtime.
///
/// # Errors
/// The address can't be bound.
pub fn bind_udp(addr: SocketAddr, wanted_buffer_bytes: usize) -> io::Result<(UdpSocket, GrantedBuffers)> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    if addr.is_ipv6() && addr.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // Some systems refuse a size beyond their limit where others grant what they can. What counts is what was granted.
    let _ = socket.set_recv_buffer_size(wanted_buffer_bytes);
    let _ = socket.set_send_buffer_size(wanted_buffer_bytes);
    let granted =
        GrantedBuffers { receive: usable(socket.recv_buffer_size()?), send: usable(socket.send_buffer_size()?) };
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    Ok((socket.into(), granted))
}

/// Linux doubles the size that it is asked for, to have room for bookkeeping, and reports the double (socket(7)).
const fn usable(reported: usize) -> usize {
    if cfg!(target_os = "linux") { reported / 2 } else { reported }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_granted_sizes_are_what_was_asked_for_when_that_is_little() {
        let (_, granted) = bind_udp("127.0.0.1:0".parse().unwrap(), 64 * 1024).unwrap();
        assert_eq!(granted, GrantedBuffers { receive: 64 * 1024, send: 64 * 1024 });
    }

    #[test]
    fn more_than_the_kernel_grants_is_no_error() {
        let (socket, granted) = bind_udp("127.0.0.1:0".parse().unwrap(), 1 << 30).unwrap();
        assert!(granted.receive > 0 && granted.receive <= 1 << 30);
        assert_ne!(socket.local_addr().unwrap().port(), 0);
    }

    #[test]
    fn the_unspecified_ipv6_address_takes_ipv4_as_well() {
        // There may be no IPv6 here.
        let Ok((socket, _)) = bind_udp("[::]:0".parse().unwrap(), 64 * 1024) else { return };
        let port = socket.local_addr().unwrap().port();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        from.send_to(b"hello", ("127.0.0.1", port)).unwrap();
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let (len, sender) = socket.recv_from(&mut [0; 16]).unwrap();
        assert_eq!((len, sender.ip().to_canonical()), (5, from.local_addr().unwrap().ip()));
    }
}
