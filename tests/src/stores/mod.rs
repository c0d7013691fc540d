//! Stores that a relay can write to, and that say what they have stored, and under which account.

mod builtin;
mod jaeger;
mod log_cluster;
mod real;
mod record;
mod tally;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use telemetry_relay::forward::Account;

use crate::http::{HttpClient, HttpError};
use crate::process::ProcessError;
use crate::program::{NotFound, Program};
use crate::wait::{self, TimedOut};

pub use builtin::{BuiltInStore, Cut, Fault, RecordedRequest};
pub use log_cluster::LogCluster;
pub use real::RealStore;
pub use record::{LogLine, Sample, StoredSpan};
pub(crate) use tally::lost_and_twice;

/// Where a store files what comes without an account.
pub const NO_ACCOUNT: Account = Account { account: 0, project: 0 };

/// How long a store may take to show what was written.
const VISIBLE_WITHIN: Duration = Duration::from_secs(20);

/// A store, read in the same way whatever stands behind it.
#[derive(Debug)]
pub enum Store {
    /// VictoriaMetrics, VictoriaLogs or VictoriaTraces, as a child process.
    Real(Box<RealStore>),
    /// VictoriaLogs as a cluster of child processes.
    LogCluster(Box<LogCluster>),
    /// The built-in store, in this process.
    BuiltIn(BuiltInStore),
}

