//! Other services beside the one that the listener is there for, told apart by path.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::Either;
use http::{Request, Response};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either as EitherBody};
use telemetry_proto::Route;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt};

use super::RequestBody;

/// A service can't be mounted there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// A prefix is `/` and at least one more character, without a slash at its end.
    #[error("{0:?} is no prefix: expected /NAME, without a slash at its end")]
    Malformed(String),
    /// The relay's own paths, or some that contain them, would be taken from it.
    #[error("{0:?} is reserved: the relay's own paths begin with /_telemetry and /_identity")]
    Reserved(String),
    /// Requests for one would go to the other.
    #[error("{0:?} and {1:?} overlap")]
    Overlap(String, String),
}

type MountedBody = UnsyncBoxBody<Bytes, BoxError>;
type Mounted = BoxCloneSyncService<Request<RequestBody>, Response<MountedBody>, Infallible>;

/// The services that are mounted, by prefix.
#[derive(Clone, Default)]
pub(super) struct Mounts(Vec<(String, Mounted)>);

impl Mounts {
    pub(super) fn add<M, B>(&mut self, prefix: &str, service: M) -> Result<(), MountError>
    where
        M: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
        M::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.check(prefix)?;
        let service = service.map_response(|response| response.map(|body| body.map_err(Into::into).boxed_unsync()));
        self.0.push((prefix.to_owned(), BoxCloneSyncService::new(service)));
        Ok(())
    }

    fn check(&self, prefix: &str) -> Result<(), MountError> {
        if prefix.len() < 2 || !prefix.starts_with('/') || prefix.ends_with('/') || prefix.contains(['?', '#']) {
            return Err(MountError::Malformed(prefix.to_owned()));
        }
        if Route::RESERVED_PREFIXES.iter().any(|reserved| overlap(prefix, reserved)) {
            return Err(MountError::Reserved(prefix.to_owned()));
        }
        match self.0.iter().find(|(other, _)| overlap(prefix, other)) {
            Some((other, _)) => Err(MountError::Overlap(other.clone(), prefix.to_owned())),
            None => Ok(()),
        }
    }
}

/// Whether one of two prefixes covers the other.
fn overlap(one: &str, other: &str) -> bool {
    covers(one, other) || covers(other, one)
}

fn covers(prefix: &str, path: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Hands requests to a mounted service where one covers the path, and to the main one else.
#[derive(Clone)]
pub(super) struct Routed<S> {
    main: S,
    mounts: Arc<Mounts>,
}

impl<S> Routed<S> {
    pub(super) fn new(main: S, mounts: Mounts) -> Self {
        Self { main, mounts: Arc::new(mounts) }
    }
}

type RoutedFuture<F, B> =
    Either<F, Pin<Box<dyn Future<Output = Result<Response<EitherBody<B, MountedBody>>, Infallible>> + Send>>>;

impl<S, B> Service<Request<RequestBody>> for Routed<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<EitherBody<B, MountedBody>>;
    type Error = Infallible;
    type Future =
        RoutedFuture<futures_util::future::Map<tower::util::Oneshot<S, Request<RequestBody>>, MainResponse<B>>, B>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Each request has a clone of its service, which is made ready for it.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let path = request.uri().path();
        match self.mounts.0.iter().find(|(prefix, _)| covers(prefix, path)) {
            None => {
                let respond: MainResponse<B> = |result| result.map(|response| response.map(EitherBody::Left));
                Either::Left(self.main.clone().oneshot(request).map(respond))
            }
            Some((_, mounted)) => {
                let answer = mounted.clone().oneshot(request);
                Either::Right(Box::pin(async { Ok(answer.await?.map(EitherBody::Right)) }))
            }
        }
    }
}

type MainResponse<B> = fn(Result<Response<B>, Infallible>) -> Result<Response<EitherBody<B, MountedBody>>, Infallible>;

#[cfg(test)]
mod tests {
    use http_body_util::Empty;
    use tower::service_fn;

    use super::*;

    fn mount(prefixes: &[&str]) -> Result<(), MountError> {
        let service = service_fn(|_| async { Ok(Response::new(Empty::<Bytes>::new())) });
        let mut mounts = Mounts::default();
        prefixes.iter().try_for_each(|prefix| mounts.add(prefix, service))
    }

    #[test]
    fn a_prefix_takes_nothing_from_the_relay_or_from_another() {
        assert_eq!(mount(&["/rpc", "/rpc2", "/v1/jobs"]), Ok(()));
        for prefix in ["", "/", "rpc", "/rpc/", "/rpc?x", "/a#b"] {
            assert_eq!(mount(&[prefix]), Err(MountError::Malformed(prefix.to_owned())));
        }
        for prefix in ["/_telemetry", "/_identity", "/_identity/token", "/_telemetry/metrics/x"] {
            assert_eq!(mount(&[prefix]), Err(MountError::Reserved(prefix.to_owned())));
        }
        assert_eq!(mount(&["/rpc", "/rpc"]), Err(MountError::Overlap("/rpc".to_owned(), "/rpc".to_owned())));
        assert_eq!(mount(&["/rpc/a", "/rpc"]), Err(MountError::Overlap("/rpc/a".to_owned(), "/rpc".to_owned())));
        assert_eq!(mount(&["/_telemetry2"]), Ok(()), "a name of its own");
    }
}
