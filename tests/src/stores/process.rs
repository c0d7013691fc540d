//! A store's process: started on loopback with a folder of its own, killed, and started again on the same port and data.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::http::HttpClient;
use crate::net::free_address;
use crate::wait::{self, TimedOut};

const READY_WITHIN: Duration = Duration::from_secs(30);
const STOP_WITHIN: Duration = Duration::from_secs(30);
/// Another process may take the port between our look and the store's start.
const START_ATTEMPTS: usize = 3;

/// A store does not start or stop.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// Its program can't be run, or it has no place for its data.
    #[error("the store can't be started")]
    Start(#[from] io::Error),
    /// It ended instead of answering; the end of its log follows.
    #[error("the store ended at once with {status}: {log}")]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// It did not answer or end in time.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
}

/// A running, or killed, store.
#[derive(Debug)]
pub(super) struct StoreProcess {
    program: PathBuf,
    flags: &'static [&'static str],
    address: SocketAddr,
    folder: TempDir,
    child: Mutex<Option<Child>>,
}

impl StoreProcess {
    pub(super) async fn start(program: PathBuf, flags: &'static [&'static str]) -> Result<Self, ProcessError> {
        let mut attempt = 1;
        loop {
            let folder = tempfile::Builder::new().prefix("telemetry-store-").tempdir()?;
            let address = free_address()?;
            let store = Self { program: program.clone(), flags, address, folder, child: Mutex::new(None) };
            match store.restart().await {
                Ok(()) => return Ok(store),
                Err(ProcessError::Ended { log, .. }) if attempt < START_ATTEMPTS && log.contains("address already") => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn log_file(&self) -> PathBuf {
        self.folder.path().join("log.txt")
    }

    /// Ends the store as a crash would: SIGKILL. Waits until it is gone.
    pub(super) async fn kill(&self) -> Result<(), ProcessError> {
        let child = self.child.lock().take();
        if let Some(mut child) = child {
            child.kill().await?;
        }
        Ok(())
    }

    /// Ends the store as an operator would: SIGTERM, upon which it saves what it has in memory. Waits until it is gone.
    pub(super) async fn stop(&self) -> Result<(), ProcessError> {
        let child = self.child.lock().take();
        if let Some(mut child) = child
            && let Some(pid) = child.id()
        {
            Command::new("sh").arg("-c").arg(format!("kill -TERM {pid}")).status().await?;
            wait::until("the store's end", STOP_WITHIN, async || {
                child.wait().await.map(drop).map_err(|error| error.to_string())
            })
            .await?;
        }
        Ok(())
    }

    /// Starts the store, again on the same port and data, and waits until it answers.
    pub(super) async fn restart(&self) -> Result<(), ProcessError> {
        self.kill().await?;
        let mut child = self.spawn()?;
        let http = HttpClient::new(self.address);
        let answered = wait::until("an answer of the store", READY_WITHIN, async || {
            if let Ok(Some(status)) = child.try_wait() {
                return Ok(Err(ProcessError::Ended { status, log: tail(&self.log_file()) }));
            }
            match http.get("/health").await {
                Ok((status, _)) if status.is_success() => Ok(Ok(())),
                Ok((status, _)) => Err(status.to_string()),
                Err(error) => Err(error.to_string()),
            }
        });
        answered.await??;
        *self.child.lock() = Some(child);
        Ok(())
    }

    fn spawn(&self) -> io::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(self.log_file())?;
        let data = self.folder.path().join("data");
        Command::new(&self.program)
            .arg(format!("-httpListenAddr={}", self.address))
            .arg(format!("-storageDataPath={}", data.display()))
            .args(self.flags)
            .stdin(Stdio::null())
            .stdout(File::try_clone(&log)?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
    }
}

fn tail(log: &Path) -> String {
    const BYTES: usize = 2_000;
    let text = std::fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&text[text.len().saturating_sub(BYTES)..]).into_owned()
}
