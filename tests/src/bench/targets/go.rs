//! The relay on Go: `tests/peers/go/relay.go`.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::timeout;

use super::{BenchStore, Target, TargetKind};
use crate::bench::BenchError;
use crate::bench::gauge::Gauge;
use crate::bench::identities::Identities;
use crate::net::free_address;
use crate::peers::process::{Flag, start as start_peer};
use crate::peers::{PeerError, Side, Stack};
use crate::rig::ISSUER;

const READY_WITHIN: Duration = Duration::from_secs(20);

#[derive(Deserialize)]
struct Ready {
    #[serde(rename = "listening")]
    _listening: String,
}

pub(super) async fn start(store: &Arc<BenchStore>, identities: &Identities) -> Result<Target, BenchError> {
    let address = free_address()?;
    let cluster = identities.cluster();
    let flags = vec![
        ("-jwks", Flag::File(identities.jwks().to_owned())),
        ("-issuer", Flag::Text(ISSUER.to_owned())),
        ("-store", Flag::Text(format!("http://{}", store.address()))),
    ];
    let (root, coordinator) = (cluster.root_pem(), cluster.coordinator());
    let mut process = start_peer(Stack::Go, Side::Relay, &address.to_string(), root, coordinator, flags)?;
    timeout(READY_WITHIN, process.output.next::<Ready>()).await.map_err(|_| PeerError::Timeout)??;
    let pid = process.child.id().ok_or(PeerError::Ended)?;
    Ok(Target {
        kind: TargetKind::Go,
        address,
        gauge: Gauge::new(pid),
        bearer: None,
        program: None,
        _held: Box::new(process),
    })
}
