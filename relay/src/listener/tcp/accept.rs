//! Who gets as far as a handshake.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::{BoxError, Service};

use super::super::body::RequestBody;
use super::super::handshakes::Handshake;
use super::super::shared::{Shared, drain_begins, notice_panic};
use super::connection;

/// How long nothing is accepted after the system could not: most likely it is out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections, within bounds.
pub(in crate::listener) struct TcpAcceptance {
    listener: TcpListener,
    shared: Shared,
}

/// A connection that may go on to its handshake.
struct Admitted {
    stream: TcpStream,
    remote: SocketAddr,
    handshake: Handshake,
    place: OwnedSemaphorePermit,
}

impl TcpAcceptance {
    pub(in crate::listener) const fn new(listener: TcpListener, shared: Shared) -> Self {
        Self { listener, shared }
    }

    /// Accepts until the listener drains, and then waits until every connection has ended.
    pub(in crate::listener) async fn run<S, B>(self, service: S)
    where
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Send,
    {
        let Self { listener, shared } = self;
        let mut draining = shared.draining.clone();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = drain_begins(&mut draining) => break,
                Some(ended) = connections.join_next() => {
                    let _ = ended.inspect_err(notice_panic);
                }
                accepted = listener.accept() => match accepted {
                    Ok((stream, remote)) => if let Some(admitted) = admit(stream, remote, &shared) {
                        connections.spawn(serve(admitted, service.clone(), shared.clone()));
                    },
                    Err(error) => {
                        shared.metrics.count_refused("accept");
                        tracing::warn!(%error, "a TCP connection can't be accepted; is the limit of open files too low?");
                        sleep(PAUSE).await;
                    }
                }
            }
        }
        // Who comes now is refused by the system, and tries elsewhere at once.
        drop(listener);
        while let Some(ended) = connections.join_next().await {
            let _ = ended.inspect_err(notice_panic);
        }
    }
}

/// Lets a connection go on to its handshake, or closes it. Its address is proven, unlike that of a first UDP packet.
fn admit(stream: TcpStream, remote: SocketAddr, shared: &Shared) -> Option<Admitted> {
    let Some(place) = shared.place() else {
        shared.metrics.count_refused("too-many-connections");
        return None;
    };
    let Some(handshake) = shared.handshakes.begin(remote.ip()) else {
        shared.metrics.count_refused("too-many-handshakes");
        return None;
    };
    Some(Admitted { stream, remote, handshake, place })
}

async fn serve<S, B>(admitted: Admitted, service: S, shared: Shared)
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError> + Send,
{
    let Admitted { stream, remote, handshake, place: _place } = admitted;
    let tls = shared.tls.load_full();
    let shaken = connection::shake_hands(stream, remote, &tls, &shared).await;
    drop(handshake);
    if let Some(shaken) = shaken {
        connection::serve(shaken, &tls, service, shared).await;
    }
}