/// A store can't be found, started or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Its program is nowhere.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// Its process does not do as it should.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// It has no port, or no place for its data.
    #[error("the store has no port or no place for its data: {0}")]
    Io(#[from] std::io::Error),
    /// There is no whole answer.
    #[error("the store can't be asked: {0}")]
    Http(String),
    /// The answer has another status than 200.
    #[error("the store answered {0}")]
    Status(StatusCode),
    /// The answer is not what the store documents.
    #[error("the store's answer can't be read: {0}")]
    Answer(#[source] serde_json::Error),
    /// What was waited for is not there.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
}

impl From<HttpError> for StoreError {
    fn from(error: HttpError) -> Self {
        Self::Http(error.to_string())
    }
}

impl Store {
    /// Starts the real store.
    ///
    /// # Errors
    /// The program is nowhere, or does not answer in time.
    pub async fn real(program: Program) -> Result<Self, StoreError> {
        Ok(Self::Real(Box::new(RealStore::start(program).await?)))
    }

    /// Starts the real store, which writes to disk every second what it took, as often as it can; by default every 5 s.
    ///
    /// # Errors
    /// As for [`real`](Self::real).
    pub async fn real_that_saves_often(program: Program) -> Result<Self, StoreError> {
        let often = ["-inmemoryDataFlushInterval=1s".to_owned()];
        Ok(Self::Real(Box::new(RealStore::start_with(program, &often).await?)))
    }

    /// Starts VictoriaLogs as a cluster.
    ///
    /// # Errors
    /// The program is nowhere, or a node does not answer in time.
    pub async fn log_cluster() -> Result<Self, StoreError> {
        Ok(Self::LogCluster(Box::new(LogCluster::start().await?)))
    }

    /// Starts a built-in store.
    ///
    /// # Errors
    /// There is no port for it.
    pub async fn built_in() -> Result<Self, StoreError> {
        Ok(Self::BuiltIn(BuiltInStore::start().await?))
    }

    /// Where it takes writes.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Real(store) => store.address(),
            Self::LogCluster(store) => store.address(),
            Self::BuiltIn(store) => store.address(),
        }
    }

    /// The samples that it has stored without an account, in no particular order.
    ///
    /// # Errors
    /// It can't be read.
    pub async fn samples(&self) -> Result<Vec<Sample>, StoreError> {
        self.samples_of(NO_ACCOUNT).await
    }

    /// The samples that it has stored under an account, in no particular order. A real single node knows none: all that
    /// it has is without.
    ///
    /// # Errors
    /// It can't be read.
    pub async fn samples_of(&self, account: Account) -> Result<Vec<Sample>, StoreError> {
        match self {
            Self::Real(store) if account == NO_ACCOUNT => store.samples().await,
            Self::Real(_) | Self::LogCluster(_) => Ok(Vec::new()),
            Self::BuiltIn(store) => Ok(store.samples_of(account)),
        }
    }

    /// The log lines that it has stored without an account, in no particular order.
    ///
    /// # Errors
    /// It can't be read.
    pub async fn log_lines(&self) -> Result<Vec<LogLine>, StoreError> {
        self.log_lines_of(NO_ACCOUNT).await
    }

    /// The log lines that it has stored under an account, in no particular order.
    ///
    /// # Errors
    /// It can't be read.
    pub async fn log_lines_of(&self, account: Account) -> Result<Vec<LogLine>, StoreError> {
        match self {
            Self::Real(store) => store.log_lines_of(account).await,
            Self::LogCluster(store) => store.log_lines_of(account).await,
            Self::BuiltIn(store) => Ok(store.log_lines_of(account)),
        }
    }

    /// The spans of a trace, in the order in which they began.
    ///
    /// # Errors
    /// It can't be read.
    pub async fn trace(&self, id: &str) -> Result<Vec<StoredSpan>, StoreError> {
        match HttpClient::new(self.address()).get(&format!("{}{id}", jaeger::TRACES)).await? {
            (StatusCode::OK, body) => {
                let answer: jaeger::Answer = serde_json::from_slice(&body).map_err(StoreError::Answer)?;
                Ok(answer.into_spans())
            }
            (StatusCode::NOT_FOUND, _) => Ok(Vec::new()),
            (status, _) => Err(StoreError::Status(status)),
        }
    }

    /// The spans of a trace, as soon as there are at least `count` of them.
    ///
    /// # Errors
    /// It can't be read, or there are fewer in the end.
    pub async fn wait_for_trace(&self, id: &str, count: usize) -> Result<Vec<StoredSpan>, StoreError> {
        wait_for_count(format!("{count} spans of {id}"), count, async || self.trace(id).await).await
    }

    /// The samples, as soon as there are at least `count` of them.
    ///
    /// # Errors
    /// It can't be read, or there are fewer in the end.
    pub async fn wait_for_samples(&self, count: usize) -> Result<Vec<Sample>, StoreError> {
        wait_for_count(format!("{count} samples"), count, async || self.samples().await).await
    }

    /// The log lines of an account, as soon as there are at least `count` of them.
    ///
    /// # Errors
    /// It can't be read, or there are fewer in the end.
    pub async fn wait_for_log_lines_of(&self, account: Account, count: usize) -> Result<Vec<LogLine>, StoreError> {
        wait_for_count(format!("{count} log lines of {account}"), count, async || self.log_lines_of(account).await)
            .await
    }

    /// The log lines, as soon as there are at least `count` of them.
    ///
    /// # Errors
    /// It can't be read, or there are fewer in the end.
    pub async fn wait_for_log_lines(&self, count: usize) -> Result<Vec<LogLine>, StoreError> {
        wait_for_count(format!("{count} log lines"), count, async || self.log_lines().await).await
    }

    /// The store's page of metrics about itself, as exposition text.
    ///
    /// # Errors
    /// It can't be read.
    pub async fn own_metrics(&self) -> Result<Bytes, StoreError> {
        match self {
            Self::Real(store) => store.own_metrics().await,
            Self::LogCluster(store) => store.own_metrics().await,
            Self::BuiltIn(store) => Ok(store.own_metrics()),
        }
    }

    /// Crashes it; its port is closed from now on.
    ///
    /// # Errors
    /// The process can't be ended.
    pub async fn kill(&self) -> Result<(), StoreError> {
        match self {
            Self::Real(store) => Ok(store.kill().await?),
            Self::LogCluster(store) => Ok(store.kill().await?),
            Self::BuiltIn(store) => {
                store.kill().await;
                Ok(())
            }
        }
    }

    /// Ends it in good order, so that it has everything when it is started again.
    ///
    /// # Errors
    /// The process does not end in time.
    pub async fn stop(&self) -> Result<(), StoreError> {
        match self {
            Self::Real(store) => Ok(store.stop().await?),
            Self::LogCluster(store) => Ok(store.stop().await?),
            Self::BuiltIn(_) => self.kill().await,
        }
    }

    /// Starts it again on the same port and data, and waits until it answers.
    ///
    /// # Errors
    /// It does not answer in time.
    pub async fn restart(&self) -> Result<(), StoreError> {
        match self {
            Self::Real(store) => Ok(store.restart().await?),
            Self::LogCluster(store) => Ok(store.restart().await?),
            Self::BuiltIn(store) => Ok(store.restart().await?),
        }
    }
}

async fn wait_for_count<T>(
    what: String,
    count: usize,
    read: impl AsyncFn() -> Result<Vec<T>, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let found = wait::until(what, VISIBLE_WITHIN, async || match read().await {
        Ok(found) if found.len() >= count => Ok(found),
        Ok(found) => Err(format!("{} of them", found.len())),
        Err(error) => Err(error.to_string()),
    });
    Ok(found.await?)
}
