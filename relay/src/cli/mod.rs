//! The command line: what can be asked for, and with which exit code it ends.

mod certs;
mod check;
mod exit;
mod serve;
mod status;
mod token;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use exit::Failure;

/// Takes runners' telemetry over HTTP/3 and forwards it into VictoriaMetrics and VictoriaLogs on loopback.
///
/// A write needs a runner's client certificate and a workload token, and both must name the same runner.
#[derive(Debug, Parser)]
#[command(version, after_help = "Exit codes: 0 success, 64 wrong usage, 78 wrong configuration, 1 anything else.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT, then finish what is running and stop.
    ///
    /// Every key of the file can be overridden by the environment: TELEMETRY_RELAY__SECTION__KEY=VALUE.
    #[command(after_help = "Example:\n  telemetry-relay serve --config /etc/telemetry-relay/relay.toml")]
    Serve {
        /// The configuration, TOML.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Read a configuration with every file that it names, ask every store, and say all that is wrong.
    #[command(after_help = "Example:\n  telemetry-relay check --config /etc/telemetry-relay/relay.toml")]
    Check {
        /// The configuration, TOML.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Print one JSON object: `ok` and `findings`.
        #[arg(long)]
        json: bool,
    },
    /// Ask a relay that runs how it is. Exit code 0 if it is ready: runners' writes can succeed.
    #[command(after_help = "Examples:\n  telemetry-relay status\n  telemetry-relay status --config relay.toml --json")]
    Status(status::Options),
    /// Make, renew, revoke and show certificates of a cluster.
    #[command(subcommand)]
    Certs(certs::Command),
    /// Mint workload tokens, and explain why one is refused.
    #[command(subcommand)]
    Token(token::Command),
}

pub(crate) fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { exit::USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let outcome = match cli.command {
        Command::Serve { config } => serve::run(&config),
        Command::Check { config, json } => check::run(&config, json),
        Command::Status(options) => status::run(options),
        Command::Certs(command) => certs::run(command),
        Command::Token(command) => token::run(command),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("telemetry-relay: {failure}");
            failure.exit_code()
        }
    }
}

type Outcome = Result<(), Failure>;
