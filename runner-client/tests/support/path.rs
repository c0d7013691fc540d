//! A network path between one client and one server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::sleep;

/// Begins to carry packets to `server` and back, each way with this delay. Returns the address to dial.
pub(crate) async fn slow_path(server: SocketAddr, delay: Duration) -> SocketAddr {
    let bind = async || Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
    let (outer, inner) = (bind().await, bind().await);
    let address = outer.local_addr().unwrap();
    let (client, seen) = watch::channel(address);
    tokio::spawn(carry(Arc::clone(&outer), Arc::clone(&inner), delay, move |from| {
        client.send_replace(from);
        server
    }));
    tokio::spawn(carry(inner, outer, delay, move |_| *seen.borrow()));
    address
}

async fn carry(
    from: Arc<UdpSocket>,
    to: Arc<UdpSocket>,
    delay: Duration,
    target: impl Fn(SocketAddr) -> SocketAddr + Send + 'static,
) {
    let mut buffer = [0; 65_536];
    while let Ok((length, sender)) = from.recv_from(&mut buffer).await {
        let (packet, to, target) = (buffer[..length].to_vec(), Arc::clone(&to), target(sender));
        tokio::spawn(async move {
            sleep(delay).await;
            let _ = to.send_to(&packet, target).await;
        });
    }
}
