//! Other people's programs that write telemetry, unmodified and with the settings that their users give them.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use http::StatusCode;
use tempfile::TempDir;

use crate::http::HttpClient;
use crate::net::free_address;
use crate::process::{Process, ProcessError};
use crate::program::{NotFound, Program};

/// A tool can't be started.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// Its program is nowhere.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// Its process does not do as it should.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// It has no port, or no place for its files.
    #[error("the tool has no port or no place for its files: {0}")]
    Io(#[from] std::io::Error),
}

/// A tool that runs. Killed when dropped.
#[derive(Debug)]
pub struct Tool {
    process: Process,
    address: SocketAddr,
    folder: TempDir,
}

impl Tool {
    /// VictoriaMetrics' agent, with the protocol that it chooses by itself. What it is given at [`address`](Self::address)
    /// it sends to `url` by remote write.
    ///
    /// # Errors
    /// It can't be started.
    pub async fn vmagent(url: &str) -> Result<Self, ToolError> {
        let (folder, address) = (folder()?, free_address()?);
        let arguments = [
            format!("-httpListenAddr={address}"),
            format!("-remoteWrite.url={url}"),
            format!("-remoteWrite.tmpDataPath={}", folder.path().join("queue").display()),
            "-memory.allowedBytes=64MiB".to_owned(),
        ];
        let arguments = arguments.into_iter().map(OsString::from).collect();
        let process = Process::new(Program::VmAgent.find()?, arguments, folder.path().join("log.txt"));
        Self { process, address, folder }.answering("/health").await
    }

    /// Prometheus, which asks `target` for its metrics each second, and sends what it learns to `url` by remote write.
    ///
    /// # Errors
    /// It can't be started.
    pub async fn prometheus(url: &str, target: SocketAddr) -> Result<Self, ToolError> {
        let (folder, address) = (folder()?, free_address()?);
        let config = format!(
            "global: {{ scrape_interval: 1s }}\n\
             scrape_configs: [ {{ job_name: rig, static_configs: [ {{ targets: [ '{target}' ] }} ] }} ]\n\
             remote_write: [ {{ url: '{url}' }} ]\n"
        );
        let config_file = folder.path().join("prometheus.yml");
        fs::write(&config_file, config)?;
        let arguments = [
            format!("--config.file={}", config_file.display()),
            format!("--storage.tsdb.path={}", folder.path().join("data").display()),
            format!("--web.listen-address={address}"),
        ];
        let arguments = arguments.into_iter().map(OsString::from).collect();
        let process = Process::new(Program::Prometheus.find()?, arguments, folder.path().join("log.txt"));
        Self { process, address, folder }.answering("/-/ready").await
    }

    /// syslog-ng, which follows [`input`](Self::input) and posts each line of it to `url` as the field `log` of a JSON
    /// line, ten at a time.
    ///
    /// # Errors
    /// It can't be started.
    pub async fn syslog_ng(url: &str) -> Result<Self, ToolError> {
        let (program, folder, address) = (Program::SyslogNg.find()?, folder()?, free_address()?);
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::write(path("input"), "")?;
        let config = format!(
            "@version: 3.38\n\
             options {{ stats-freq(0); time-reopen(1); }};\n\
             source input {{ file(\"{}\" follow-freq(0.1) flags(no-parse)); }};\n\
             destination agent {{ http(url(\"{url}\") method(\"POST\") headers(\"Content-Type: application/stream+json\")\n\
             body(\"$(format-json log=\\\"$MSG\\\" entity=\\\"e\\\" stream=\\\"stdout\\\")\") delimiter(\"\\n\") body-suffix(\"\\n\")\n\
             batch-lines(10) batch-timeout(200)); }};\n\
             log {{ source(input); destination(agent); flags(flow-control); }};\n",
            path("input")
        );
        fs::write(path("syslog-ng.conf"), config)?;
        let files = [("-f", "syslog-ng.conf"), ("-R", "state"), ("-c", "control"), ("-p", "pid")];
        let mut arguments: Vec<OsString> = vec!["-F".into(), "--no-caps".into(), "--stderr".into()];
        arguments.extend(files.into_iter().flat_map(|(flag, file)| [flag.into(), path(file).into()]));
        let libraries = libraries(&program);
        if let Some(unpacked) = &libraries {
            arguments.push(format!("--module-path={}", unpacked.modules.display()).into());
        }
        let mut process = Process::new(program, arguments, folder.path().join("log.txt"));
        if let Some(unpacked) = libraries {
            process = process.env("LD_LIBRARY_PATH", unpacked.search_path.to_string_lossy());
        }
        let tool = Self { process, address, folder };
        let started = async || match tool.process.log() {
            Ok(log) if log.contains("starting up") => Ok(()),
            Ok(log) => Err(log),
            Err(error) => Err(error.to_string()),
        };
        tool.process.start(started).await?;
        Ok(tool)
    }

    /// Where it listens, if it does.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The file that it reads, if it does.
    #[must_use]
    pub fn input(&self) -> PathBuf {
        self.folder.path().join("input")
    }

    /// All that it has logged.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn log(&self) -> std::io::Result<String> {
        self.process.log()
    }

    /// Ends it in good order, so that it sends what it has.
    ///
    /// # Errors
    /// The process does not end in time.
    pub async fn stop(&self) -> Result<(), ProcessError> {
        self.process.stop().await
    }

    async fn answering(self, path: &str) -> Result<Self, ToolError> {
        let http = HttpClient::new(self.address);
        let ready = async || match http.get(path).await {
            Ok((StatusCode::OK, _)) => Ok(()),
            Ok((status, _)) => Err(status.to_string()),
            Err(error) => Err(error.to_string()),
        };
        self.process.start(ready).await?;
        Ok(self)
    }
}

/// What a program that was unpacked, and not installed, must be told.
struct Unpacked {
    search_path: OsString,
    modules: PathBuf,
}

/// `ROOT/usr/sbin/syslog-ng` has its libraries below `ROOT`. `None`: it is installed.
fn libraries(program: &Path) -> Option<Unpacked> {
    let root = program.ancestors().nth(3)?;
    let own = root.join("usr/lib/syslog-ng");
    if root == Path::new("/") || !own.is_dir() {
        return None;
    }
    let entries = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).filter(|path| path.is_dir()).collect()
    };
    let multiarch = [root.join("lib"), root.join("usr/lib")];
    let multiarch = multiarch.iter().flat_map(|folder| entries(folder)).filter(|path| path != &own);
    let modules = entries(&own).into_iter().next()?;
    let search_path = std::env::join_paths(multiarch.chain([own.clone()])).ok()?;
    Some(Unpacked { search_path, modules })
}

fn folder() -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("telemetry-tool-").tempdir()
}
