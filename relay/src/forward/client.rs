//! Sending a batch to its store and waiting for the whole answer.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, Uri, Version};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use telemetry_proto::{Reason, Signal, limits};
use tokio::time::{Instant, timeout};

use super::address::Endpoint;
use super::body::UpstreamBody;
use super::connector::Connector;
use super::target::Form;
use super::{Answer, Attribution, LogStreamFields, StoreAddress, Target, TenantPin};
use crate::gate::Author;
use crate::intake::{Encoding, LogFields, WholeBody};
use crate::refusal::Refusal;

/// Idle connections are closed before the stores close them (at 60 s), so that a request rarely meets a dying one.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(50);

/// A store that takes longer to say that it is there is as good as away.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// More of an answer's body than this is not read; the connection is given up instead.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// A store and how batches of one signal are sent to it.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendSettings {
    /// Where it listens.
    pub address: StoreAddress,
    /// Whether batches are filed under the verified runner.
    pub attribution: Attribution,
    /// The fields of a log stream; of no meaning for other signals.
    pub stream_fields: LogStreamFields,
    /// Whether the store reads zstd.
    pub zstd: bool,
    /// Whether it is a VictoriaMetrics cluster, which takes the tenant's account from the path; of no meaning for other
    /// signals.
    pub cluster: bool,
    /// How long the store may take to answer.
    pub timeout: Duration,
    /// How long a connection to it may take.
    pub connect_timeout: Duration,
}

impl BackendSettings {
    /// The defaults for a store at `address`.
    #[must_use]
    pub fn new(address: StoreAddress) -> Self {
        Self {
            address,
            attribution: Attribution::default(),
            stream_fields: LogStreamFields::default(),
            zstd: false,
            cluster: false,
            timeout: limits::BACKEND_TIMEOUT,
            connect_timeout: Duration::from_secs(3),
        }
    }
}

/// A batch on its way to its store.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    /// Whose it is, where tenants are configured.
    pub(crate) tenant: Option<&'a TenantPin>,
    pub(crate) author: &'a Author,
    pub(crate) log_fields: &'a LogFields,
    pub(crate) encoding: Encoding,
    pub(crate) body: WholeBody,
    /// A body that replaces the received one, always in identity encoding.
    pub(crate) rewritten: Option<Bytes>,
}

/// The client of one store. Connections are kept and reused.
#[derive(Debug)]
pub struct Backend {
    signal: Signal,
    settings: BackendSettings,
    target: Target,
    authority: String,
    client: Client<Connector, UpstreamBody>,
}

impl Backend {
    /// The client for batches of `signal`.
    #[must_use]
    pub fn new(signal: Signal, settings: BackendSettings) -> Self {
        let target = Target::new(signal, &settings.address.prefix, settings.attribution, &settings.stream_fields)
            .in_cluster(settings.cluster);
        let authority = match &settings.address.endpoint {
            Endpoint::Tcp(authority) => authority.clone(),
            Endpoint::Unix(_) => "localhost".to_owned(),
        };
        let connector = Connector::new(settings.address.endpoint.clone(), settings.connect_timeout);
        // hyper-util sends a request again only if the pooled connection broke before anything of it was written: the
        // store can't have seen it. Everything later is the runner's to decide.
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .retry_canceled_requests(true)
            .build(connector);
        Self { signal, settings, target, authority, client }
    }

    /// Its settings.
    #[must_use]
    pub const fn settings(&self) -> &BackendSettings {
        &self.settings
    }

    /// Sends a batch and waits for the store's whole answer: an answer that breaks off is none.
    ///
    /// # Errors
    /// The refusal that the failure amounts to.
    pub(crate) async fn send(&self, outgoing: Outgoing<'_>) -> Result<Answer, Refusal> {
        let request = self.request(outgoing)?;
        match timeout(self.settings.timeout, self.exchange(request)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Reason::BackendTimeout.into()),
        }
    }

    /// Asks the store whether it is there (`GET /health`), and how long that took.
    ///
    /// # Errors
    /// The refusal that a batch would get now.
    pub(crate) async fn probe(&self) -> Result<Duration, Refusal> {
        let path = format!("{}/health", self.settings.address.prefix);
        let mut request = Request::new(UpstreamBody::nothing());
        *request.uri_mut() = self.uri(&path)?;
        let started = Instant::now();
        match timeout(PROBE_TIMEOUT, self.exchange(request)).await {
            Ok(answer) => answer?.into_status().map(|_| started.elapsed()),
            Err(_) => Err(Reason::BackendTimeout.into()),
        }
    }

    fn uri(&self, path_and_query: &str) -> Result<Uri, Refusal> {
        let uri = Uri::builder().scheme("http").authority(self.authority.as_str()).path_and_query(path_and_query);
        uri.build().map_err(|_| Reason::InternalError.into())
    }

    fn request(&self, outgoing: Outgoing<'_>) -> Result<Request<UpstreamBody>, Refusal> {
        let target = self.target.path_and_query(outgoing.tenant, outgoing.author, outgoing.log_fields);
        let uri = self.uri(&target.ok_or_else(no_account)?)?;
        let encoding = if outgoing.rewritten.is_some() { Encoding::Identity } else { outgoing.encoding };
        let body = match outgoing.rewritten {
            Some(bytes) => UpstreamBody::rewritten(bytes, outgoing.body),
            None => UpstreamBody::as_received(outgoing.body),
        };
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_11;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.signal.content_type()));
        if let Some(encoding) = encoding.header_value() {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
        }
        if let (Form::Headers, Some(tenant)) = (Form::of(self.signal, self.settings.cluster), outgoing.tenant) {
            tenant.set_headers(headers).then_some(()).ok_or_else(no_account)?;
        }
        Ok(request)
    }

    async fn exchange(&self, request: Request<UpstreamBody>) -> Result<Answer, Refusal> {
        let response = self.client.request(request).await.map_err(|error| {
            let reason = if error.is_connect() { Reason::BackendUnreachable } else { Reason::BackendError };
            tracing::debug!(signal = %self.signal, error = %chain(&error), "a request to a store failed");
            Refusal::new(reason)
        })?;
        read_answer(response).await
    }
}

async fn read_answer(response: Response<Incoming>) -> Result<Answer, Refusal> {
    let status = response.status();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(parse_seconds);
    let mut body = response.into_body();
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refusal::new(Reason::BackendError))?;
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > MAX_ANSWER_BYTES {
            break;
        }
    }
    Ok(Answer { status, retry_after })
}

/// Validation refuses settings that lead here. A batch is rather kept by its runner than filed under an account that may be
/// someone else's.
fn no_account() -> Refusal {
    Refusal::new(Reason::SignalDisabled).with_detail("the store needs an account, and this author's tenant has none")
}

fn parse_seconds(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// An error with its causes, in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
