//! What the programs share.

use telemetry_proto::fuzzing::Target;

/// Runs the target of this name.
///
/// # Panics
/// When a promise is broken, or there is no such target.
pub fn run(targets: &[Target], name: &str, data: &[u8]) {
    let target = targets.iter().find(|target| target.name == name).expect("a target of this name");
    (target.run)(data);
}
