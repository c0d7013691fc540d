//! The program `telemetry-relay`.

mod cli;

use std::process::ExitCode;

/// A batch is allocated on one thread and freed on another, which glibc's arenas answer with locks: docs/performance.md.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    cli::run()
}
