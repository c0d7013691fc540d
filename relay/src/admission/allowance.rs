//! What a tenant may use, and what it has used.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telemetry_proto::Reason;
use tokio::time::Instant;

use super::line::Line;
use super::rate::Usage;
use super::runners::Runners;
use super::{Caller, Sender, TenantLimits};
use crate::refusal::Refusal;

/// The limits of a tenant, which do not change, and what it has used, which outlives a change of its limits.
#[derive(Debug)]
pub struct Allowance {
    pub(super) limits: TenantLimits,
    pub(super) used: Arc<Used>,
}

/// What a tenant has used.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) places: Arc<Line>,
    /// For bodies.
    pub(super) memory: Arc<Line>,
    /// For work on bodies.
    pub(super) work: Arc<Line>,
    pub(super) usage: Mutex<Usage>,
    runners: Runners,
}

impl Allowance {
    /// An allowance of which nothing is used.
    #[must_use]
    pub fn new(limits: TenantLimits) -> Self {
        let used = Used {
            places: Line::new(),
            memory: Line::new(),
            work: Line::new(),
            usage: Mutex::default(),
            runners: Runners::default(),
        };
        Self { limits, used: Arc::new(used) }
    }

    /// The same with other limits: what is in use stays in use, those who wait keep their place, and what was charged stays
    /// charged.
    #[must_use]
    pub fn with_limits(&self, limits: TenantLimits) -> Self {
        Self { limits, used: Arc::clone(&self.used) }
    }

    /// The limits.
    #[must_use]
    pub const fn limits(&self) -> &TenantLimits {
        &self.limits
    }

    /// A request that asks for its share.
    ///
    /// # Errors
    /// `rate-limited` when more runners of this tenant write than can be kept apart.
    pub fn sender(&self, caller: Caller) -> Result<Sender<'_>, Refusal> {
        match self.used.runners.enter(&caller.author, Instant::now()) {
            Some(runner) => Ok(Sender::new(self, runner, caller)),
            None => Err(Refusal::new(Reason::RateLimited).with_retry_after(Duration::from_secs(60))),
        }
    }

    /// Requests at the stores now.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.used.places.used()
    }

    /// Requests that wait for a place at the stores now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.used.places.waiting()
    }

    /// Bytes of memory that its bodies and the work on them hold now.
    #[must_use]
    pub fn body_bytes(&self) -> u64 {
        self.used.memory.used() + self.used.work.used()
    }

    /// How many of its runners came within the last minute.
    #[must_use]
    pub fn active_runners(&self) -> usize {
        self.used.runners.active(Instant::now())
    }
}
