//! A network of our own between runners and a relay: a proxy that drops, delays, duplicates, reorders and swallows packets, and
//! gives a runner another port in the middle of everything.
//!
//! TCP on the same port passes untouched: networks that block UDP do not block that.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::net::{free_address, listen_tcp, listen_udp};

/// A path that carries nothing for this long is forgotten.
const IDLE: Duration = Duration::from_secs(60);
/// Paths and packets under way that are held at most; more is lost, as in a network.
const MAX_PATHS: usize = 4_096;
const MAX_UNDER_WAY: usize = 8_192;
const MAX_PACKET: usize = 65_536;
/// How long a refused receive is waited over.
const PAUSE: Duration = Duration::from_millis(5);

/// How bad a network is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weather {
    /// The share of packets that are lost.
    pub drop: f64,
    /// The share of packets that come twice.
    pub duplicate: f64,
    /// How long every packet takes, at least. They keep their order.
    pub delay: Duration,
    /// How much longer a packet takes at most. Each takes a time of its own up to this, so they overtake each other.
    pub spread: Duration,
    /// The share of packets that take no time at all and overtake those under way, as netem's `reorder` has it.
    pub ahead: f64,
    /// The largest datagram that gets through, in bytes of payload. Nobody is told of the others.
    pub largest: usize,
    /// Whether nothing gets through at all.
    pub blocked: bool,
}

impl Weather {
    /// Everything gets through.
    pub const CALM: Self = Self {
        drop: 0.0,
        duplicate: 0.0,
        delay: Duration::ZERO,
        spread: Duration::ZERO,
        ahead: 0.0,
        largest: MAX_PACKET,
        blocked: false,
    };
    /// Nothing does.
    pub const BLOCKED: Self = Self { blocked: true, ..Self::CALM };

    /// Bad weather: by `choice` up to 30 % are lost, 10 % come twice, and up to 80 ms are lost on the way.
    pub(crate) fn bad(choice: u32) -> Self {
        let mut rng = Rng::with_seed(choice.into());
        Self {
            drop: rng.f64() * 0.3,
            duplicate: rng.f64() * 0.1,
            spread: Duration::from_millis(rng.u64(0..=80)),
            ..Self::CALM
        }
    }
}

/// A network between whoever sends to its address, and a target. Ends when dropped.
#[derive(Debug)]
pub struct Network {
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    weather: Mutex<Weather>,
    rng: Mutex<Rng>,
    under_way: mpsc::Sender<Parcel>,
    rebound: Notify,
    paths: AtomicUsize,
}

/// A packet that arrives later.
#[derive(Debug)]
struct Parcel {
    at: Instant,
    socket: Arc<UdpSocket>,
    to: Option<SocketAddr>,
    packet: Vec<u8>,
}

impl Network {
    /// A calm network in front of `target`. What happens by chance follows from `seed` and from the order of the packets.
    ///
    /// # Errors
    /// There is no port for it.
    pub async fn start(target: SocketAddr, seed: u64) -> io::Result<Self> {
        let address = free_address()?;
        let (under_way, parcels) = mpsc::channel(MAX_UNDER_WAY);
        let shared = Arc::new(Shared {
            target,
            weather: Mutex::new(Weather::CALM),
            rng: Mutex::new(Rng::with_seed(seed)),
            under_way,
            rebound: Notify::new(),
            paths: AtomicUsize::new(0),
        });
        let udp = Arc::new(listen_udp(address).await?);
        let tcp = listen_tcp(address).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(deliver(parcels));
        tasks.spawn(carry_packets(udp, Arc::clone(&shared)));
        tasks.spawn(carry_connections(tcp, target));
        Ok(Self { address, shared, _tasks: tasks })
    }

    /// Where runners send to.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes how bad it is.
    pub fn set(&self, weather: Weather) {
        *self.shared.weather.lock() = weather;
    }

    /// Forgets which port belongs to whom, as a NAT that starts anew: the target sees the next packet of everyone come from
    /// another port, and what it sends to the old ones is lost.
    pub fn rebind(&self) {
        self.shared.rebound.notify_one();
    }

