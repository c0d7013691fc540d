//! The network between runners and relay: a proxy that drops, delays, duplicates, reorders and swallows packets.
//!
//! TCP on the same port passes untouched: networks that block UDP do not block that.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::net::free_address;

/// A path that carries nothing for this long is forgotten.
const IDLE: Duration = Duration::from_secs(60);
/// Paths and packets under way that are held at most; more is lost, as in a network.
const MAX_PATHS: usize = 4_096;
const MAX_UNDER_WAY: usize = 8_192;
const MAX_PACKET: usize = 65_536;
/// How long a refused receive is waited over.
const PAUSE: Duration = Duration::from_millis(5);

/// How bad the network is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Weather {
    /// The share of packets that are lost.
    pub(super) drop: f64,
    /// The share of packets that come twice.
    pub(super) duplicate: f64,
    /// The longest that a packet is held up. Each takes a time of its own up to this, so they overtake each other.
    pub(super) delay: Duration,
    /// Whether nothing gets through at all.
    pub(super) blocked: bool,
}

impl Weather {
    /// Everything gets through.
    pub(super) const CALM: Self = Self { drop: 0.0, duplicate: 0.0, delay: Duration::ZERO, blocked: false };
    /// Nothing does.
    pub(super) const BLOCKED: Self = Self { blocked: true, ..Self::CALM };

    /// Bad weather: by `choice` up to 30 % are lost, 10 % come twice, and up to 80 ms are lost on the way.
    pub(super) fn bad(choice: u32) -> Self {
        let mut rng = Rng::with_seed(choice.into());
        Self {
            drop: rng.f64() * 0.3,
            duplicate: rng.f64() * 0.1,
            delay: Duration::from_millis(rng.u64(0..=80)),
            blocked: false,
        }
    }
}

/// A network between whoever sends to its address, and a target. Ends when dropped.
#[derive(Debug)]
pub(super) struct Network {
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    weather: Mutex<Weather>,
    rng: Mutex<Rng>,
    under_way: AtomicUsize,
}

impl Network {
    /// A calm network in front of `target`.
    ///
    /// # Errors
    /// There is no port for it.
    pub(super) async fn start(target: SocketAddr, seed: u64) -> io::Result<Self> {
        let address = free_address()?;
        let shared = Shared {
            target,
            weather: Mutex::new(Weather::CALM),
            rng: Mutex::new(Rng::with_seed(seed)),
            under_way: AtomicUsize::new(0),
        };
        let shared = Arc::new(shared);
        let udp = Arc::new(UdpSocket::bind(address).await?);
        let tcp = TcpListener::bind(address).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(carry_packets(udp, Arc::clone(&shared)));
        tasks.spawn(carry_connections(tcp, target));
        Ok(Self { address, shared, _tasks: tasks })
    }

    /// Where runners send to.
    #[must_use]
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes how bad it is.
    pub(super) fn set(&self, weather: Weather) {
        *self.shared.weather.lock() = weather;
    }
}

impl Shared {
    /// After which delays a packet arrives: none at all, once, or twice.
    fn fate(&self) -> [Option<Duration>; 2] {
        let weather = *self.weather.lock();
        if weather == Weather::CALM {
            return [Some(Duration::ZERO), None];
        }
        let mut rng = self.rng.lock();
        if weather.blocked || rng.f64() < weather.drop {
            return [None, None];
        }
        let first = weather.delay.mul_f64(rng.f64());
        let second = (rng.f64() < weather.duplicate).then(|| weather.delay.mul_f64(rng.f64()));
        [Some(first), second]
    }

