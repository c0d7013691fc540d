//! Who is connected.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::time::Instant;

use super::Transport;
use super::transport::Handle;
use crate::gate::{Author, Peer};

/// The certificate chain that a peer showed, its leaf first.
pub type PeerChain = Arc<Vec<CertificateDer<'static>>>;

/// A number that no other connection of the listener has, and the connection.
type Entered = (u64, Connected);

/// The open connections, by runner. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Peers {
    runners: Arc<Mutex<HashMap<Author, Vec<Entered>>>>,
    entered: Arc<AtomicU64>,
}

/// One open connection.
#[derive(Debug, Clone)]
pub struct Connected {
    /// Who is at the other end.
    pub peer: Peer,
    /// The chain that it showed, for a verification against other roots or revocation lists.
    pub chain: PeerChain,
    /// Since when.
    pub since: Instant,
    handle: Handle,
}

impl Connected {
    pub(super) fn new(peer: Peer, chain: PeerChain, handle: Handle) -> Self {
        Self { peer, chain, since: Instant::now(), handle }
    }

    /// What the connection runs over.
    #[must_use]
    pub const fn transport(&self) -> Transport {
        self.handle.transport()
    }

    /// The present estimate of the round trip, over QUIC.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.handle.round_trip()
    }
}

impl Peers {
    /// Adds a connection until the guard is dropped. At most `max` of one runner: the oldest makes room, since it is most
    /// likely one that its runner has given up.
    pub(super) fn enter(&self, connected: Connected, max: usize) -> Presence {
        let id = self.entered.fetch_add(1, Ordering::Relaxed);
        let presence = Presence { peers: self.clone(), author: connected.peer.author().clone(), id };
        let surplus: Vec<_> = {
            let mut runners = self.runners.lock();
            let of_runner = runners.entry(presence.author.clone()).or_default();
            of_runner.push((id, connected));
            let surplus = of_runner.len().saturating_sub(max.max(1));
            of_runner.drain(..surplus).collect()
        };
        // Outside the lock: closing takes another.
        surplus.iter().for_each(|(_, oldest)| oldest.handle.close("this runner has too many connections"));
        presence
    }

    pub(super) fn all(&self) -> Vec<Connected> {
        self.runners.lock().values().flatten().map(|(_, connected)| connected.clone()).collect()
    }

    /// Closes the connections for which `which` holds. Returns how many those were.
    pub(super) fn close(&self, which: impl Fn(&Connected) -> bool, why: &str) -> usize {
        let chosen: Vec<_> = self.all().into_iter().filter(which).collect();
        chosen.iter().for_each(|connected| connected.handle.close(why));
        chosen.len()
    }
}

/// Keeps a connection among the [`Peers`].
pub(super) struct Presence {
    peers: Peers,
    author: Author,
    id: u64,
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.peers.runners.lock().entry(self.author.clone()) {
            entry.get_mut().retain(|(id, _)| *id != self.id);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }
}
