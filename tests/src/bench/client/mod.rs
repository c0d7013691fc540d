//! The load generator's side of a connection. It is the same for both HTTP/3 relays, and builds each request from parts that
//! were made once.

mod crowd;
mod http1;
mod http3;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use telemetry_proto::Signal;
use telemetry_proto::header::{BATCH_ID, WORKLOAD_TOKEN};

use super::identities::Runner;
use super::targets::{Target, TargetKind};

pub(super) use crowd::Crowd;

/// What every request of a runner to a target has.
#[derive(Debug, Clone)]
struct Head(Request<()>);

impl Head {
    fn new(target: &Target, runner: &Runner) -> Result<Self, http::Error> {
        let (address, store_path) = (target.address, "/api/v1/import/prometheus");
        let host = format!("localhost:{}", address.port());
        let uri: Uri = match target.kind {
            TargetKind::Relay | TargetKind::Before | TargetKind::Go => {
                format!("https://{host}{}", Signal::Metrics.write_path()).parse()?
            }
            TargetKind::Direct => format!("{store_path}?extra_label=miren_runner%3D{}", runner.id).parse()?,
            TargetKind::Vmauth => store_path.parse()?,
        };
        let request = Request::builder().method(Method::POST).uri(uri).header(header::CONTENT_TYPE, "text/plain");
        let request = match (target.kind, &target.bearer) {
            (TargetKind::Relay | TargetKind::Before | TargetKind::Go, _) => {
                request.header(WORKLOAD_TOKEN, runner.token.clone())
            }
            (_, Some(bearer)) => request.header(header::HOST, host).header(header::AUTHORIZATION, bearer.clone()),
            (_, None) => request.header(header::HOST, host),
        };
        Ok(Self(request.body(())?))
    }

    /// The head of a request with a body of this length.
    fn with_length(&self, bytes: usize, batch: Option<HeaderValue>) -> Request<()> {
        let mut request = self.0.clone();
        request.headers_mut().insert(header::CONTENT_LENGTH, bytes.into());
        if let Some(batch) = batch {
            request.headers_mut().insert(BATCH_ID, batch);
        }
        request
    }
}

/// One connection of a runner.
enum Link {
    Http1(http1::Link),
    Http3(http3::Link),
}

impl Link {
    /// Writes a batch and reads the whole answer. `Err` says what happened instead of one.
    async fn post(&self, body: Bytes, batch: Option<HeaderValue>) -> Result<StatusCode, String> {
        match self {
            Self::Http1(link) => link.post(body).await,
            Self::Http3(link) => link.post(body, batch).await,
        }
    }
}
