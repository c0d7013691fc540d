//! Every fuzz target, for a few seconds each: `TELEMETRY_FUZZ_SECONDS` says how long, `TELEMETRY_FUZZ_SEED` does again what
//! was done. `fuzz/` has the same targets for a fuzzer that sees what it reaches.

mod driver;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::{env, fs};

use telemetry_rig::suite::{Suite, TestResult};

fn main() -> ExitCode {
    let suite = Suite::new().test("each_target_has_its_program", &[], each_target_has_its_program);
    driver::targets()
        .fold(suite, |suite, target| suite.test(target.name, &[], move || async move { driver::run(target) }))
        .run()
}

/// A target without its program would be left out where it counts. With `TELEMETRY_FUZZ_EXPORT` set to a folder, the seeds are
/// written there, for a fuzzer to begin with.
async fn each_target_has_its_program() -> TestResult {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz");
    let programs: BTreeSet<String> = fs::read_dir(format!("{manifest}/fuzz_targets"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().trim_end_matches(".rs").to_owned()))
        .collect::<std::io::Result<_>>()?;
    let targets: BTreeSet<String> = driver::targets().map(|target| target.name.to_owned()).collect();
    assert_eq!(programs, targets);
    let declared = fs::read_to_string(format!("{manifest}/Cargo.toml"))?;
    assert!(targets.iter().all(|name| declared.contains(&format!("name = \"{name}\""))));
    if let Ok(folder) = env::var("TELEMETRY_FUZZ_EXPORT") {
        for target in driver::targets() {
            let folder = format!("{folder}/{}", target.name);
            fs::create_dir_all(&folder)?;
            for (number, seed) in (target.seeds)().into_iter().enumerate() {
                fs::write(format!("{folder}/seed-{number}"), seed)?;
            }
        }
    }
    Ok(())
}
