//! The program `runner-agent`: the client with a face for other programs.

mod ask;
mod cli;
mod config;
mod exit;
mod files;
mod intake;
mod levels;
mod remote_write;
mod run;
mod send;
mod server;
mod spans;
mod stamp;
mod status;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
