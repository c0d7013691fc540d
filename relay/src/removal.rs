//! A runner that is removed loses its connections.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::gate::RunnerRegistry;
use crate::listener::{Connected, ListenerHandle};

/// Connections are looked at this often even if the registry says nothing: one that was let in while its runner was being
/// removed, or a registry that can't tell. Requests on such a connection are refused all the while.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Ends the connections of runners that are not registered: now, and at once whenever the registry says that some were
/// removed. Never completes; an embedder runs it beside whatever ends the listener.
///
/// A token of a removed runner is of no use from the same moment on: every request asks the registry.
pub async fn end_removed(registry: &dyn RunnerRegistry, listener: &ListenerHandle) {
    let mut removals = registry.removals();
    loop {
        let is_removed =
            |connected: &Connected| connected.peer.runner().is_some_and(|runner| !registry.is_registered(runner));
        let ended = listener.close_peers(is_removed, "this runner was removed");
        if ended > 0 {
            tracing::info!(connections = ended, "connections of removed runners ended");
        }
        let _ = timeout(LOOK_EVERY, changed(&mut removals)).await;
    }
}

/// Never, once there is nobody left who could tell.
async fn changed(removals: &mut Option<watch::Receiver<()>>) {
    if let Some(receiver) = removals
        && receiver.changed().await.is_ok()
    {
        return;
    }
    *removals = None;
    std::future::pending().await
}
