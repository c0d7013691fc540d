//! The relay beside what people would use instead: the numbers of docs/performance.md.
//!
//!     cargo build --release --bin telemetry-relay && cargo run --release --bin telemetry-bench

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use telemetry_rig::bench::{self, Case, Cell, Plan, Report, Scale, Stop, TargetKind};

/// Measures the relay beside a relay on Go, vmauth and the bare store: the same bodies, the same store, in turns, in one run.
///
/// Needs this program's neighbours: `telemetry-relay` of the same build, and what `tests/run` builds (the store, vmauth, the
/// Go relay). What is missing is left out and named. Ctrl-C ends it and reports what there is.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  telemetry-bench --quick\n  telemetry-bench --cases cost,latency --json | jq .cost"
)]
struct Options {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Beside whom.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "direct,go,vmauth")]
    peers: Vec<TargetKind>,
    /// Fewer sizes, connections and rounds: less than three minutes.
    #[arg(long)]
    quick: bool,
    /// A few requests of each kind, to see whether it works.
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    /// What is measured; everything without this.
    #[arg(long, value_enum, value_delimiter = ',')]
    cases: Vec<Case>,
    /// Cells of the table of costs, instead of all: as in null:1024:10:RS256, a body of 1,024 KiB over ten connections.
    #[arg(long, value_name = "STORE:KIB:CONNECTIONS:ALGORITHM", value_delimiter = ',')]
    cells: Vec<Cell>,
    /// Another build of telemetry-relay, which a change is measured beside: the target `before`.
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// Draws charts into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Serves as the store that keeps nothing; this program starts itself so.
    #[arg(long, value_name = "ADDRESS", hide = true)]
    null_store: Option<SocketAddr>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let mut runtime = match options.null_store {
        // The store is to take as little of the machine as it can.
        Some(_) => tokio::runtime::Builder::new_current_thread(),
        None => tokio::runtime::Builder::new_multi_thread(),
    };
    let outcome =
        runtime.enable_all().build().map_err(bench::BenchError::from).and_then(|runtime| match options.null_store {
            Some(address) => runtime.block_on(bench::serve_null_store(address)).map_err(Into::into),
            None => runtime.block_on(measure(&options)),
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("telemetry-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: &Options) -> Result<(), bench::BenchError> {
    let scale = match (options.smoke, options.quick) {
        (true, _) => Scale::Smoke,
        (_, true) => Scale::Quick,
        _ => Scale::Full,
    };
    let cases = if options.cases.is_empty() { Case::ALL.into() } else { options.cases.iter().copied().collect() };
    let peers = options.peers.iter().copied().collect();
    let (cells, before) = (options.cells.clone(), options.before.clone());
    let plan = Plan { cases, peers, cells, before, scale, silent: options.json };
    eprintln!(
        "takes about {} s on an idle machine; Ctrl-C ends it and reports what there is",
        plan.estimate().as_secs()
    );
    let stop = Stop::default();
    let asked = stop.clone();
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            if asked.is_set() {
                std::process::exit(130);
            }
            asked.set();
        }
    });
    let report = bench::run(&plan, &stop).await;
    if let Some(file) = &options.plot {
        bench::plot(&report, file)?;
    }
    print(&report, options.json);
    Ok(())
}

fn print(report: &Report, json: bool) {
    if json {
        println!("{}", serde_json::to_string(report).unwrap_or_else(|error| format!(r#"{{"error":"{error}"}}"#)));
    } else {
        print!("{report}");
    }
}
