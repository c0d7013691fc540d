//! The rig: everything that a test of the telemetry path needs.
//!
//! - [`stores`]: VictoriaMetrics, VictoriaLogs and VictoriaTraces as child processes, and a built-in store that speaks the
//!   same three write paths, records what it is asked and misbehaves on demand.
//! - [`peers`]: clients and servers on other people's HTTP/3, as child processes.
//! - [mod@suite]: a test harness in which a test says what it needs, and is reported as ignored where that is not to be had.

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
