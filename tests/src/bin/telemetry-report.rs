//! Runs every attack, peer and network of the suites, and a storm of returning runners, and writes down what came of each.
//!
//!     cargo run --bin telemetry-report
//!     cargo run --bin telemetry-report -- --only networks
//!
//! The suites are built as this program is, the storm for release. Peers come from where `tests/run` puts them.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use telemetry_rig::outcome::document::{self, Family};
use telemetry_rig::outcome::{self, End, Outcome};
use telemetry_rig::storm::{HANDSHAKES, StormReport};
use telemetry_rig::suite::DOCUMENT_TEST;

/// Runs every attack, peer and network, and writes the document of outcomes.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Where to write it.
    #[arg(long, default_value_os_t = document::path())]
    out: PathBuf,
    /// Run one of the families alone, and leave the other sections of the document as they are.
    #[arg(long, value_parser = ["attacks", "peers", "networks", "storm"])]
    only: Option<String>,
    /// The runners of the storm.
    #[arg(long, default_value_t = 2_000)]
    runners: usize,
}

/// How long the network is away, in seconds.
const OUTAGE: &str = "30";
/// How many tokens a flood of them has.
const TOKENS: &str = "100000";
/// All must be back by then, and have delivered.
const BACK_WITHIN: Duration = Duration::from_secs(30);

const ATTACKS: &str = "Each is made twice: against the relay's program, whose memory, descriptors and log are looked at, and against a \
    relay in the test's process, whose tasks and reservations are. After each, an honest runner is served within 2 s over QUIC and over \
    TCP, memory and descriptors are back, and nothing panicked.";
const PEERS: &str = "Clients on quic-go, aioquic and curl against our relay, and our client against servers on quic-go and aioquic \
    that speak the contract of the Go coordinator: its flattened 502s, no verdicts, no policy, nothing minted over HTTP.";
const NETWORKS: &str = "A runner's client writes 64 batches of 64 KiB, metrics and logs, to a relay with a store of its own. Figures are \
    those of the build that ran them.";
const STORM: &str = "Clients of runners, all at one address, lose their relay in the middle of a batch, have more to send when it is \
    gone, and get it back 2 s later.";

fn main() -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    let options = Options::parse();
    let folder = tempfile::tempdir()?;
    let is_wanted = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
    let mut families = Vec::new();
    for (name, about) in [("attacks", ATTACKS), ("peers", PEERS), ("networks", NETWORKS)] {
        if is_wanted(name) {
            families.push(Family { name, about, outcomes: run_suite(name, folder.path())? });
        }
    }
    if is_wanted("storm") {
        let report = storm(options.runners);
        let outcomes = report.map_or_else(|error| vec![no_storm(&error.to_string())], |report| storm_outcomes(&report));
        families.push(Family { name: "storm", about: STORM, outcomes });
    }
    let document = match (&options.only, families.as_slice()) {
        (Some(_), [family]) => document::replace(&fs::read_to_string(&options.out)?, family)?,
        _ => {
            let release = if cfg!(debug_assertions) { "" } else { "--release " };
            document::write(&format!("cargo run {release}--bin telemetry-report"), &families)
        }
    };
    fs::write(&options.out, document)?;
    let is_good = families.iter().flat_map(|family| &family.outcomes).all(|outcome| outcome.end != End::Failed);
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether its tests fail is told by what they leave.
fn run_suite(name: &str, folder: &Path) -> Result<Vec<Outcome>, Box<dyn Error + Send + Sync>> {
    let file = folder.join(name);
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--locked", "--package", "telemetry-rig", "--test", name]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    cargo.args(["--", "--skip", DOCUMENT_TEST]);
    cargo.env(outcome::FILE, &file).env("TELEMETRY_NETWORKS_OUTAGE_SECONDS", OUTAGE);
    cargo.env("TELEMETRY_ATTACKS_TOKENS", TOKENS);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).stdout(Stdio::inherit()).status()?;
    let lines = fs::read_to_string(&file).map_err(|error| format!("the suite {name} left nothing: {error}"))?;
    let mut outcomes: Vec<Outcome> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    outcomes.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(outcomes)
}

/// Built for release: thousands of clients and their relay share this machine.
fn storm(runners: usize) -> Result<StormReport, Box<dyn Error + Send + Sync>> {
    let cargo = |arguments: &[&str]| {
        let mut cargo = Command::new("cargo");
        cargo.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit());
        cargo
    };
    let relay = ["build", "--locked", "--release", "--package", "telemetry-relay", "--bin", "telemetry-relay"];
    if !cargo(&relay).status()?.success() {
        return Err("the relay can't be built".into());
    }
    let crowd = ["run", "--locked", "--release", "--bin", "telemetry-crowd", "--", "--storm", "--json", "--runners"];
    let output = cargo(&crowd).arg(runners.to_string()).output()?;
    if !output.status.success() {
        return Err("a runner did not come back; see above".into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn no_storm(error: &str) -> Outcome {
    Outcome {
        name: "storm".to_owned(),
        expected: None,
        seen: vec![error.to_owned()],
        measures: Vec::new(),
        end: End::Failed,
    }
}

fn storm_outcomes(report: &StormReport) -> Vec<Outcome> {
    let runners = report.runners;
    let expected = format!(
        "{runners} runners are connected again and have delivered all that waited within {} s, with {HANDSHAKES} handshakes at a time at most, and all batches are stored once",
        BACK_WITHIN.as_secs()
    );
    let seconds = |time: Duration| format!("{:.1}", time.as_secs_f64());
    let outcomes = report.returns.iter().map(|back| {
        let is_good = back.is_good(BACK_WITHIN) && (report.lost, report.twice) == (0, 0);
        Outcome {
            name: format!("storm: after {}", back.how),
            expected: Some(expected.clone()),
            seen: Vec::new(),
            measures: vec![
                ("all connected in, s".to_owned(), seconds(back.all_back_in)),
                ("half delivered in, s".to_owned(), seconds(back.half_delivered_in)),
                ("all delivered in, s".to_owned(), seconds(back.all_delivered_in)),
                ("batches under way".to_owned(), back.under_way.to_string()),
                ("handshakes at a time".to_owned(), back.handshakes_peak.to_string()),
                ("asked to prove their address".to_owned(), back.retries.to_string()),
                ("ignored at first".to_owned(), back.ignored.to_string()),
                ("batches lost".to_owned(), report.lost.to_string()),
                ("batches twice".to_owned(), report.twice.to_string()),
            ],
            end: if is_good { End::Passed } else { End::Failed },
        }
    });
    outcomes.collect()
}
