//! The program `telemetry-relay`.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
