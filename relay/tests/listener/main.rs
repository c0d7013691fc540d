//! The listener over real QUIC, with real certificates.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bounds;
mod drain;
mod harness;
mod identity;
mod mount;
mod reload;
mod requests;
mod tcp;
