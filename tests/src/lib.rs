//! The rig: everything that a test of the telemetry path needs.
//!
//! - [`stores`]: VictoriaMetrics, VictoriaLogs and VictoriaTraces as child processes, and a built-in store that speaks the
//!   same three write paths, records what it is asked and misbehaves on demand.
//! - [`mod@bench`]: the relay beside what people would use instead.
//! - [`mod@chaos`]: agents, writers and stores while everything fails by a schedule, and the account of every item.
//! - [`peers`]: clients and servers on other people's HTTP/3, as child processes.
//! - [`browser`]: Chromium without a window, for the page of the relay.
//! - [`crowd`] and [`storm`]: many runners at once, and what they do to a relay that comes back.
//! - [`mod@network`]: a bad network of our own, and [`networks`]: what a runner gets through one.
//! - [`agent`] and [`tools`]: the runner's agent, and other people's programs that write to it.
//! - [`outcome`]: what tests expected and saw, for `docs/outcomes.md`.
//! - [mod@suite]: a test harness in which a test says what it needs, and is reported as ignored where that is not to be had.

pub mod agent;
pub mod bench;
pub mod browser;
pub mod chaos;
pub mod crowd;
pub mod demo;
pub mod detour;
pub mod http;
pub mod net;
pub mod network;
pub mod networks;
pub mod outcome;
pub mod peers;
pub mod process;
pub mod program;
pub mod raw;
pub mod rig;
pub mod stores;
pub mod storm;
pub mod suite;
pub mod tcp;
pub mod tools;
pub mod wait;

/// The examples of the README are compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

#[cfg(test)]
mod documents;
