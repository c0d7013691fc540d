//! vmauth, as its documentation has it: TLS, a user with a bearer token, and the store as the user's prefix.

use std::fs;
use std::sync::Arc;

use http::HeaderValue;
use tokio::net::TcpStream;

use super::{BenchStore, Target, TargetKind};
use crate::bench::BenchError;
use crate::bench::gauge::Gauge;
use crate::bench::identities::Identities;
use crate::net::free_address;
use crate::process::Process;
use crate::program::Program;

/// A secret of no one.
const BEARER: &str = "bench-bearer-token-0123456789abcdef";

pub(super) async fn start(store: &Arc<BenchStore>, identities: &Identities) -> Result<Target, BenchError> {
    let folder = tempfile::Builder::new().prefix("telemetry-vmauth-").tempdir()?;
    let coordinator = identities.cluster().coordinator();
    let config = format!(
        "users:\n- bearer_token: \"{BEARER}\"\n  url_prefix: \"http://{}/?extra_label=miren_runner=bench\"\n",
        store.address()
    );
    for (name, text) in [("auth.yml", &config), ("tls.pem", &coordinator.chain_pem), ("tls.key", &coordinator.key_pem)]
    {
        fs::write(folder.path().join(name), text)?;
    }
    let path = |name: &str| folder.path().join(name).display().to_string();
    let address = free_address()?;
    let arguments = [
        format!("-auth.config={}", path("auth.yml")),
        format!("-httpListenAddr={address}"),
        "-tls".to_owned(),
        format!("-tlsCertFile={}", path("tls.pem")),
        format!("-tlsKeyFile={}", path("tls.key")),
        // Its own bounds are to refuse nothing here.
        "-maxConcurrentRequests=8192".to_owned(),
        "-maxConcurrentPerUserRequests=8192".to_owned(),
        "-maxIdleConnsPerBackend=512".to_owned(),
    ];
    let log = folder.path().join("log.txt");
    let process = Process::new(Program::Vmauth.find()?, arguments.map(Into::into).into(), log);
    let ready = async || TcpStream::connect(address).await.map(drop).map_err(|error| error.to_string());
    process.start(ready).await?;
    Ok(Target {
        kind: TargetKind::Vmauth,
        address,
        gauge: Gauge::new(process.pid()?),
        bearer: HeaderValue::try_from(format!("Bearer {BEARER}")).ok(),
        program: None,
        _held: Box::new((process, folder)),
    })
}
