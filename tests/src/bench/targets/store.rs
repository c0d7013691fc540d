//! What stands behind everything that is measured.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use serde::Serialize;
use tempfile::TempDir;

use crate::bench::BenchError;
use crate::http::HttpClient;
use crate::net::free_address;
use crate::process::Process;
use crate::program::Program;
use crate::stores::RealStore;

/// Which store a case is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::bench) enum StoreOfRun {
    /// A process that reads everything and keeps nothing.
    Null,
    /// VictoriaMetrics.
    Real,
}

impl fmt::Display for StoreOfRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Null => "null",
            Self::Real => "real",
        })
    }
}

/// A store that runs. Killed when dropped.
pub(in crate::bench) enum BenchStore {
    Null(Box<NullStore>),
    Real(Box<RealStore>),
}

/// This program, started again as `--null-store`.
pub(in crate::bench) struct NullStore {
    process: Process,
    address: SocketAddr,
    _folder: TempDir,
}

impl BenchStore {
    pub(in crate::bench) async fn start(store: StoreOfRun) -> Result<Self, BenchError> {
        match store {
            StoreOfRun::Real => Ok(Self::Real(Box::new(RealStore::start(Program::VictoriaMetrics).await?))),
            StoreOfRun::Null => {
                let folder = tempfile::Builder::new().prefix("telemetry-null-").tempdir()?;
                let address = free_address()?;
                let arguments = vec!["--null-store".into(), address.to_string().into()];
                let process = Process::new(std::env::current_exe()?, arguments, folder.path().join("log.txt"));
                let http = HttpClient::new(address);
                let ready = async || http.get("/health").await.map(drop).map_err(|error| error.to_string());
                process.start(ready).await?;
                Ok(Self::Null(Box::new(NullStore { process, address, _folder: folder })))
            }
        }
    }

    pub(in crate::bench) fn address(&self) -> SocketAddr {
        match self {
            Self::Null(store) => store.address,
            Self::Real(store) => store.address(),
        }
    }

    pub(in crate::bench) fn pid(&self) -> io::Result<u32> {
        match self {
            Self::Null(store) => store.process.pid(),
            Self::Real(store) => store.pid(),
        }
    }
}
