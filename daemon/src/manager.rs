//! What the service manager is told (sd_notify(3)).

use sd_notify::NotifyState;

use crate::Watchdog;
use crate::watchdog;

/// The service manager that started this program, if one did and wants to know (`NOTIFY_SOCKET`). Without one, nothing is
/// sent; one that can't be reached costs a line of the log and nothing else.
#[derive(Debug, Default)]
pub struct ServiceManager {
    status: String,
}

impl ServiceManager {
    /// The manager that the environment names.
    #[must_use]
    pub fn of_environment() -> Self {
        Self::default()
    }

    /// Everything is up, or up again after [`reloading`](Self::reloading). `status` is one line for people.
    pub fn ready(&mut self, status: &str) {
        status.clone_into(&mut self.status);
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// The configuration is being read again. Must be followed by [`ready`](Self::ready), whatever came of it.
    pub fn reloading(&self) {
        // Since version 253 the manager waits for a reload that began after its request, by this clock.
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(_) => tell(&[NotifyState::Reloading]),
        }
    }

    /// How it is, in one line for people. The same line twice is sent once.
    pub fn status(&mut self, status: &str) {
        if self.status != status {
            status.clone_into(&mut self.status);
            tell(&[NotifyState::Status(status)]);
        }
    }

    /// It stops, and has what it takes to.
    pub fn stopping(&mut self, status: &str) {
        status.clone_into(&mut self.status);
        tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
    }

    /// Lets the manager know that the event loop turns, as often as it wants to hear that (`WATCHDOG_USEC`), for as long as
    /// `serves` says that the program does its work. Nothing happens where there is no watchdog. Must be called within a
    /// Tokio runtime, which is the one that is watched.
    #[must_use = "dropped, the watchdog is told nothing any more"]
    pub fn watch(&self, serves: impl Fn() -> bool + Send + 'static) -> Watchdog {
        let Some(within) = sd_notify::watchdog_enabled() else { return Watchdog::none() };
        Watchdog::start(watchdog::run(within, serves, || tell(&[NotifyState::Watchdog])))
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager can't be told");
    }
}
