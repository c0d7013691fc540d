//! What the stores have at the end: how often each item.

use std::collections::{BTreeMap, HashMap};

use http::StatusCode;
use telemetry_proto::Signal;

use super::witness::{self, ATTEMPT, Item, Line, METRIC, NUMBER, SOURCE, Stream};
use crate::http::HttpClient;
use crate::stores::{Store, StoreError};

/// How often each item of each stream is stored.
pub(super) type Stored = BTreeMap<Stream, HashMap<Item, u32>>;

/// Every raw sample of ours.
pub(super) async fn metrics(store: &Store, stored: &mut Stored) -> Result<(), StoreError> {
    for sample in store.samples().await? {
        if sample.name == METRIC
            && let Some(item) = witness::item(sample.label(ATTEMPT), sample.value)
        {
            count(stored, sample.label(SOURCE), Signal::Metrics, item);
        }
    }
    Ok(())
}

/// Every log line of ours.
pub(super) async fn logs(store: &Store, stored: &mut Stored) -> Result<(), StoreError> {
    let item =
        |attempt: &str, number: &str| Some(Item { attempt: attempt.parse().ok()?, number: number.parse().ok()? });
    if !matches!(store, Store::Real(_)) {
        for line in store.log_lines().await? {
            if let Some(item) = item(line.field(ATTEMPT), line.field(NUMBER)) {
                count(stored, line.field(SOURCE), Signal::Logs, item);
            }
        }
        return Ok(());
    }
    // Three fields of each line: all of a long run is too much.
    let http = HttpClient::new(store.address());
    http.get("/internal/force_flush").await?;
    let query = format!("/select/logsql/query?query=*%20%7C%20fields%20{SOURCE},{ATTEMPT},{NUMBER}");
    let (status, body) = http.get(&query).await?;
    if status != StatusCode::OK {
        return Err(StoreError::Status(status));
    }
    for line in serde_json::Deserializer::from_slice(&body).into_iter::<Line>() {
        let line = line.map_err(StoreError::Answer)?;
        if let Some(item) = item(&line.attempt, &line.number) {
            count(stored, &line.source, Signal::Logs, item);
        }
    }
    Ok(())
}

fn count(stored: &mut Stored, source: &str, signal: Signal, item: Item) {
    *stored.entry((source.to_owned(), signal)).or_default().entry(item).or_default() += 1;
}
