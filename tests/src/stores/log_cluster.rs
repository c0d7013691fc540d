//! VictoriaLogs as a cluster: the same program as nodes that store, take writes and answer queries.

use std::net::SocketAddr;

use bytes::Bytes;
use telemetry_relay::forward::Account;

use super::{LogLine, RealStore, StoreError};
use crate::process::ProcessError;
use crate::program::Program;

/// A cluster of two storage nodes, one node for writes and one for queries.
#[derive(Debug)]
pub struct LogCluster {
    storage: [RealStore; 2],
    insert: RealStore,
    select: RealStore,
}

impl LogCluster {
    /// Finds the program and starts the nodes.
    ///
    /// # Errors
    /// The program is nowhere, or a node does not answer in time.
    pub async fn start() -> Result<Self, StoreError> {
        let node = async |flags: &[String]| RealStore::start_with(Program::VictoriaLogs, flags).await;
        let storage: [RealStore; 2] = tokio::try_join!(node(&[]), node(&[]))?.into();
        let of_storage = format!("-storageNode={},{}", storage[0].address(), storage[1].address());
        let to_write = [of_storage.clone(), "-select.disable".to_owned()];
        let to_query = [of_storage, "-insert.disable".to_owned()];
        let (insert, select) = tokio::try_join!(node(&to_write), node(&to_query))?;
        Ok(Self { storage, insert, select })
    }

    /// Where it takes writes.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.insert.address()
    }

    /// All that it has stored under an account. What the node for writes still holds comes a little later.
    ///
    /// # Errors
    /// A node does not answer, or not as expected.
    pub async fn log_lines_of(&self, account: Account) -> Result<Vec<LogLine>, StoreError> {
        for node in &self.storage {
            node.flush().await?;
        }
        self.select.query_logs(account).await
    }

    /// The page of metrics of the node for writes, as text.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn own_metrics(&self) -> Result<Bytes, StoreError> {
        self.insert.own_metrics().await
    }

    /// Crashes the node for writes.
    ///
    /// # Errors
    /// The process can't be ended.
    pub async fn kill(&self) -> Result<(), ProcessError> {
        self.insert.kill().await
    }

    /// Ends the node for writes in good order.
    ///
    /// # Errors
    /// The process does not end in time.
    pub async fn stop(&self) -> Result<(), ProcessError> {
        self.insert.stop().await
    }

    /// Starts the node for writes again.
    ///
    /// # Errors
    /// It does not answer in time.
    pub async fn restart(&self) -> Result<(), ProcessError> {
        self.insert.restart().await
    }
}
