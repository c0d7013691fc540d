//! Who gets as far as a handshake.

use std::convert::Infallible;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use quinn::{Endpoint, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tower::Service;

use super::body::RequestBody;
use super::connection::{self, Shared};

/// Accepts connections, within bounds.
pub(super) struct Acceptance {
    endpoint: Endpoint,
    tls: Arc<ArcSwap<quinn::ServerConfig>>,
    shared: Shared,
    handshakes: Arc<Semaphore>,
}

impl Acceptance {
    pub(super) fn new(endpoint: Endpoint, tls: Arc<ArcSwap<quinn::ServerConfig>>, shared: Shared) -> Self {
        let handshakes = Arc::new(Semaphore::new(shared.config.max_handshakes));
        Self { endpoint, tls, shared, handshakes }
    }

    /// Accepts until the listener drains; then waits until every connection has ended.
    pub(super) async fn run<S, B>(self, service: S)
    where
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Send,
    {
        let mut draining = self.shared.draining.clone();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = connection::drain_begins(&mut draining) => break,
                Some(_) = connections.join_next() => {}
                incoming = self.endpoint.accept() => {
                    let Some(incoming) = incoming else { break };
                    if let Some((incoming, permit)) = self.admit(incoming, connections.len()) {
                        connections.spawn(self.connection(incoming, permit, service.clone()));
                    }
                }
            }
        }
        // New connections are turned away while the old ones finish.
        self.endpoint.set_server_config(None);
        while connections.join_next().await.is_some() {}
    }

    /// Lets an attempt go on to its handshake, or turns it away.
    fn admit(&self, incoming: Incoming, open: usize) -> Option<(Incoming, OwnedSemaphorePermit)> {
        let config = &self.shared.config;
        if open >= config.max_connections {
            self.shared.metrics.count_refused("too-many-connections");
            incoming.refuse();
            return None;
        }
        let running = config.max_handshakes.saturating_sub(self.handshakes.available_permits());
        if running >= config.retry_handshakes && incoming.may_retry() {
            self.shared.metrics.count_refused("retry");
            // Fails only where it may not be done.
            let _ = incoming.retry();
            return None;
        }
        match Arc::clone(&self.handshakes).try_acquire_owned() {
            Ok(permit) => Some((incoming, permit)),
            Err(_) => {
                // Silence costs least, and an honest client tries again by itself.
                self.shared.metrics.count_refused("too-many-handshakes");
                incoming.ignore();
                None
            }
        }
    }

    fn connection<S, B>(
        &self,
        incoming: Incoming,
        permit: OwnedSemaphorePermit,
        service: S,
    ) -> impl Future<Output = ()> + Send + use<S, B>
    where
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Send,
    {
        let (tls, shared) = (self.tls.load_full(), self.shared.clone());
        async move {
            let shaken = connection::shake_hands(incoming, tls, &shared).await;
            drop(permit);
            if let Some((connection, connected)) = shaken {
                connection::serve(connection, connected, service, shared).await;
            }
        }
    }
}
