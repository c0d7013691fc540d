//! The same over TCP: what is refused and what is delivered there, how clients get round a network that blocks UDP and round a
//! coordinator that is away, and who else's clients come that way.

mod bodies;
mod coordinators;
mod fallback;
mod peers;
mod refusals;

use std::process::ExitCode;

use telemetry_rig::suite::Suite;

fn main() -> ExitCode {
    let parts: &[fn(Suite) -> Suite] = &[refusals::add, bodies::add, fallback::add, coordinators::add, peers::add];
    parts.iter().fold(Suite::new(), |suite, add| add(suite)).run()
}
