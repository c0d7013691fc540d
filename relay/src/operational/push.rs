//! The built-in sinks: points as exposition text, to a store on this machine.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use telemetry_certs::ClusterName;
use telemetry_proto::Signal;
use telemetry_proto::exposition::{Point, write_point};

use super::rules::CLUSTER_LABEL;
use super::{Chunk, OperationalSink, SinkError, SinkFuture};
use crate::forward::{Attribution, Backend, BackendSettings, Outgoing, StoreAddress};
use crate::gate::Author;
use crate::intake::{Encoding, LogFields, WholeBody};

/// Writes points to whatever takes Prometheus text at `/api/v1/import/prometheus`: the metrics store, or a vmagent.
///
/// Such an address has no authentication of its own. That it is one which only this machine can reach is checked where
/// the configuration is read; an embedder asks [`StoreAddress::is_loopback`].
#[derive(Debug)]
pub struct PushSink {
    backend: Backend,
    cluster: Option<ClusterName>,
}

impl PushSink {
    /// Writes to a metrics store, the one that other batches go to as a rule.
    #[must_use]
    pub fn to_store(settings: BackendSettings) -> Self {
        // Each point says itself whose it is.
        let settings = BackendSettings { attribution: Attribution::Off, ..settings };
        Self { backend: Backend::new(Signal::Metrics, settings), cluster: None }
    }

    /// Ships to a second address, a vmagent on this machine, with `miren_cluster` on every point.
    #[must_use]
    pub fn ship(address: StoreAddress, cluster: ClusterName) -> Self {
        Self { cluster: Some(cluster), ..Self::to_store(BackendSettings::new(address)) }
    }

    fn text(&self, chunk: &Chunk) -> Bytes {
        let mut text = Vec::new();
        for point in chunk.points() {
            match &self.cluster {
                None => write_point(&mut text, point),
                Some(cluster) => write_point(&mut text, &with_cluster(point, cluster)),
            }
        }
        text.into()
    }

    async fn push(&self, chunk: Arc<Chunk>) -> Result<(), SinkError> {
        let author = Author::from(chunk.runner().clone());
        let outgoing = Outgoing {
            tenant: chunk.tenant().pin(),
            author: &author,
            log_fields: &LogFields::default(),
            encoding: Encoding::Identity,
            body: WholeBody::of_text(self.text(&chunk)),
            rewritten: None,
        };
        let answer = self.backend.send(outgoing).await;
        answer.and_then(|answer| answer.into_status()).map(drop).map_err(|refusal| SinkError::Store(refusal.reason()))
    }
}

impl OperationalSink for PushSink {
    fn take(&self, chunk: Arc<Chunk>) -> SinkFuture<'_> {
        Box::pin(self.push(chunk))
    }
}

/// A view of the point, with a label more.
fn with_cluster<'a>(point: &'a Point<'_>, cluster: &'a ClusterName) -> Point<'a> {
    let borrowed = point.labels.iter().map(|(name, value)| (Cow::from(&**name), Cow::from(&**value)));
    let cluster = (Cow::from(CLUSTER_LABEL), Cow::from(cluster.as_str()));
    Point {
        name: Cow::from(&*point.name),
        labels: borrowed.chain([cluster]).collect(),
        value: point.value,
        timestamp_ms: point.timestamp_ms,
    }
}
