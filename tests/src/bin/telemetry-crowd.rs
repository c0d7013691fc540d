//! Connects thousands of runners to a relay of their own and says what that costs: the numbers of docs/operating.md.
//!
//!     cargo build --release --bin telemetry-relay && cargo run --release --bin telemetry-crowd -- --runners 2000

#![expect(clippy::print_stdout, reason = "a program")]

use std::error::Error;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use telemetry_rig::crowd;

/// Connects many runners to a relay of their own, and measures its admin listener.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// How many. Each takes a socket of this process.
    #[arg(long, default_value_t = 2_000)]
    runners: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let options = Options::parse();
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runners connected, {elapsed}")?;
    let bar = ProgressBar::new(options.runners as u64).with_style(style);
    let report = crowd::run(options.runners, |connected| bar.set_position(connected as u64)).await?;
    bar.finish_and_clear();
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{report}");
    }
    Ok(())
}
