//! A way round to a relay, on which UDP and TCP can be blocked apart, as networks do.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::net::{free_address, listen_tcp, listen_udp};

const DATAGRAM_BYTES: usize = 64 * 1024;

/// What gets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// Datagrams; those that do not are swallowed without a word.
    pub udp: bool,
    /// Of the datagrams to the target, those after a handshake.
    pub after_handshakes: bool,
    /// Connections. Where they do not, those that are open are cut and new ones are closed.
    pub tcp: bool,
}

impl Open {
    /// Everything gets through.
    pub const ALL: Self = Self { udp: true, after_handshakes: true, tcp: true };
    /// As in a network that blocks UDP.
    pub const TCP: Self = Self { udp: false, after_handshakes: false, tcp: true };
    /// As in one that lets QUIC's handshakes through and then finds out what they are.
    pub const HANDSHAKES: Self = Self { udp: true, after_handshakes: false, tcp: true };
    /// As in one that blocks TCP.
    pub const UDP: Self = Self { udp: true, after_handshakes: true, tcp: false };
}

/// A port on loopback that leads to another address, over UDP and TCP alike. It ends when it is dropped.
pub struct Detour {
    address: SocketAddr,
    open: watch::Sender<Open>,
    _tasks: JoinSet<()>,
}

impl Detour {
    /// A way to `target`.
    ///
    /// # Errors
    /// No port can be had.
    pub async fn to(target: SocketAddr, open: Open) -> io::Result<Self> {
        Self::between(target, target, open).await
    }

    /// A way that leads to one target over UDP, and to another over TCP.
    ///
    /// # Errors
    /// No port can be had.
    pub async fn between(udp_target: SocketAddr, tcp_target: SocketAddr, open: Open) -> io::Result<Self> {
        let address = free_address()?;
        let (udp, tcp) = (listen_udp(address).await?, listen_tcp(address).await?);
        let (open, is_open) = watch::channel(open);
        let mut tasks = JoinSet::new();
        tasks.spawn(carry_datagrams(Arc::new(udp), udp_target, is_open.clone()));
        tasks.spawn(carry_connections(tcp, tcp_target, is_open));
        Ok(Self { address, open, _tasks: tasks })
    }

    /// Where to go instead of the target.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what gets through.
    pub fn set(&self, open: Open) {
        self.open.send_replace(open);
    }
}

async fn carry_datagrams(entrance: Arc<UdpSocket>, target: SocketAddr, open: watch::Receiver<Open>) {
    let mut exits: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut ways_back = JoinSet::new();
    let mut datagram = vec![0; DATAGRAM_BYTES];
    loop {
        let Ok((len, from)) = entrance.recv_from(&mut datagram).await else { continue };
        let open_now = *open.borrow();
        if !open_now.udp || !(open_now.after_handshakes || is_of_handshake(&datagram[..len])) {
            continue;
        }
        let exit = match exits.get(&from) {
            Some(exit) => Arc::clone(exit),
            None => {
                let Ok(exit) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.map(Arc::new) else { continue };
                ways_back.spawn(carry_back(Arc::clone(&exit), Arc::clone(&entrance), from, open.clone()));
                exits.insert(from, Arc::clone(&exit));
                exit
            }
        };
        let _ = exit.send_to(&datagram[..len], target).await;
    }
}

/// Packets of a handshake have the long header (RFC 9000 section 17).
fn is_of_handshake(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & 0x80 != 0)
}

async fn carry_back(exit: Arc<UdpSocket>, entrance: Arc<UdpSocket>, to: SocketAddr, open: watch::Receiver<Open>) {
    let mut datagram = vec![0; DATAGRAM_BYTES];
    loop {
        // An error tells of an earlier datagram that nobody took.
        let Ok((len, _)) = exit.recv_from(&mut datagram).await else { continue };
        if open.borrow().udp {
            let _ = entrance.send_to(&datagram[..len], to).await;
        }
    }
}

async fn carry_connections(entrance: TcpListener, target: SocketAddr, open: watch::Receiver<Open>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = entrance.accept().await else { continue };
        if open.borrow().tcp {
            connections.spawn(carry_connection(client, target, open.clone()));
        }
    }
}

async fn carry_connection(mut client: TcpStream, target: SocketAddr, mut open: watch::Receiver<Open>) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = open.wait_for(|open| !open.tcp) => {}
    }
}
