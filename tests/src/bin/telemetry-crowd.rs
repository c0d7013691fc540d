//! Connects thousands of runners to a relay of their own and says what that costs: the numbers of docs/operating.md.
//!
//!     cargo build --release --bin telemetry-relay && cargo run --release --bin telemetry-crowd -- --runners 2000
//!
//! With `--storm` they are clients of real runners, the relay goes away under them, and what is measured is how they come back.

#![expect(clippy::print_stdout, reason = "a program")]

use std::error::Error;
use std::fmt::Display;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use telemetry_rig::{crowd, storm};

/// Connects many runners to a relay of their own, and measures its admin listener.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// How many. Each takes a socket of this process.
    #[arg(long, default_value_t = 2_000)]
    runners: usize,
    /// Let the relay go away under them, by SIGTERM and by SIGKILL, and measure how they come back.
    #[arg(long)]
    storm: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let options = Options::parse();
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runners {msg}, {elapsed}")?;
    let bar = ProgressBar::new(options.runners as u64).with_style(style).with_message("connected");
    if options.storm {
        let progress = |what, count: usize| {
            bar.set_message(what);
            bar.set_position(count as u64);
        };
        let report = storm::run(options.runners, progress).await?;
        bar.finish_and_clear();
        print(&report, options.json)
    } else {
        let report = crowd::run(options.runners, |connected| bar.set_position(connected as u64)).await?;
        bar.finish_and_clear();
        print(&report, options.json)
    }
}

fn print(report: &(impl Serialize + Display), json: bool) -> Result<(), Box<dyn Error + Send + Sync>> {
    if json {
        println!("{}", serde_json::to_string(report)?);
    } else {
        print!("{report}");
    }
    Ok(())
}
