//! `telemetry-relay check`.

use std::path::Path;
use std::time::SystemTime;

use telemetry_relay::config::{self, ConfigFaults, ProcessEnv, Reading};
use telemetry_relay::running::{Finding, Severity, examine};

use super::Outcome;
use super::exit::Failure;

pub(super) fn run(path: &Path, json: bool) -> Outcome {
    let Reading { settings, outside, .. } = config::read(path, &ProcessEnv);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::other)?;
    let found = runtime.block_on(examine(&outside, SystemTime::now()));
    let sound = settings.as_ref().map(drop).map_err(Clone::clone);
    if json {
        let of_config = sound.as_ref().err().map(of_config).unwrap_or_default();
        print_json(&[of_config, found.clone()].concat());
    } else if sound.is_ok() || !found.is_empty() {
        print_text(&found);
    }
    // What is wrong with the configuration itself is said by whoever gets this.
    sound?;
    let faults = found.iter().filter(|finding| finding.severity == Severity::Fault).count();
    if faults == 0 { Ok(()) } else { Err(Failure::Other(format!("{faults} thing(s) in the way"))) }
}

fn of_config(faults: &ConfigFaults) -> Vec<Finding> {
    let finding = |fault: &config::ConfigFault| Finding {
        severity: Severity::Fault,
        at: fault.at.clone(),
        problem: fault.problem.clone(),
        remedy: fault.remedy.clone(),
    };
    faults.as_slice().iter().map(finding).collect()
}

fn print_json(findings: &[Finding]) {
    let ok = findings.iter().all(|finding| finding.severity != Severity::Fault);
    println!("{}", serde_json::json!({ "ok": ok, "findings": findings }));
}

fn print_text(findings: &[Finding]) {
    if findings.is_empty() {
        println!("all is well: the configuration is sound and every store answers");
    }
    for finding in findings {
        let severity = match finding.severity {
            Severity::Fault => "fault",
            Severity::Warning => "warning",
        };
        println!("{severity}: {}: {}\n    {}", finding.at, finding.problem, finding.remedy);
    }
}