    /// Sends a packet on, now, later, twice, or not at all.
    async fn carry(self: &Arc<Self>, socket: &Arc<UdpSocket>, to: Option<SocketAddr>, packet: &[u8]) {
        for delay in self.fate().into_iter().flatten() {
            if delay.is_zero() {
                send(socket, to, packet).await;
                continue;
            }
            if self.under_way.fetch_add(1, Ordering::Relaxed) >= MAX_UNDER_WAY {
                self.under_way.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (shared, socket, packet) = (Arc::clone(self), Arc::clone(socket), packet.to_vec());
            tokio::spawn(async move {
                sleep(delay).await;
                send(&socket, to, &packet).await;
                shared.under_way.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

/// What can't be sent is lost.
async fn send(socket: &UdpSocket, to: Option<SocketAddr>, packet: &[u8]) {
    let _ = match to {
        Some(to) => socket.send_to(packet, to).await,
        None => socket.send(packet).await,
    };
}

async fn carry_packets(outside: Arc<UdpSocket>, shared: Arc<Shared>) {
    let mut paths: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut ways_back = JoinSet::new();
    let mut packet = vec![0; MAX_PACKET];
    loop {
        while let Some(Ok(gone)) = ways_back.try_join_next() {
            paths.remove(&gone);
        }
        let Ok((length, from)) = outside.recv_from(&mut packet).await else {
            sleep(PAUSE).await;
            continue;
        };
        let inside = match paths.get(&from) {
            Some(inside) => Arc::clone(inside),
            None if paths.len() >= MAX_PATHS => continue,
            None => {
                let Ok(inside) = path_to(shared.target).await else { continue };
                let inside = Arc::new(inside);
                ways_back.spawn(carry_back(Arc::clone(&inside), Arc::clone(&outside), from, Arc::clone(&shared)));
                paths.insert(from, Arc::clone(&inside));
                inside
            }
        };
        shared.carry(&inside, None, &packet[..length]).await;
    }
}

async fn path_to(target: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    socket.connect(target).await?;
    Ok(socket)
}

async fn carry_back(
    inside: Arc<UdpSocket>,
    outside: Arc<UdpSocket>,
    to: SocketAddr,
    shared: Arc<Shared>,
) -> SocketAddr {
    let mut packet = vec![0; MAX_PACKET];
    loop {
        match timeout(IDLE, inside.recv(&mut packet)).await {
            Ok(Ok(length)) => shared.carry(&outside, Some(to), &packet[..length]).await,
            // The relay is away: the system tells so on loopback.
            Ok(Err(_)) => sleep(PAUSE).await,
            Err(_) => return to,
        }
    }
}

async fn carry_connections(listener: TcpListener, target: SocketAddr) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((mut from, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        connections.spawn(async move {
            if let Ok(mut to) = TcpStream::connect(target).await {
                // It ends as the ends end it.
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> (SocketAddr, JoinSet<()>) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut packet = [0; 64];
            while let Ok((length, from)) = socket.recv_from(&mut packet).await {
                let _ = socket.send_to(&packet[..length], from).await;
            }
        });
        (address, task)
    }

    #[tokio::test]
    async fn calm_carries_blocked_swallows_and_bad_weather_loses_some() {
        let (target, _echo) = echo().await;
        let network = Network::start(target, 1).await.unwrap();
        let client = path_to(network.address()).await.unwrap();
        let mut packet = [0; 64];
        client.send(b"calm").await.unwrap();
        let length = timeout(Duration::from_secs(5), client.recv(&mut packet)).await.unwrap().unwrap();
        assert_eq!(&packet[..length], b"calm");
        network.set(Weather::BLOCKED);
        client.send(b"swallowed").await.unwrap();
        assert!(timeout(Duration::from_millis(200), client.recv(&mut packet)).await.is_err());
        network.set(Weather { drop: 0.5, duplicate: 0.5, delay: Duration::from_millis(2), blocked: false });
        let mut back = 0;
        for _ in 0..200 {
            client.send(b"x").await.unwrap();
            if timeout(Duration::from_millis(1), client.recv(&mut packet)).await.is_ok() {
                back += 1;
            }
        }
        while timeout(Duration::from_millis(200), client.recv(&mut packet)).await.is_ok() {
            back += 1;
        }
        assert!((1..200).contains(&back), "{back}");
    }
}
