//! Other people's clients against our relay, and our client against other people's servers: what quic-go and aioquic send is
//! delivered, what is refused they see as such, and who they are is known whatever their certificates look like.

mod clients;
mod servers;
mod shapes;

use std::process::ExitCode;

use telemetry_rig::peers::Stack;
use telemetry_rig::program::Program;
use telemetry_rig::suite::Suite;

const STACKS: [Stack; 2] = [Stack::Go, Stack::Python];

fn main() -> ExitCode {
    let mut suite = Suite::new();
    for stack in STACKS {
        suite = clients::add(suite, stack);
        suite = shapes::add(suite, stack);
        suite = servers::add(suite, stack);
    }
    suite.run()
}

/// What a test with a peer on this stack needs.
const fn needs(stack: Stack) -> &'static [Program] {
    match stack {
        Stack::Go => &[Program::PeerGo],
        Stack::Python => &[Program::PeerPython],
    }
}

/// The same, and the relay's own program.
const fn needs_relay(stack: Stack) -> &'static [Program] {
    match stack {
        Stack::Go => &[Program::PeerGo, Program::Relay],
        Stack::Python => &[Program::PeerPython, Program::Relay],
    }
}
