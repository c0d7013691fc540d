//! The alert rules, read by the programs that use them.

use std::ffi::OsStr;

use telemetry_rig::program::Program;
use telemetry_rig::suite::TestResult;
use tokio::process::Command;

use super::file;

const RULES: &str = "deploy/alerts/telemetry.yml";

pub(crate) async fn the_rules_are_accepted_by_vmalert() -> TestResult {
    let rules = format!("-rule={}", file(RULES).display());
    accepted(Program::Vmalert, &["-dryRun".as_ref(), rules.as_ref()]).await
}

pub(crate) async fn the_rules_are_accepted_by_promtool() -> TestResult {
    accepted(Program::Promtool, &["check".as_ref(), "rules".as_ref(), file(RULES).as_os_str()]).await
}

async fn accepted(program: Program, arguments: &[&OsStr]) -> TestResult {
    let output = Command::new(program.find()?).args(arguments).output().await?;
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    Ok(())
}
