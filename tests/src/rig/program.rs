//! The real relay program, as a child process: for what a crash does, and for what the program holds of its machine.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use telemetry_certs::{Credentials, Roots};
use telemetry_proto::RunnerId;
use telemetry_relay::issuer::SigningKey;
use tempfile::TempDir;
use tokio::time::timeout;

use super::{Cluster, ISSUER, RigError};
use crate::process::{Process, ProcessError, Usage};
use crate::program::Program;
use crate::raw::RawClient;
use crate::wait;

/// All that the relay's own code can say, and most of what others say.
pub(super) const LOG_LEVELS: &str =
    "debug,telemetry_relay=trace,telemetry_h3=trace,telemetry_certs=trace,telemetry_proto=trace";

/// How long a relay may take to notice that files changed, on a loaded machine.
const RELOAD_WITHIN: Duration = Duration::from_secs(20);

/// How long the first probe of a relay that starts is waited for.
const FIRST_PROBE: Duration = Duration::from_millis(50);

/// `telemetry-relay serve` with a configuration of its own. Killed when dropped.
#[derive(Debug)]
pub struct RelayProgram {
    process: Process,
    address: SocketAddr,
    roots: Roots,
    probe: Credentials,
    // Last: the folder outlives the process.
    folder: TempDir,
}

/// Where the program finds what it needs.
pub(crate) struct Parts<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) signing: &'a SigningKey,
    pub(crate) metrics: SocketAddr,
    pub(crate) logs: SocketAddr,
    /// Absent where traces are not taken.
    pub(crate) traces: Option<SocketAddr>,
    /// Whether it listens on TCP too.
    pub(crate) tcp: bool,
    /// More of the configuration file.
    pub(crate) settings: &'a str,
    /// Settings by variable, which is how sections that are there already get more.
    pub(crate) variables: &'a [(&'static str, String)],
    /// What is logged, as `RUST_LOG` says it.
    pub(crate) log_levels: &'static str,
}

impl RelayProgram {
    pub(crate) async fn start(address: SocketAddr, parts: Parts<'_>) -> Result<Self, RigError> {
        let program = Program::Relay.find().map_err(|error| RigError::Setup(error.to_string()))?;
        Self::start_program(program, address, parts).await
    }

    /// Starts another build of the program.
    pub(crate) async fn start_program(
        program: PathBuf,
        address: SocketAddr,
        parts: Parts<'_>,
    ) -> Result<Self, RigError> {
        let folder = tempfile::Builder::new().prefix("telemetry-relay-").tempdir()?;
        let config = write_files(folder.path(), address, &parts)?;
        let log = folder.path().join("log.txt");
        let arguments = vec!["serve".into(), "--config".into(), config.into()];
        // The C library gives threads arenas of their own and keeps what each once held. With two of them, what is resident
        // is what the relay holds; its systemd unit sets the same.
        let mut process =
            Process::new(program, arguments, log).env("RUST_LOG", parts.log_levels).env("MALLOC_ARENA_MAX", "2");
        for (name, value) in parts.variables {
            process = process.env(name, value.as_str());
        }
        let probe = RunnerId::new("probe").map_err(|error| RigError::Setup(error.to_string()))?;
        let probe = parts.cluster.issue_runner(&probe)?;
        let relay = Self { process, address, roots: parts.cluster.roots().clone(), probe, folder };
        relay.restart().await?;
        Ok(relay)
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Crashes it: SIGKILL.
    ///
    /// # Errors
    /// The process can't be ended.
    pub async fn kill(&self) -> Result<(), ProcessError> {
        self.process.kill().await
    }

    /// Ends it in good order: SIGTERM.
    ///
    /// # Errors
    /// The process does not end in time.
    pub async fn stop(&self) -> Result<(), ProcessError> {
        self.process.stop().await
    }

    /// Starts it again with the same configuration, and waits until it takes connections.
    ///
    /// # Errors
    /// It takes none in time.
    pub async fn restart(&self) -> Result<(), ProcessError> {
        // A probe that comes too early repeats itself only a second later: the next one is sooner.
        let patience = Mutex::new(FIRST_PROBE);
        let ready = async || {
            let probe = RawClient::connect(self.address, &self.roots, Some(&self.probe));
            let wait = *patience.lock();
            match timeout(wait, probe).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => {
                    *patience.lock() = 2 * wait;
                    Err("no answer yet".to_owned())
                }
            }
        };
        self.process.start(ready).await
    }

