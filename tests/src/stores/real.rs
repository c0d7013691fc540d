//! VictoriaMetrics, VictoriaLogs and VictoriaTraces themselves.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use telemetry_relay::forward::Account;
use tempfile::TempDir;

use super::{LogLine, Sample, StoreError};
use crate::http::HttpClient;
use crate::net::free_address;
use crate::process::{Process, ProcessError};
use crate::program::Program;

/// Every sample of every series of any time, without deduplication: what is stored twice is shown twice.
const EXPORT: &str = "/api/v1/export?reduce_mem_usage=1&start=0&end=4102444800&match%5B%5D=%7B__name__!%3D%22%22%7D";
const QUERY_ALL_LOGS: &str = "/select/logsql/query?query=*";
/// Another process may take the port between our look and the store's start.
const START_ATTEMPTS: usize = 3;
const FLUSH: &str = "/internal/force_flush";

/// A store of our own, on loopback, with its data in a temporary folder. Killed when dropped.
#[derive(Debug)]
pub struct RealStore {
    process: Process,
    http: HttpClient,
    address: SocketAddr,
    // Last: the folder outlives the process.
    _folder: TempDir,
}

impl RealStore {
    /// Finds the program and starts it.
    ///
    /// # Errors
    /// The program is nowhere, or does not answer in time.
    pub async fn start(program: Program) -> Result<Self, StoreError> {
        Self::start_with(program, &[]).await
    }

    /// Finds the program and starts it with more flags.
    pub(super) async fn start_with(program: Program, more: &[String]) -> Result<Self, StoreError> {
        let path = program.find()?;
        let mut attempt = 1;
        loop {
            let store = Self::prepare(program, path.clone(), more)?;
            match store.restart().await {
                Ok(()) => return Ok(store),
                Err(ProcessError::Ended { log, .. }) if attempt < START_ATTEMPTS && log.contains("address already") => {
                    attempt += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of its process, while it runs.
    pub(crate) fn pid(&self) -> std::io::Result<u32> {
        self.process.pid()
    }

    /// All that VictoriaMetrics has stored.
    ///
    /// # Errors
    /// It does not answer, or not as expected.
    pub async fn samples(&self) -> Result<Vec<Sample>, StoreError> {
        self.flush().await?;
        let series: Vec<ExportedSeries> = json_lines(&self.get(EXPORT).await?)?;
        Ok(series.into_iter().flat_map(ExportedSeries::into_samples).collect())
    }

    /// All that VictoriaLogs has stored under an account.
    ///
    /// # Errors
    /// It does not answer, or not as expected.
    pub async fn log_lines_of(&self, account: Account) -> Result<Vec<LogLine>, StoreError> {
        self.flush().await?;
        self.query_logs(account).await
    }

    /// Makes what it has taken visible.
    pub(super) async fn flush(&self) -> Result<(), StoreError> {
        self.get(FLUSH).await.map(drop)
    }

    /// The log lines of an account that are visible.
    pub(super) async fn query_logs(&self, account: Account) -> Result<Vec<LogLine>, StoreError> {
        let headers = [("AccountID", account.account), ("ProjectID", account.project)];
        let answer = self.http.get_with(QUERY_ALL_LOGS, &headers.map(|(name, id)| (name, id.to_string()))).await?;
        let lines = json_lines(&ok(answer)?)?;
        Ok(lines.into_iter().map(LogLine::from_fields).collect())
    }

    /// The store's page of metrics about itself, as text.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn own_metrics(&self) -> Result<Bytes, StoreError> {
        self.get("/metrics").await
    }

    /// Crashes it (SIGKILL). What it acknowledged in the last seconds and holds in memory only is lost.
    ///
    /// # Errors
    /// The process can't be ended.
    pub async fn kill(&self) -> Result<(), ProcessError> {
        self.process.kill().await
    }

    /// Ends it in good order (SIGTERM): it saves everything first.
    ///
    /// # Errors
    /// The process does not end in time.
    pub async fn stop(&self) -> Result<(), ProcessError> {
        self.process.stop().await
    }

    /// Starts it again on the same port and data, and waits until it answers.
    ///
    /// # Errors
    /// It does not answer in time.
    pub async fn restart(&self) -> Result<(), ProcessError> {
        let ready = async || match self.http.get("/health").await {
            Ok((StatusCode::OK, _)) => Ok(()),
            Ok((status, _)) => Err(status.to_string()),
            Err(error) => Err(error.to_string()),
        };
        self.process.start(ready).await
    }

    fn prepare(program: Program, path: PathBuf, more: &[String]) -> std::io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("telemetry-store-").tempdir()?;
        let address = free_address()?;
        let mut arguments: Vec<OsString> = flags(program).iter().map(OsString::from).collect();
        arguments.push(format!("-httpListenAddr={address}").into());
        arguments.push(format!("-storageDataPath={}", folder.path().join("data").display()).into());
        arguments.extend(more.iter().map(OsString::from));
        let process = Process::new(path, arguments, folder.path().join("log.txt"));
        Ok(Self { process, http: HttpClient::new(address), address, _folder: folder })
    }

    async fn get(&self, path_and_query: &str) -> Result<Bytes, StoreError> {
        ok(self.http.get(path_and_query).await?)
    }
}

fn ok((status, body): (StatusCode, Bytes)) -> Result<Bytes, StoreError> {
    if status == StatusCode::OK { Ok(body) } else { Err(StoreError::Status(status)) }
}

/// Data of any age is kept and visible at once; memory stays small.
const fn flags(program: Program) -> &'static [&'static str] {
    match program {
        Program::VictoriaMetrics => {
            &["-retentionPeriod=100y", "-memory.allowedBytes=64MiB", "-search.latencyOffset=0s"]
        }
        _ => &["-retentionPeriod=100y", "-memory.allowedBytes=64MiB"],
    }
}

fn json_lines<T: DeserializeOwned>(body: &[u8]) -> Result<Vec<T>, StoreError> {
    let lines = serde_json::Deserializer::from_slice(body).into_iter();
    lines.collect::<Result<_, _>>().map_err(StoreError::Answer)
}

/// A line of `/api/v1/export`.
#[derive(Deserialize)]
struct ExportedSeries {
    metric: BTreeMap<String, String>,
    values: Vec<ExportedValue>,
    timestamps: Vec<i64>,
}

/// JSON has no infinities; VictoriaMetrics writes them as words (version 1.79 writes no valid JSON), and stores no NaN.
#[derive(Deserialize)]
#[serde(untagged)]
enum ExportedValue {
    Number(f64),
    Word(String),
}

impl ExportedSeries {
    fn into_samples(self) -> impl Iterator<Item = Sample> {
        let Self { metric: mut labels, values, timestamps } = self;
        let name = labels.remove("__name__").unwrap_or_default();
        values.into_iter().zip(timestamps).map(move |(value, timestamp_ms)| Sample {
            name: name.clone(),
            labels: labels.clone(),
            value: match value {
                ExportedValue::Number(number) => number,
                ExportedValue::Word(word) => word.parse().unwrap_or(f64::NAN),
            },
            timestamp_ms,
        })
    }
}
