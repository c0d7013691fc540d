//! The handshakes under way: the only thing that a stranger can make us do.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;

/// Counts handshakes, all together and by network. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Handshakes {
    max: usize,
    max_per_network: usize,
    running: Arc<Mutex<Running>>,
    gauge: Gauge,
    ended: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Running {
    total: usize,
    by_network: HashMap<IpAddr, usize>,
}

impl Handshakes {
    /// `gauge` shows how many there are.
    pub(super) fn new(max: usize, max_per_network: usize, gauge: Gauge) -> Self {
        Self { max, max_per_network, running: Arc::default(), gauge, ended: Arc::default() }
    }

    /// How many there are.
    pub(super) fn running(&self) -> usize {
        self.running.lock().total
    }

    /// Waits until one has ended since this was last asked. One waits at a time.
    pub(super) async fn one_has_ended(&self) {
        self.ended.notified().await;
    }

    /// One more, until the guard is dropped; `None` when there are too many, together or from one network.
    pub(super) fn begin(&self, from: IpAddr) -> Option<Handshake> {
        let network = network(from);
        let mut running = self.running.lock();
        let of_network = running.by_network.get(&network).copied().unwrap_or(0);
        if running.total >= self.max || of_network >= self.max_per_network {
            return None;
        }
        running.total += 1;
        running.by_network.insert(network, of_network + 1);
        drop(running);
        self.gauge.inc();
        Some(Handshake { of: self.clone(), network })
    }
}

/// A handshake under way.
#[derive(Debug)]
pub(super) struct Handshake {
    of: Handshakes,
    network: IpAddr,
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.of.gauge.dec();
        let mut running = self.of.running.lock();
        running.total -= 1;
        if let Entry::Occupied(mut of_network) = running.by_network.entry(self.network) {
            *of_network.get_mut() -= 1;
            if *of_network.get() == 0 {
                of_network.remove();
            }
        }
        drop(running);
        self.of.ended.notify_one();
    }
}

/// What one party commonly has: an IPv4 address, or the 64-bit prefix of an IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        v4 @ IpAddr::V4(_) => v4,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_network_can_t_take_every_place() {
        let handshakes = Handshakes::new(3, 2, Gauge::default());
        let flood: Vec<_> = (0..5).filter_map(|_| handshakes.begin(address("192.0.2.1"))).collect();
        assert_eq!(flood.len(), 2);
        let _other = handshakes.begin(address("192.0.2.2")).unwrap();
        assert_eq!(handshakes.running(), 3);
        assert!(handshakes.begin(address("192.0.2.3")).is_none(), "no place is left for anyone");
        drop(flood);
        assert_eq!(handshakes.running(), 1);
        assert!(handshakes.begin(address("192.0.2.1")).is_some());
    }

    #[test]
    fn nothing_is_kept_of_networks_that_are_gone() {
        let handshakes = Handshakes::new(8, 8, Gauge::default());
        for host in 0..100 {
            drop(handshakes.begin(IpAddr::V4([192, 0, 2, host].into())).unwrap());
        }
        assert!(handshakes.running.lock().by_network.is_empty());
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_are_one_party_and_mapped_ones_are_ipv4() {
        assert_eq!(network(address("2001:db8::1")), network(address("2001:db8::ffff:1")));
        assert_ne!(network(address("2001:db8::1")), network(address("2001:db8:0:1::1")));
        assert_eq!(network(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }
}
