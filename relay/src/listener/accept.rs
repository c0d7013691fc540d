//! Who gets as far as a handshake.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use quinn::{Endpoint, Incoming};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::Service;

use super::body::RequestBody;
use super::connection;
use super::handshakes::Handshake;
use super::shared::{self, Shared};

/// Attempts that wait for a handshake at most. Each holds the first packets of a peer that has proved its address.
const MAX_WAITING: usize = 1_024;
/// How long one waits. Whoever made it gives up soon after.
const WAIT: Duration = Duration::from_secs(2);

/// Accepts connections, within bounds.
pub(super) struct Acceptance {
    endpoint: Endpoint,
    shared: Shared,
}

/// An attempt that may go on to its handshake.
struct Admitted {
    incoming: Incoming,
    handshake: Handshake,
    place: OwnedSemaphorePermit,
}

impl Acceptance {
    pub(super) const fn new(endpoint: Endpoint, shared: Shared) -> Self {
        Self { endpoint, shared }
    }

    /// Accepts until the listener drains, and then turns away who comes until every connection has ended.
    pub(super) async fn run<S, B>(self, service: S)
    where
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Send,
    {
        let mut draining = self.shared.draining.clone();
        let mut drains = false;
        let mut connections = JoinSet::new();
        let mut waiting = VecDeque::new();
        while !(drains && connections.is_empty()) {
            tokio::select! {
                () = shared::drain_begins(&mut draining), if !drains => drains = true,
                Some(ended) = connections.join_next() => {
                    let _ = ended.inspect_err(shared::notice_panic);
                }
                () = self.shared.handshakes.one_has_ended(), if !waiting.is_empty() => {
                    while let Some(admitted) = self.next_of(&mut waiting) {
                        connections.spawn(self.connection(admitted, service.clone()));
                    }
                }
                incoming = self.endpoint.accept() => {
                    let Some(incoming) = incoming else { break };
                    if drains {
                        self.shared.metrics.count_refused("draining");
                        incoming.refuse();
                    } else if let Some(admitted) = self.admit(incoming, &mut waiting) {
                        connections.spawn(self.connection(admitted, service.clone()));
                    }
                }
            }
        }
    }

    /// Lets an attempt go on to its handshake, lets it wait, or turns it away.
    ///
    /// A fleet that lost its relay comes back at once, and perhaps from one address. If those that are too many were ignored, their
    /// pauses would grow while handshakes could be had.
    fn admit(&self, incoming: Incoming, waiting: &mut VecDeque<(Incoming, Instant)>) -> Option<Admitted> {
        let Some(place) = self.shared.place() else {
            self.shared.metrics.count_refused("too-many-connections");
            incoming.refuse();
            return None;
        };
        let handshakes = &self.shared.handshakes;
        if handshakes.running() >= self.shared.config.retry_handshakes && !incoming.remote_address_validated() {
            self.shared.metrics.count_refused("retry");
            // Fails only for an address that is validated.
            let _ = incoming.retry();
            return None;
        }
        match handshakes.begin(incoming.remote_address().ip()) {
            Some(handshake) => Some(Admitted { incoming, handshake, place }),
            None if incoming.remote_address_validated() && waiting.len() < MAX_WAITING => {
                waiting.push_back((incoming, Instant::now()));
                None
            }
            None => {
                // Silence costs least, and an honest client repeats its first packet after a second or so.
                self.shared.metrics.count_refused("too-many-handshakes");
                incoming.ignore();
                None
            }
        }
    }

    /// The first of those that wait for which there is a handshake now. Those that have waited too long are forgotten.
    fn next_of(&self, waiting: &mut VecDeque<(Incoming, Instant)>) -> Option<Admitted> {
        let late = waiting.iter().take_while(|(_, since)| since.elapsed() > WAIT).count();
        for (incoming, _) in waiting.drain(..late) {
            self.shared.metrics.count_refused("too-many-handshakes");
            incoming.ignore();
        }
        let place = self.shared.place()?;
        let handshakes = &self.shared.handshakes;
        let begun = waiting
            .iter()
            .enumerate()
            .find_map(|(index, (incoming, _))| Some((index, handshakes.begin(incoming.remote_address().ip())?)));
        let (index, handshake) = begun?;
        let (incoming, _) = waiting.remove(index)?;
        Some(Admitted { incoming, handshake, place })
    }

    fn connection<S, B>(&self, admitted: Admitted, service: S) -> impl Future<Output = ()> + Send + use<S, B>
    where
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Send,
    {
        let shared = self.shared.clone();
        async move {
            let Admitted { incoming, handshake, place: _place } = admitted;
            let tls = shared.tls.load_full();
            // Each stage in a box of its own: a task is as large as its largest stage for as long as it lives, and a
            // connection that waits for its next request is to cost little.
            let shaken = Box::pin(connection::shake_hands(incoming, &tls, &shared)).await;
            drop(handshake);
            if let Some((connection, connected)) = shaken {
                Box::pin(connection::serve(connection, connected, &tls, service, shared)).await;
            }
        }
    }
}