    /// Where its configuration is, with the files that this names and two that it does not: `ca.key` and an empty
    /// `removed.txt`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Lets it read its files again: SIGHUP.
    ///
    /// # Errors
    /// The signal can't be sent.
    pub async fn reload(&self) -> std::io::Result<()> {
        self.process.signal("HUP").await
    }

    /// Replaces files in its folder, and waits until it has put them in force.
    ///
    /// # Errors
    /// A file can't be written, or the relay does not take them.
    pub async fn replace(&self, files: &[(&str, &str)]) -> Result<(), RigError> {
        const TAKEN: &str = "configuration reloaded";
        const REFUSED: &str = "the configuration was not reloaded";
        let count = |words: &str| Ok::<_, RigError>(self.log()?.matches(words).count());
        let (taken, refused) = (count(TAKEN)?, count(REFUSED)?);
        for (name, text) in files {
            fs::write(self.folder().join(format!("{name}.new")), text)?;
        }
        for (name, _) in files {
            fs::rename(self.folder().join(format!("{name}.new")), self.folder().join(name))?;
        }
        let is_taken = async || {
            let log = self.log().map_err(|error| error.to_string())?;
            let seen = (log.matches(TAKEN).count() > taken, log.matches(REFUSED).count() > refused);
            if seen.0 || seen.1 { Ok(seen) } else { Err("nothing yet".to_owned()) }
        };
        match wait::until("the reload", RELOAD_WITHIN, is_taken).await? {
            (true, _) => Ok(()),
            (false, _) => Err(RigError::Setup("the relay refused the files; see its log".to_owned())),
        }
    }

    /// Everything that it has logged since its first start, at every level.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn log(&self) -> std::io::Result<String> {
        self.process.log()
    }

    /// Its number, while it runs.
    pub(crate) fn pid(&self) -> std::io::Result<u32> {
        self.process.pid()
    }

    /// What it holds now.
    ///
    /// # Errors
    /// It does not run, or this system does not tell.
    pub fn usage(&self) -> std::io::Result<Usage> {
        self.process.usage()
    }
}

fn write_files(folder: &Path, address: SocketAddr, parts: &Parts<'_>) -> Result<PathBuf, RigError> {
    let signing_key = parts.signing.to_pem().map_err(|error| RigError::Setup(error.to_string()))?;
    let coordinator = parts.cluster.coordinator();
    for (name, text) in [
        ("coordinator.pem", coordinator.chain_pem.as_str()),
        ("coordinator.key", coordinator.key_pem.as_str()),
        ("ca.pem", parts.cluster.root_pem()),
        ("signing.key", signing_key.as_str()),
        ("ca.key", parts.cluster.authority().key_pem().as_str()),
        ("removed.txt", ""),
    ] {
        fs::write(folder.join(name), text)?;
    }
    let path = |name: &str| toml::Value::from(folder.join(name).display().to_string());
    let traces = parts.traces.map(|traces| format!("[stores.traces]\nurl = \"http://{traces}\"\n")).unwrap_or_default();
    let config = format!(
        "[listener]\naddress = \"{address}\"\ntcp = {}\nreset_key = {}\n\
         [tls]\ncertificate = {}\nkey = {}\nclient_ca = {}\n\
         [tokens]\nissuer = \"{ISSUER}\"\n\
         [issuer]\nsigning_key = {}\n\
         [stores.metrics]\nurl = \"http://{}\"\n\
         [stores.logs]\nurl = \"http://{}\"\n\
         {traces}{}\n",
        parts.tcp,
        path("reset.key"),
        path("coordinator.pem"),
        path("coordinator.key"),
        path("ca.pem"),
        path("signing.key"),
        parts.metrics,
        parts.logs,
        parts.settings,
    );
    let file = folder.join("relay.toml");
    fs::write(&file, config)?;
    Ok(file)
}
