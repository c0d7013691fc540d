//! The systemd units, read by systemd.

use telemetry_rig::program::Program;
use telemetry_rig::suite::TestResult;
use tokio::process::Command;

use super::{file, read};

const UNITS: [(&str, Program); 2] = [("telemetry-relay", Program::Relay), ("runner-agent", Program::RunnerAgent)];

/// What systemd calls "OK" begins here, in tenths.
const EXPOSURE: &str = "20";

pub(crate) async fn the_units_are_valid() -> TestResult {
    let folder = tempfile::tempdir()?;
    for (name, program) in UNITS {
        // The programs are not installed here; everything else is as it stands.
        let unit = read(&format!("deploy/systemd/{name}.service"))?;
        let built = program.find()?.display().to_string();
        let unit = unit.replace(&format!("/usr/bin/{name}"), &built);
        assert!(unit.contains(&format!("ExecStart={built} ")));
        let path = folder.path().join(format!("{name}.service"));
        std::fs::write(&path, unit)?;
        let output = Command::new(Program::SystemdAnalyze.find()?).arg("verify").arg(&path).output().await?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !said.contains(name), "{said}");
    }
    Ok(())
}

pub(crate) async fn the_units_are_hardened() -> TestResult {
    for (name, _) in UNITS {
        let output = Command::new(Program::SystemdAnalyze.find()?)
            .args(["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE])
            .arg(file(&format!("deploy/systemd/{name}.service")))
            .output()
            .await?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        println!("{}", said.lines().last().unwrap_or_default().trim());
    }
    Ok(())
}
