//! The command line: what can be asked for, and with which exit code it ends.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use telemetry_daemon::start_log;
use telemetry_runner_client::Signal;

use crate::exit::{self, Failure, Outcome};
use crate::send::Order;
use crate::{ask, config, run, send};

/// Takes telemetry of programs on this machine and delivers it to the coordinator, through outages and restarts.
#[derive(Debug, Parser)]
#[command(version, after_help = "Exit codes: 0 success, 64 wrong usage, 78 wrong configuration, 1 anything else.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Take and deliver until SIGTERM or SIGINT; then deliver what can be, and leave the rest in the spool.
    #[command(after_help = "Example:\n  runner-agent run --config /etc/runner-agent/agent.toml")]
    Run(Options),
    /// Check settings and files, and whether the coordinator accepts this runner.
    Check {
        #[command(flatten)]
        options: Options,
        /// Look at settings and files only.
        #[arg(long)]
        offline: bool,
    },
    /// Deliver a file, or standard input, once. Succeeds only if all of it was delivered.
    #[command(after_help = "Example:\n  runner-agent send logs app.jsonl --config /etc/runner-agent/agent.toml")]
    Send {
        /// What it holds: Prometheus text, JSON lines, or an OTLP export request.
        kind: Kind,
        /// The file, `-` for standard input.
        file: PathBuf,
        #[command(flatten)]
        options: Options,
        /// How long delivery may take, in seconds.
        #[arg(long, default_value_t = 60, value_name = "SECONDS")]
        within: u64,
        /// Print the result as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Ask a running agent how it is.
    Status {
        #[command(flatten)]
        options: Options,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// Prometheus text.
    Metrics,
    /// JSON lines.
    Logs,
    /// One OTLP export request of traces, protobuf.
    Traces,
}

impl From<Kind> for Signal {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Metrics => Self::Metrics,
            Kind::Logs => Self::Logs,
            Kind::Traces => Self::Traces,
        }
    }
}

/// Settings. What is given here goes before what the file says; without a file these suffice.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Options {
    /// The configuration, TOML.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// A coordinator, HOST or HOST:PORT. Repeatable; the first that answers is used.
    #[arg(long = "coordinator", value_name = "ADDRESS")]
    pub(crate) coordinators: Vec<String>,
    /// Whether TCP is used where UDP does not get through.
    #[arg(long, value_name = "WHEN")]
    pub(crate) tcp: Option<config::Tcp>,
    /// The runner's certificate chain, PEM.
    #[arg(long, value_name = "FILE")]
    pub(crate) certificate: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// The cluster's CA, PEM.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// A file with the workload token. Without it the coordinator is asked for tokens.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The folder of the spool.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) spool: Option<PathBuf>,
    /// The most that the spool takes on disk, in bytes.
    #[arg(long, value_name = "BYTES")]
    pub(crate) spool_max_bytes: Option<u64>,
    /// A folder for batches that the relay rejects for good.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dead_letters: Option<PathBuf>,
    /// Where to listen. Loopback, unless the file allows others.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// A Unix socket to listen at too.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

pub(crate) fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { exit::USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    match act(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("runner-agent: {failure}");
            failure.exit_code()
        }
    }
}

fn act(command: Command) -> Outcome {
    let (default_level, options) = match &command {
        Command::Run(options) => ("info", options),
        Command::Check { options, .. } | Command::Send { options, .. } | Command::Status { options, .. } => {
            ("error", options)
        }
    };
    start_log(default_level);
    if let Command::Status { options, json } = &command {
        let listen = config::load_listen(options)?;
        return runtime()?.block_on(ask::status(&listen, *json));
    }
    let settings = config::load(options)?;
    let runtime = runtime()?;
    match command {
        Command::Run(_) => runtime.block_on(run::run(settings)),
        Command::Check { offline, .. } => runtime.block_on(run::check(settings, offline)),
        Command::Send { kind, file, within, json, .. } => {
            let order = Order { signal: kind.into(), file: &file, within: Duration::from_secs(within), json };
            runtime.block_on(send::send(settings, order))
        }
        Command::Status { .. } => Ok(()),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::other)
}