    /// From how many ports the target has been sent to.
    #[must_use]
    pub fn paths(&self) -> usize {
        self.shared.paths.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// After which delays a packet arrives: none at all, once, or twice.
    fn fate(&self, length: usize) -> [Option<Duration>; 2] {
        let weather = *self.weather.lock();
        if weather == Weather::CALM {
            return [Some(Duration::ZERO), None];
        }
        let mut rng = self.rng.lock();
        if weather.blocked || length > weather.largest || rng.f64() < weather.drop {
            return [None, None];
        }
        let mut delay = || {
            let is_ahead = weather.ahead > 0.0 && rng.f64() < weather.ahead;
            if is_ahead { Duration::ZERO } else { weather.delay + weather.spread.mul_f64(rng.f64()) }
        };
        let first = delay();
        let second = delay();
        [Some(first), (rng.f64() < weather.duplicate).then_some(second)]
    }

    /// Sends a packet on, now, later, twice, or not at all.
    async fn carry(&self, socket: &Arc<UdpSocket>, to: Option<SocketAddr>, packet: &[u8]) {
        for delay in self.fate(packet.len()).into_iter().flatten() {
            if delay.is_zero() {
                send(socket, to, packet).await;
                continue;
            }
            let at = Instant::now() + delay;
            let parcel = Parcel { at, socket: Arc::clone(socket), to, packet: packet.to_vec() };
            let _ = self.under_way.try_send(parcel);
        }
    }
}

/// Delivers parcels when their time has come, those of one time in their order.
async fn deliver(mut parcels: mpsc::Receiver<Parcel>) {
    let mut held = BTreeMap::new();
    for number in 0_u64.. {
        let next = held.first_key_value().map(|((at, _), _): (&(Instant, u64), &Parcel)| *at);
        tokio::select! {
            biased;
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                while let Some(first) = held.first_entry().filter(|first| first.key().0 <= Instant::now()) {
                    let Parcel { socket, to, packet, .. } = first.remove();
                    send(&socket, to, &packet).await;
                }
            }
            parcel = parcels.recv(), if held.len() < MAX_UNDER_WAY => match parcel {
                Some(parcel) => drop(held.insert((parcel.at, number), parcel)),
                None => return,
            },
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
        while let Some(gone) = ways_back.try_join_next() {
            // One that was aborted is not there any more.
            if let Ok(gone) = gone {
                paths.remove(&gone);
            }
        }
        let received = tokio::select! {
            received = outside.recv_from(&mut packet) => received,
            () = shared.rebound.notified() => {
                ways_back.abort_all();
                paths.clear();
                continue;
            }
        };
        let Ok((length, from)) = received else {
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
                shared.paths.fetch_add(1, Ordering::Relaxed);
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
        network.set(Weather { drop: 0.5, duplicate: 0.5, spread: Duration::from_millis(2), ..Weather::CALM });
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

    #[tokio::test]
    async fn what_is_delayed_keeps_its_order_and_what_is_too_large_is_swallowed() {
        let (target, _echo) = echo().await;
        let network = Network::start(target, 1).await.unwrap();
        let client = path_to(network.address()).await.unwrap();
        let delay = Duration::from_millis(30);
        network.set(Weather { delay, largest: 8, ..Weather::CALM });
        let began = Instant::now();
        for number in 0..100_u64 {
            client.send(&number.to_be_bytes()).await.unwrap();
            client.send(b"too large").await.unwrap();
        }
        let mut packet = [0; 64];
        for number in 0..100_u64 {
            let length = timeout(Duration::from_secs(5), client.recv(&mut packet)).await.unwrap().unwrap();
            assert_eq!(packet[..length], number.to_be_bytes());
            assert!(number > 0 || began.elapsed() >= 2 * delay);
        }
        assert!(timeout(4 * delay, client.recv(&mut packet)).await.is_err());
    }

    #[tokio::test]
    async fn after_a_rebinding_packets_come_from_another_port() {
        let target = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let network = Network::start(target.local_addr().unwrap(), 1).await.unwrap();
        let client = path_to(network.address()).await.unwrap();
        let mut packet = [0; 64];
        let mut next = async || {
            client.send(b"x").await.unwrap();
            timeout(Duration::from_secs(5), target.recv_from(&mut packet)).await.unwrap().unwrap().1
        };
        let (first, second) = (next().await, next().await);
        assert_eq!(first, second);
        network.rebind();
        // A packet may be on its way when the port changes.
        while next().await == first {}
        assert_eq!(network.paths(), 2);
        let mut packet = [0; 64];
        target.send_to(b"to nobody", first).await.unwrap();
        assert!(timeout(Duration::from_millis(100), client.recv(&mut packet)).await.is_err());
    }
}
