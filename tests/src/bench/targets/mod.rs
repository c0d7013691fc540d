//! Where the bodies go: four processes with the same store behind them.

mod go;
mod relay;
mod store;
mod vmauth;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use http::HeaderValue;
use serde::Serialize;

use super::BenchError;
use super::gauge::Gauge;
use super::identities::Identities;
use crate::rig::RelayProgram;

pub(super) use relay::RelaySetup;
pub(super) use store::{BenchStore, StoreOfRun};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TargetKind {
    /// The store itself, over HTTP/1.1 without TLS: what the others add to.
    Direct,
    /// Our relay, the program.
    Relay,
    /// Another build of our relay, which a change is measured beside.
    #[value(skip)]
    Before,
    /// A relay of the same contract on quic-go, net/http and golang-jwt.
    Go,
    /// vmauth with TLS and a bearer token, over HTTP/1.1: neither client certificates nor a token per runner.
    Vmauth,
}

impl TargetKind {
    /// Its name, as on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Relay => "relay",
            Self::Before => "before",
            Self::Go => "go",
            Self::Vmauth => "vmauth",
        }
    }
}

impl TargetKind {
    /// Whether it speaks HTTP/3 as in our contract.
    pub(super) const fn is_relay(self) -> bool {
        matches!(self, Self::Relay | Self::Before | Self::Go)
    }
}

impl fmt::Display for TargetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A process that takes bodies. Killed when dropped.
pub(super) struct Target {
    pub(super) kind: TargetKind,
    pub(super) address: SocketAddr,
    pub(super) gauge: Gauge,
    /// What vmauth wants to see.
    pub(super) bearer: Option<HeaderValue>,
    /// The relay's program, to be told to reload.
    pub(super) program: Option<RelayProgram>,
    /// Processes and files that end with it.
    _held: Box<dyn Send + Sync>,
}

impl Target {
    /// Starts it in front of `store` and waits until it takes connections.
    pub(super) async fn start(
        kind: TargetKind,
        store: &Arc<BenchStore>,
        identities: &Identities,
        before: Option<&Path>,
    ) -> Result<Self, BenchError> {
        match kind {
            TargetKind::Direct => Ok(Self {
                kind,
                address: store.address(),
                gauge: Gauge::new(store.pid()?),
                bearer: None,
                program: None,
                _held: Box::new(Arc::clone(store)),
            }),
            TargetKind::Relay => relay::start(store, identities, &RelaySetup::default()).await,
            TargetKind::Before => {
                let setup = RelaySetup { before: before.map(Path::to_owned), ..RelaySetup::default() };
                relay::start(store, identities, &setup).await
            }
            TargetKind::Go => go::start(store, identities).await,
            TargetKind::Vmauth => vmauth::start(store, identities).await,
        }
    }

    /// Starts the relay with more settings.
    pub(super) async fn relay(
        store: &Arc<BenchStore>,
        identities: &Identities,
        setup: &RelaySetup,
    ) -> Result<Self, BenchError> {
        relay::start(store, identities, setup).await
    }

    /// That a client of it has failed.
    pub(super) fn failed(&self, problem: impl fmt::Display) -> BenchError {
        BenchError::Client { target: self.kind, problem: problem.to_string() }
    }
}
