//! Where events go.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Writes events to standard error: text for a terminal, one JSON object a line for everything else. `RUST_LOG` chooses which;
/// without it `default_level` does.
///
/// # Panics
/// When it is called twice.
pub fn start_log(default_level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() { log.init() } else { log.json().flatten_event(true).init() }
}
