//! Who gets as far as a handshake.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use quinn::{Endpoint, Incoming};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tower::Service;

use super::body::RequestBody;
use super::connection;
use super::handshakes::Handshake;
use super::shared::{self, Shared};

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
        while !(drains && connections.is_empty()) {
            tokio::select! {
                () = shared::drain_begins(&mut draining), if !drains => drains = true,
                Some(ended) = connections.join_next() => {
                    let _ = ended.inspect_err(shared::notice_panic);
                }
                incoming = self.endpoint.accept() => {
                    let Some(incoming) = incoming else { break };
                    if drains {
                        self.shared.metrics.count_refused("draining");
                        incoming.refuse();
                    } else if let Some(admitted) = self.admit(incoming) {
                        connections.spawn(self.connection(admitted, service.clone()));
                    }
                }
            }
        }
    }

    /// Lets an attempt go on to its handshake, or turns it away.
    fn admit(&self, incoming: Incoming) -> Option<Admitted> {
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
            None => {
                // Silence costs least, and an honest client repeats its first packet after a second or so.
                self.shared.metrics.count_refused("too-many-handshakes");
                incoming.ignore();
                None
            }
        }
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
