//! The rig: everything that a test of the telemetry path needs.
//!
//! - [`stores`]: VictoriaMetrics, VictoriaLogs and VictoriaTraces as child processes, and a built-in store that speaks the
//!   same three write paths, records what it is asked and misbehaves on demand.
//! - [`mod@chaos`]: agents, writers and stores while everything fails by a schedule, and the account of every item.
//! - [`peers`]: clients and servers on other people's HTTP/3, as child processes.
//! - [`browser`]: Chromium without a window, for the page of the relay.
//! - [`crowd`]: many runners at once.
//! - [mod@suite]: a test harness in which a test says what it needs, and is reported as ignored where that is not to be had.

pub mod browser;
pub mod chaos;
pub mod crowd;
pub mod demo;
pub mod http;
pub mod net;
pub mod peers;
pub mod process;
pub mod program;
pub mod raw;
pub mod rig;
pub mod stores;
pub mod suite;
pub mod wait;

/// The examples of the README are compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

#[cfg(test)]
mod documents {
    use std::fs;
    use std::path::{Path, PathBuf};

    fn sources(folder: &Path, into: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, into);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                into.push_str(&fs::read_to_string(&path).unwrap());
            }
        }
    }

    /// Every test or file that the table of lessons names exists.
    #[test]
    fn the_tests_of_the_lessons_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut code = String::new();
        for folder in ["proto", "certs", "h3", "relay", "runner-client", "tests"] {
            sources(&root.join(folder), &mut code);
        }
        let table = fs::read_to_string(root.join("docs/lessons.md")).unwrap();
        let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| #"));
        for name in rows.flat_map(|row| row.split('`').skip(1).step_by(2)) {
            let exists = if name.contains('/') {
                root.join(name).is_file()
            } else {
                code.contains(&format!("fn {name}")) || code.contains(&format!("    {name};"))
            };
            assert!(exists, "{name}");
        }
    }
}
