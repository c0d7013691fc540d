//! A runner of the demonstration: its writers, and what it has written.

use std::sync::Arc;
use std::time::Duration;

use telemetry_proto::{RunnerId, Signal};
use telemetry_runner_client::{Client, LateTokenSource, LogRecord, Point, Tally, TokenError, TokenSource};

use super::DemoError;
use crate::rig::Rig;

/// The label and field that number what a runner writes.
pub(super) const NUMBER: &str = "demo_number";
/// Every so many lines claim another runner.
const CLAIM_EVERY: u64 = 10;
/// The runner that they claim.
const CLAIMED: &str = "someone-else";

pub(super) struct DemoRunner {
    pub(super) id: RunnerId,
    pub(super) points: u64,
    pub(super) records: u64,
    pub(super) lost: u64,
    tokens: LateTokenSource,
    client: Client,
}

impl DemoRunner {
    /// A runner whose writers work, and whose token source has no issuer yet.
    pub(super) fn start(rig: &Rig, index: usize) -> Result<Self, DemoError> {
        let runner = rig.runner(index);
        let tokens = LateTokenSource::new();
        let client = Client::builder()
            .coordinator(rig.relay_address().to_string())
            .identity(runner.credentials.clone(), rig.cluster().roots().clone())
            .token_source(Arc::new(tokens.clone()))
            .build()
            .map_err(|error| DemoError::Client(error.to_string()))?;
        Ok(Self { id: runner.id.clone(), points: 0, records: 0, lost: 0, tokens, client })
    }

    pub(super) async fn is_unarmed(&self) -> bool {
        matches!(self.tokens.token().await, Err(TokenError::Unarmed))
    }

    pub(super) fn arm(&self) {
        self.tokens.arm(self.client.issuer());
    }

    pub(super) fn write_point(&mut self, point: Point<'_>) {
        let mut point = point.label(NUMBER, self.points.to_string());
        // A page may tell when its figures were taken; here all are of now.
        point.timestamp_ms = None;
        if self.points.is_multiple_of(CLAIM_EVERY) {
            point = point.label("miren_runner", CLAIMED);
        }
        if self.client.metrics().write(point).is_ok() {
            self.points += 1;
        }
    }

    pub(super) fn write_record(&mut self, entity: &str, message: &str) {
        let mut record = LogRecord::new(entity, "stdout", message).attribute(NUMBER, self.records.to_string());
        if self.records.is_multiple_of(CLAIM_EVERY) {
            record = record.attribute("miren_runner", CLAIMED);
        }
        if self.client.logs().write(&record).is_ok() {
            self.records += 1;
        }
    }

    /// What is written and delivered so far, both signals together.
    pub(super) fn tally(&self) -> (u64, u64) {
        let tallies = [Signal::Metrics, Signal::Logs].map(|signal| self.client.tally(signal));
        let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum();
        (sum(|tally| tally.written), sum(|tally| tally.delivered))
    }

    pub(super) async fn close(&mut self, within: Duration) {
        let report = self.client.close(within).await;
        self.lost = report.lost + report.dropped;
    }
}
