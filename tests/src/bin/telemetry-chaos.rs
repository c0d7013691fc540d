//! `telemetry-chaos`: everything fails by a schedule; nothing may be lost, and nothing stored twice.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use telemetry_rig::chaos::{self, FaultKind, Plan, Settings, Show};
use telemetry_rig::demo;
use telemetry_rig::rig::StoreKind;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Runs agents and writers against stores on loopback while it kills and restarts relay, agents and stores, spoils and blocks the
/// network, fills a disk, ends tokens and changes the issuer's keys. Then it drains, reads the stores, and accounts for every item.
///
/// The schedule follows from the seed and is printed. Ctrl-C ends the faults, drains and reports; a second one ends at once. Processes
/// that it started are all that it ends. See docs/chaos.md for what is counted apart, and why.
///
/// Exits with 0 only if nothing was lost and nothing stored twice but for what is counted apart, 1 if something was, and 64 for wrong
/// usage.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  telemetry-chaos --seconds 60 --seed 7\n  telemetry-chaos --seconds 5 --stores built-in --json | jq .total\n  \
                  telemetry-chaos --only udp-block,packets --seconds 30\n  telemetry-chaos --seed 7 --plan\n  \
                  telemetry-chaos --seconds 1200 --json > soak.json      # reports the growth of relay and agents, an hour\n  \
                  telemetry-chaos --seeds 1-10 --seconds 60              # ten runs, and a table for the README"
)]
struct Options {
    /// How long sources write and faults come.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(2..=86_400))]
    seconds: u64,
    /// What the schedule follows from; without this a new one each time.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// One run for each seed of a range, and at the end a table with a line for each.
    #[arg(long, value_parser = range, value_name = "FIRST-LAST")]
    seeds: Option<(u64, u64)>,
    /// Which stores to use; auto: the real ones where they are found.
    #[arg(long, value_enum, default_value = "auto")]
    stores: Stores,
    /// Only these faults.
    #[arg(long, value_delimiter = ',', value_parser = kind, value_name = "FAULT,...")]
    only: Vec<FaultKind>,
    /// How long delivery may take after the faults ended.
    #[arg(long, default_value_t = 120)]
    drain_seconds: u64,
    /// Print the schedule and do nothing.
    #[arg(long)]
    plan: bool,
    /// Print one JSON object and nothing else; with --seeds an array of them.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Stores {
    /// The real ones where they are found, else the built-in one.
    Auto,
    /// VictoriaMetrics and VictoriaLogs.
    Real,
    /// A store in this process that speaks the same two write paths.
    BuiltIn,
}

fn kind(name: &str) -> Result<FaultKind, String> {
    let names = || FaultKind::ALL.map(FaultKind::as_str).join(", ");
    FaultKind::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| format!("expected one of {}", names()))
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text.split_once('-').ok_or("expected FIRST-LAST")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    let (first, last) = (number(first)?, number(last)?);
    if first <= last { Ok((first, last)) } else { Err("the first is after the last".to_owned()) }
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(64) } else { ExitCode::SUCCESS };
        }
    };
    match run(options).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("telemetry-chaos: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<bool, chaos::ChaosError> {
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let (first, last) = options.seeds.unwrap_or((seed, seed));
    let kinds = if options.only.is_empty() { FaultKind::ALL.to_vec() } else { options.only };
    let length = Duration::from_secs(options.seconds);
    if options.plan {
        (first..=last).for_each(|seed| print!("seed {seed}\n{}", Plan::new(seed, length, &kinds)));
        return Ok(true);
    }
    let stores = match options.stores {
        Stores::Auto => demo::available_stores(),
        Stores::Real => StoreKind::Real,
        Stores::BuiltIn => StoreKind::BuiltIn,
    };
    let interrupt = interrupts()?;
    let show = Show::new(options.json);
    let mut reports = Vec::new();
    for seed in first..=last {
        if *interrupt.borrow() {
            break;
        }
        if !options.json {
            eprint!("seed {seed}\n{}", Plan::new(seed, length, &kinds));
        }
        let drain = Duration::from_secs(options.drain_seconds);
        let settings = Settings { length, seed, stores, kinds: kinds.clone(), drain };
        let report = chaos::run(&settings, interrupt.clone(), &show).await;
        let report = report.inspect_err(|_| show.finish())?;
        if options.seeds.is_some() && !options.json {
            eprintln!("{report}\n");
        }
        reports.push(report);
    }
    show.finish();
    let ok = reports.iter().all(|report| report.ok) && !reports.is_empty();
    match (options.json, options.seeds.is_some(), reports.as_slice()) {
        (true, true, all) => println!("{}", as_json(all)),
        (true, false, [report, ..]) => println!("{}", as_json(report)),
        (false, true, all) => println!("{}", chaos::summary(all)),
        (false, false, [report, ..]) => println!("{report}"),
        (_, false, []) => {}
    }
    Ok(ok)
}

fn as_json<T: serde::Serialize + ?Sized>(report: &T) -> String {
    serde_json::to_string(report).unwrap_or_else(|error| format!(r#"{{"ok":false,"error":"{error}"}}"#))
}

/// Turns true at SIGINT or SIGTERM. A second one ends the program at once, and with it all that it started.
fn interrupts() -> std::io::Result<watch::Receiver<bool>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if sender.send_replace(true) {
                std::process::exit(130);
            }
        }
    });
    Ok(receiver)
}
