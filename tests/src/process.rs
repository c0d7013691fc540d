//! A program that runs beside the tests: started, killed, stopped, started again, and measured.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::process::{Child, Command};

use crate::wait::{self, TimedOut};

const READY_WITHIN: Duration = Duration::from_secs(30);
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// A program does not start or stop.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It can't be run, or has no place for its data.
    #[error("the program can't be started: {0}")]
    Start(#[from] io::Error),
    /// It ended instead of answering.
    #[error("the program ended at once with {status}: {log}")]
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

/// What a process holds of its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The most memory that it ever had resident, in bytes (`VmHWM`).
    pub peak_memory_bytes: u64,
    /// The memory that it has resident now, in bytes (`VmRSS`).
    pub memory_bytes: u64,
    /// How many files and sockets it has open.
    pub descriptors: usize,
    /// How many threads it has.
    pub threads: u64,
}

/// A program with its arguments, running or not. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, String)>,
    log_file: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Process {
    /// Says what to run. What it prints is appended to `log_file`.
    pub(crate) const fn new(program: PathBuf, arguments: Vec<OsString>, log_file: PathBuf) -> Self {
        Self { program, arguments, environment: Vec::new(), log_file, child: Mutex::new(None) }
    }

    /// Sets a variable of its environment.
    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// All that it has printed since the first start.
    pub(crate) fn log(&self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.log_file)?).into_owned())
    }

    /// Starts it, after killing what runs, and waits until `ready` says so.
    pub(crate) async fn start(&self, mut ready: impl AsyncFnMut() -> Result<(), String>) -> Result<(), ProcessError> {
        self.kill().await?;
        let mut child = self.spawn()?;
        let answered = wait::until("an answer of the program", READY_WITHIN, async || {
            if let Ok(Some(status)) = child.try_wait() {
                return Ok(Err(ProcessError::Ended { status, log: self.end_of_log() }));
            }
            ready().await.map(Ok)
        });
        answered.await??;
        *self.child.lock() = Some(child);
        Ok(())
    }

    /// Ends it as a crash would: SIGKILL. Waits until it is gone.
    pub(crate) async fn kill(&self) -> Result<(), ProcessError> {
        let child = self.child.lock().take();
        if let Some(mut child) = child {
            child.kill().await?;
        }
        Ok(())
    }

    /// Ends it as an operator would: SIGTERM. Waits until it is gone.
    pub(crate) async fn stop(&self) -> Result<(), ProcessError> {
        let child = self.child.lock().take();
        if let Some(mut child) = child
            && let Some(pid) = child.id()
        {
            send_signal(pid, "TERM").await?;
            let ended = async || child.wait().await.map(drop).map_err(|error| error.to_string());
            wait::until("the end of the program", STOP_WITHIN, ended).await?;
        }
        Ok(())
    }

    /// Sends it a signal, by name without `SIG`. Nothing happens if it does not run.
    pub(crate) async fn signal(&self, name: &str) -> io::Result<()> {
        match self.pid() {
            Ok(pid) => send_signal(pid, name).await,
            Err(_) => Ok(()),
        }
    }

    /// Its number, while it runs.
    pub(crate) fn pid(&self) -> io::Result<u32> {
        self.child.lock().as_ref().and_then(Child::id).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// What it holds now (Linux: proc(5)).
    pub(crate) fn usage(&self) -> io::Result<Usage> {
        let pid = self.pid()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().trim_end_matches(" kB").parse::<u64>().ok()
        };
        let bytes = |name| number(name).map(|count| count * 1024).ok_or(io::ErrorKind::InvalidData);
        Ok(Usage {
            peak_memory_bytes: bytes("VmHWM:")?,
            memory_bytes: bytes("VmRSS:")?,
            descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            threads: number("Threads:").ok_or(io::ErrorKind::InvalidData)?,
        })
    }

    fn spawn(&self) -> io::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log_file)?;
        Command::new(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(File::try_clone(&log)?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
    }

    fn end_of_log(&self) -> String {
        const LINES: usize = 20;
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

async fn send_signal(pid: u32, name: &str) -> io::Result<()> {
    Command::new("sh").arg("-c").arg(format!("kill -{name} {pid}")).status().await.map(drop)
}
