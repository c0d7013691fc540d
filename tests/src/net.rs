//! Loopback addresses.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::time::Duration;

use tokio::time::{Instant, sleep};

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

/// How long a port that is ours may be held by others.
const HELD_AT_MOST: Duration = Duration::from_secs(10);
const ASKED_EVERY: Duration = Duration::from_millis(5);

/// Listens at a [free address](free_address), or again at one that was closed.
///
/// # Errors
/// The port stays taken, or can't be had for another reason.
pub async fn listen_tcp(address: SocketAddr) -> io::Result<tokio::net::TcpListener> {
    bound(async || tokio::net::TcpListener::bind(address).await).await
}

/// The same for datagrams.
///
/// # Errors
/// As for [`listen_tcp`].
pub async fn listen_udp(address: SocketAddr) -> io::Result<tokio::net::UdpSocket> {
    bound(async || tokio::net::UdpSocket::bind(address).await).await
}

/// A socket that is closed here lives on for a moment in each child that another thread is starting: from the fork until the child
/// becomes its program, it has a copy of every descriptor.
async fn bound<T>(bind: impl AsyncFn() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + HELD_AT_MOST;
    loop {
        match bind().await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                sleep(ASKED_EVERY).await
            }
            bound => return bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Arc;
    use std::thread;

    use super::*;

    /// Without the patience, some of these fail.
    #[tokio::test]
    async fn a_port_that_was_closed_is_had_again_though_others_start_programs() {
        let running = Arc::new(());
        let starters = [(); 2].map(|()| {
            let running = Arc::downgrade(&running);
            thread::spawn(move || {
                while running.upgrade().is_some() {
                    Command::new("true").status().unwrap();
                }
            })
        });
        for _ in 0..300 {
            let address = free_address().unwrap();
            drop((listen_tcp(address).await.unwrap(), listen_udp(address).await.unwrap()));
            drop((listen_tcp(address).await.unwrap(), listen_udp(address).await.unwrap()));
        }
        drop(running);
        for starter in starters {
            starter.join().unwrap();
        }
    }
}
