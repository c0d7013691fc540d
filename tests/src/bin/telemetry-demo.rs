//! `telemetry-demo`: the whole system in a temporary folder, in half a minute.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use telemetry_rig::demo::{self, JourneyPart, ProgramLog, Show};
use telemetry_rig::rig::StoreKind;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts a cluster on loopback, ships real telemetry through it, attacks it, and reads the stores back.
///
/// Uses VictoriaMetrics and VictoriaLogs where it finds them (TELEMETRY_VICTORIA_METRICS, TELEMETRY_VICTORIA_LOGS, the
/// target folder, PATH) and a built-in store where it does not. Exits with 0 only if every line is stored once, under the
/// runner that wrote it, and every attack was refused.
#[derive(Debug, Parser)]
#[command(version, after_help = "Examples:\n  telemetry-demo\n  telemetry-demo --seconds 3 --json | jq .ok")]
struct Options {
    /// How long the runners write.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Which stores to use; without this, the real ones where they are found.
    #[arg(long, value_enum)]
    stores: Option<Stores>,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    part: Option<Hidden>,
}

/// What the demonstration starts itself for.
#[derive(Debug, Subcommand)]
enum Hidden {
    /// Plays one process's part in a journey.
    #[command(hide = true)]
    JourneyPart(JourneyPart),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Stores {
    /// VictoriaMetrics and VictoriaLogs.
    Real,
    /// A store in this process that speaks the same two write paths.
    BuiltIn,
}

impl From<Stores> for StoreKind {
    fn from(stores: Stores) -> Self {
        match stores {
            Stores::Real => Self::Real,
            Stores::BuiltIn => Self::BuiltIn,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(Hidden::JourneyPart(part)) = &options.part {
        return match part.play().await {
            Ok(trace) => {
                println!("{trace}");
                ExitCode::SUCCESS
            }
            Err(error) => failure(&error),
        };
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return failure(&error),
    };
    let log = ProgramLog::default();
    let filter = EnvFilter::new("info,telemetry_relay=debug,telemetry_runner_client=debug");
    tracing_subscriber::registry().with(filter).with(log.clone()).init();
    let show = Show::new(options.json);
    let stores = options.stores.map_or_else(demo::available_stores, StoreKind::from);
    let outcome = demo::run(stores, Duration::from_secs(options.seconds), &program, &log, &show).await;
    show.finish();
    match outcome.map(|report| (report.ok, if options.json { as_json(&report) } else { report.to_string() })) {
        Ok((ok, text)) => {
            println!("{text}");
            if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => failure(&error),
    }
}

fn failure(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("telemetry-demo: {error}");
    ExitCode::FAILURE
}

fn as_json(report: &demo::Report) -> String {
    serde_json::to_string(report).unwrap_or_else(|error| format!(r#"{{"ok":false,"error":"{error}"}}"#))
}
