//! The connections of all runners to one target.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderValue, StatusCode};
use quinn::Endpoint;
use tokio::time::timeout;

use super::{Head, Link, http1, http3};
use crate::bench::BenchError;
use crate::bench::identities::{Identities, Runner};
use crate::bench::targets::{Target, TargetKind};

/// Handshakes at a time: the relay allows 64 from one address, and asks for a Retry from then on.
const AT_ONCE: usize = 32;
const CONNECT_WITHIN: Duration = Duration::from_secs(30);
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Connections that stand. Over HTTP/3 one connection carries many requests side by side; over HTTP/1.1 each request under way
/// takes one of its own, as it does for any client.
pub(in crate::bench) struct Crowd {
    links: Vec<Arc<Link>>,
    endpoint: Option<Endpoint>,
}

impl Crowd {
    /// Connects each of `runners`, so that `in_flight` requests can be under way.
    pub(in crate::bench) async fn connect(
        target: &Target,
        identities: &Identities,
        runners: &[Runner],
        in_flight: usize,
    ) -> Result<Self, BenchError> {
        let is_http3 = target.kind.is_relay();
        let count = if is_http3 { runners.len() } else { runners.len().max(in_flight) };
        let endpoint = if is_http3 { Some(http3::endpoint()?) } else { None };
        let connections = (0..count).map(|number| {
            let (runner, endpoint) = (&runners[number % runners.len()], endpoint.as_ref());
            async move {
                timeout(CONNECT_WITHIN, connect(target, identities, runner, endpoint))
                    .await
                    .unwrap_or_else(|_| Err(target.failed("no connection in time")))
            }
        });
        let links = stream::iter(connections).buffered(AT_ONCE).map_ok(Arc::new).try_collect().await?;
        Ok(Self { links, endpoint })
    }

    /// Writes a batch on the connection with this number, from 0. `Err` says what happened instead of an answer.
    pub(in crate::bench) async fn post(
        &self,
        number: usize,
        body: Bytes,
        batch: Option<HeaderValue>,
    ) -> Result<StatusCode, String> {
        let answer = timeout(ANSWER_WITHIN, self.links[number % self.links.len()].post(body, batch)).await;
        answer.unwrap_or_else(|_| Err("no answer in time".to_owned()))
    }

    /// Ends all connections and waits until the other side can know.
    pub(in crate::bench) async fn close(mut self) {
        self.links.clear();
        if let Some(endpoint) = self.endpoint.take() {
            let _ = timeout(CONNECT_WITHIN, endpoint.wait_idle()).await;
        }
    }
}

async fn connect(
    target: &Target,
    identities: &Identities,
    runner: &Runner,
    endpoint: Option<&Endpoint>,
) -> Result<Link, BenchError> {
    let head = Head::new(target, runner).map_err(|error| target.failed(error))?;
    let address = target.address;
    let link = match (target.kind, endpoint) {
        (TargetKind::Relay | TargetKind::Before | TargetKind::Go, Some(endpoint)) => {
            let tls = identities.tls(runner, &[b"h3"])?;
            http3::Link::connect(endpoint, address, tls, head).await.map(Link::Http3)
        }
        (TargetKind::Vmauth, _) => {
            let tls = identities.tls(runner, &[b"http/1.1"])?;
            http1::Link::connect(address, Some(tls), head).await.map(Link::Http1)
        }
        _ => http1::Link::connect(address, None, head).await.map(Link::Http1),
    };
    link.map_err(|problem| target.failed(problem))
}
