//! What delivery stands on.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use tokio::sync::watch;

use super::SendError;

/// Carries one request to the coordinator and brings its response.
///
/// The request has a path and every header of the contract; the transport adds scheme and authority. It bounds its own
/// waiting, and it may be dropped at any point: a request that is cut off must not look complete to the other side.
pub trait Transport: Send + Sync + 'static {
    /// Sends `request` and reads the response whole.
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, SendError>>;

    /// Where the transport can tell: the number of connections that the coordinator ended, or that were given up. What a coordinator
    /// asked for on one of them binds nobody after that.
    fn losses(&self) -> Option<watch::Receiver<u64>> {
        None
    }
}
