//! Other people's clients against our relay, and our client against other people's servers: what quic-go, aioquic and curl
//! send is delivered, what is refused they see as such, and who they are is known whatever their certificates look like.

mod clients;
mod servers;
mod shapes;

use std::process::ExitCode;

use telemetry_rig::peers::Stack;
use telemetry_rig::program::Program;
use telemetry_rig::suite::Suite;

fn main() -> ExitCode {
    let mut suite = Suite::new();
    for stack in [Stack::Go, Stack::Python, Stack::Curl] {
        suite = clients::add(suite, stack);
        suite = shapes::add(suite, stack);
    }
    for stack in [Stack::Go, Stack::Python] {
        suite = servers::add(suite, stack);
    }
    suite.documented("peers").run()
}

/// What a test with a peer on this stack needs.
const fn needs(stack: Stack) -> &'static [Program] {
    match stack {
        Stack::Go => &[Program::PeerGo],
        Stack::Python | Stack::Curl | Stack::Requests => &[Program::PeerPython],
    }
}

/// The same, and the relay's own program.
const fn needs_relay(stack: Stack) -> &'static [Program] {
    match stack {
        Stack::Go => &[Program::PeerGo, Program::Relay],
        Stack::Python | Stack::Curl | Stack::Requests => &[Program::PeerPython, Program::Relay],
    }
}
