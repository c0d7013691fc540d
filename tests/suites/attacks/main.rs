//! Attacks by name, each with the outcome that it must have. Every one is made twice: against the relay's own program, whose
//! memory, descriptors and log are looked at afterwards, and against a relay in this process, whose gauges are. After each
//! an honest runner is served at once.

mod arena;
mod certificates;
mod claims;
mod datagrams;
mod expected;
mod fields;
mod floods;
mod forge;
mod frames;
mod qpack;
mod slowness;
mod streams;
mod tcp;
mod token_floods;
mod tokens;

use std::process::ExitCode;

use telemetry_rig::program::Program;
use telemetry_rig::suite::Suite;

/// What every attack needs.
const NEEDS: &[Program] = &[Program::Relay];

fn main() -> ExitCode {
    arena::count_panics();
    let parts: &[fn(Suite) -> Suite] = &[
        frames::add,
        streams::add,
        qpack::add,
        fields::add,
        tokens::add,
        token_floods::add,
        claims::add,
        certificates::add,
        slowness::add,
        floods::add,
        datagrams::add,
        tcp::add,
    ];
    parts.iter().fold(Suite::new(), |suite, add| add(suite)).documented("attacks").run()
}
