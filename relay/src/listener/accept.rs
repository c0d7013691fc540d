//! Who gets as far as a handshake.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use quinn::{Endpoint, Incoming};
use tokio::task::JoinSet;
use tower::Service;

use super::body::RequestBody;
use super::connection::{self, Shared};
use super::handshakes::{Handshake, Handshakes};

/// Accepts connections, within bounds.
pub(super) struct Acceptance {
    endpoint: Endpoint,
    shared: Shared,
    handshakes: Handshakes,
}

impl Acceptance {
    pub(super) fn new(endpoint: Endpoint, shared: Shared) -> Self {
        let handshakes = Handshakes::new(shared.config.max_handshakes, shared.config.max_handshakes_per_network);
        Self { endpoint, shared, handshakes }
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
                () = connection::drain_begins(&mut draining), if !drains => drains = true,
                Some(ended) = connections.join_next() => {
                    let _ = ended.inspect_err(connection::notice_panic);
                }
                incoming = self.endpoint.accept() => {
                    let Some(incoming) = incoming else { break };
                    if drains {
                        self.shared.metrics.count_refused("draining");
                        incoming.refuse();
                    } else if let Some((incoming, handshake)) = self.admit(incoming, connections.len()) {
                        connections.spawn(self.connection(incoming, handshake, service.clone()));
                    }
                }
            }
        }
    }

    /// Lets an attempt go on to its handshake, or turns it away.
    fn admit(&self, incoming: Incoming, open: usize) -> Option<(Incoming, Handshake)> {
        let config = &self.shared.config;
        if open >= config.max_connections {
            self.shared.metrics.count_refused("too-many-connections");
            incoming.refuse();
            return None;
        }
        if self.handshakes.running() >= config.retry_handshakes && !incoming.remote_address_validated() {
            self.shared.metrics.count_refused("retry");
            // Fails only for an address that is validated.
            let _ = incoming.retry();
            return None;
        }
        match self.handshakes.begin(incoming.remote_address().ip()) {
            Some(handshake) => Some((incoming, handshake)),
            None => {
                // Silence costs least, and an honest client repeats its first packet after a second or so.
                self.shared.metrics.count_refused("too-many-handshakes");
                incoming.ignore();
                None
            }
        }
    }

    fn connection<S, B>(
        &self,
        incoming: Incoming,
        handshake: Handshake,
        service: S,
    ) -> impl Future<Output = ()> + Send + use<S, B>
    where
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Send,
    {
        let shared = self.shared.clone();
        async move {
            let tls = shared.tls.load_full();
            let shaken = connection::shake_hands(incoming, Arc::clone(&tls), &shared).await;
            drop(handshake);
            if let Some((connection, connected)) = shaken {
                connection::serve(connection, connected, &tls, service, shared).await;
            }
        }
    }
}
