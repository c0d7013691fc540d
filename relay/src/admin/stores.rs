//! Whether the stores are there: asked every few seconds, so that a status costs nothing.

use std::time::Duration;

use parking_lot::Mutex;
use telemetry_proto::Signal;

use super::status::StoreStatus;
use crate::RelayService;

/// What the stores answered when they were asked last.
#[derive(Debug, Default)]
pub(super) struct Stores {
    answers: Mutex<Vec<(Signal, Option<Duration>)>>,
}

impl Stores {
    /// Asks every store.
    pub(super) async fn ask(&self, service: &RelayService) {
        let mut answers = Vec::new();
        for (signal, backend) in service.backends() {
            answers.push((signal, backend.probe().await.ok()));
        }
        *self.answers.lock() = answers;
    }

    pub(super) fn status(&self, service: &RelayService) -> Vec<StoreStatus> {
        let answers = self.answers.lock();
        let stores = service.backends().map(|(signal, backend)| {
            let answer = answers.iter().find(|(asked, _)| *asked == signal).map(|(_, answer)| *answer);
            StoreStatus {
                signal: signal.as_str(),
                address: backend.settings().address.to_string(),
                up: answer.map(|latency| latency.is_some()),
                latency_seconds: answer.flatten().map(|latency| latency.as_secs_f64()),
            }
        });
        stores.collect()
    }
}
