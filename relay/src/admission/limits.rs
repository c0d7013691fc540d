//! What a tenant and its runners may use.

use std::time::Duration;

use super::Rates;

/// What one tenant may use, all its runners and all signals together; and what each of its runners may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantLimits {
    /// Requests at the stores at a time.
    pub max_in_flight: usize,
    /// Requests that wait for one of those places; and again as many that wait for memory.
    pub max_waiting: usize,
    /// How long a request waits for a place.
    pub max_wait: Duration,
    /// Requests and bytes a second.
    pub rates: Rates,
    /// Memory for bodies, in bytes; `None` for all that there is.
    pub memory_bytes: Option<u64>,
    /// What each of its runners may use of that.
    pub runner: RunnerLimits,
}

impl Default for TenantLimits {
    fn default() -> Self {
        Self {
            max_in_flight: 4,
            max_waiting: 256,
            max_wait: Duration::from_secs(10),
            rates: Rates::default(),
            memory_bytes: None,
            runner: RunnerLimits::default(),
        }
    }
}

/// The part of its tenant's waiting places that one runner may take, where its limits do not say: a half.
const WAITING_OF_ONE: usize = 2;

impl TenantLimits {
    /// How many requests of one runner may wait.
    pub(super) fn max_waiting_of_one(&self) -> usize {
        self.runner.max_waiting.unwrap_or(self.max_waiting / WAITING_OF_ONE).max(1)
    }
}

/// What one runner may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunnerLimits {
    /// Requests at the stores at a time; `None` for as many as its tenant.
    pub max_in_flight: Option<usize>,
    /// Requests that wait for one of its tenant's places, and again as many that wait for memory; `None` for a half of
    /// its tenant's. One that floods fills no more of the line, and the others of its tenant are served behind that.
    pub max_waiting: Option<usize>,
    /// Requests and bytes a second.
    pub rates: Rates,
    /// Memory for bodies, in bytes; `None` for what [`BudgetLimits`](super::BudgetLimits) gives every runner.
    pub memory_bytes: Option<u64>,
}
