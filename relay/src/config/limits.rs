//! `[limits]`, and what a tenant has instead.

use std::num::NonZeroU64;
use std::time::Duration;

use serde::Deserialize;
use telemetry_proto::limits;

use super::{ConfigFault, ConfigFaults};
use crate::admission::{BudgetLimits, Rate, Rates, RunnerLimits, TenantLimits};
use crate::intake::BodyLimits;

/// A burst that is not given is what the rate gives in so many seconds.
const BURST_SECONDS: u64 = 10;

/// `[limits]`: what senders may use. A limit of zero is refused; what has no default is unlimited where it is left out.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct LimitsSection {
    /// The largest body after decompression, in bytes. Default 128 MiB.
    pub max_decoded_bytes: u64,
    /// Memory for the bodies of all requests and, three tenths of it, for work on them, in bytes. Default 256 MiB.
    pub body_memory_bytes: u64,
    /// The share of it that one runner may hold, in bytes. Default 128 MiB.
    pub body_memory_per_runner_bytes: u64,
    /// The share of it that one tenant may hold, in bytes. Default: half of it beside `[[tenants]]`, else all.
    pub tenant_body_memory_bytes: Option<u64>,
    /// Requests at the stores at a time, per tenant, all signals together. Default 4.
    pub tenant_in_flight: usize,
    /// Requests that wait for one of those places, per tenant. Default 256.
    pub tenant_waiting: usize,
    /// How long a request waits for a place or for memory. Default 10.
    pub wait_seconds: u64,
    /// Requests a second, per tenant.
    pub tenant_requests_per_second: Option<u64>,
    /// Requests at once after a rest, per tenant. Default: those of 10 seconds.
    pub tenant_requests_burst: Option<u64>,
    /// Bytes of bodies a second, as received, per tenant.
    pub tenant_bytes_per_second: Option<u64>,
    /// Bytes at once after a rest, per tenant. Default: those of 10 seconds. A larger body waits for a whole burst.
    pub tenant_bytes_burst: Option<u64>,
    /// Requests at the stores at a time, per runner. Default: as many as its tenant.
    pub runner_in_flight: Option<usize>,
    /// Requests of one runner that wait for one of its tenant's places. Default: half of its tenant's.
    pub runner_waiting: Option<usize>,
    /// Requests a second, per runner.
    pub runner_requests_per_second: Option<u64>,
    /// Requests at once after a rest, per runner. Default: those of 10 seconds.
    pub runner_requests_burst: Option<u64>,
    /// Bytes of bodies a second, as received, per runner.
    pub runner_bytes_per_second: Option<u64>,
    /// Bytes at once after a rest, per runner. Default: those of 10 seconds.
    pub runner_bytes_burst: Option<u64>,
    /// Takes writes without `Content-Length`. Default false.
    pub allow_unknown_length: bool,
}

impl Default for LimitsSection {
    fn default() -> Self {
        let budget = BudgetLimits::default();
        let tenant = TenantLimits::default();
        Self {
            max_decoded_bytes: limits::MAX_DECODED_BYTES,
            body_memory_bytes: budget.total_bytes,
            body_memory_per_runner_bytes: budget.per_runner_bytes,
            tenant_body_memory_bytes: None,
            tenant_in_flight: tenant.max_in_flight,
            tenant_waiting: tenant.max_waiting,
            wait_seconds: tenant.max_wait.as_secs(),
            tenant_requests_per_second: None,
            tenant_requests_burst: None,
            tenant_bytes_per_second: None,
            tenant_bytes_burst: None,
            runner_in_flight: None,
            runner_waiting: None,
            runner_requests_per_second: None,
            runner_requests_burst: None,
            runner_bytes_per_second: None,
            runner_bytes_burst: None,
            allow_unknown_length: false,
        }
    }
}

/// `[tenants.limits]`, below a `[[tenants]]`: what this tenant may use, where it is not what `[limits]` says for every tenant.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct TenantLimitsSection {
    /// Instead of `tenant_in_flight`.
    pub in_flight: Option<usize>,
    /// Instead of `tenant_waiting`.
    pub waiting: Option<usize>,
    /// Instead of `wait_seconds`, for a place at the stores.
    pub wait_seconds: Option<u64>,
    /// Instead of `tenant_body_memory_bytes`.
    pub body_memory_bytes: Option<u64>,
    /// Instead of `tenant_requests_per_second`.
    pub requests_per_second: Option<u64>,
    /// Instead of `tenant_requests_burst`.
    pub requests_burst: Option<u64>,
    /// Instead of `tenant_bytes_per_second`.
    pub bytes_per_second: Option<u64>,
    /// Instead of `tenant_bytes_burst`.
    pub bytes_burst: Option<u64>,
    /// Instead of `runner_in_flight`.
    pub runner_in_flight: Option<usize>,
    /// Instead of `runner_waiting`.
    pub runner_waiting: Option<usize>,
    /// Instead of `body_memory_per_runner_bytes`.
    pub runner_body_memory_bytes: Option<u64>,
    /// Instead of `runner_requests_per_second`.
    pub runner_requests_per_second: Option<u64>,
    /// Instead of `runner_requests_burst`.
    pub runner_requests_burst: Option<u64>,
    /// Instead of `runner_bytes_per_second`.
    pub runner_bytes_per_second: Option<u64>,
    /// Instead of `runner_bytes_burst`.
    pub runner_bytes_burst: Option<u64>,
}

impl LimitsSection {
    pub(super) fn check(&self, faults: &mut ConfigFaults) {
        const ONE_BODY: &str = "one body of 32 MiB must fit";
        const NOTHING: &str = "nothing would get through";
        let largest = limits::MAX_BODY_BYTES;
        let required = [
            ("max_decoded_bytes", self.max_decoded_bytes, largest, "a body of 32 MiB must be allowed to be itself"),
            ("body_memory_bytes", self.body_memory_bytes, largest, ONE_BODY),
            ("body_memory_per_runner_bytes", self.body_memory_per_runner_bytes, largest, ONE_BODY),
            ("tenant_in_flight", self.tenant_in_flight as u64, 1, NOTHING),
            ("tenant_waiting", self.tenant_waiting as u64, 1, "all but a few would be refused at once, and try again"),
            ("wait_seconds", self.wait_seconds, 1, "all but a few would be refused at once, and try again"),
        ];
        let optional = [
            ("tenant_body_memory_bytes", self.tenant_body_memory_bytes),
            ("runner_in_flight", self.runner_in_flight.map(|n| n as u64)),
            ("runner_waiting", self.runner_waiting.map(|n| n as u64)),
        ];
        let optional = optional.into_iter().filter_map(|(key, value)| Some((key, value?, 1, NOTHING)));
        for (key, value, least, why) in required.into_iter().chain(optional) {
            let problem = format!("is {value}, but {why}");
            faults.require(value >= least, &format!("limits.{key}"), &problem, &format!("set it to {least} or more"));
        }
    }

    /// What a tenant may use that has no limits of its own. What [`check`](Self::check) complains of is put right, so that it
    /// is not complained of again for every tenant.
    pub(super) fn of_every_tenant(&self, faults: &mut ConfigFaults) -> TenantLimits {
        let mut rate = |name, per_second, burst| rate("limits", name, per_second, burst, None, faults);
        TenantLimits {
            max_in_flight: self.tenant_in_flight.max(1),
            max_waiting: self.tenant_waiting.max(1),
            max_wait: Duration::from_secs(self.wait_seconds.max(1)),
            memory_bytes: self.tenant_body_memory_bytes.map(|bytes| bytes.max(1)),
            rates: Rates {
                requests: rate("tenant_requests", self.tenant_requests_per_second, self.tenant_requests_burst),
                bytes: rate("tenant_bytes", self.tenant_bytes_per_second, self.tenant_bytes_burst),
            },
            runner: RunnerLimits {
                max_in_flight: self.runner_in_flight.map(|n| n.max(1)),
                max_waiting: self.runner_waiting.map(|n| n.max(1)),
                memory_bytes: None,
                rates: Rates {
                    requests: rate("runner_requests", self.runner_requests_per_second, self.runner_requests_burst),
                    bytes: rate("runner_bytes", self.runner_bytes_per_second, self.runner_bytes_burst),
                },
            },
        }
    }

    pub(super) fn budget(&self) -> BudgetLimits {
        BudgetLimits {
            total_bytes: self.body_memory_bytes,
            per_runner_bytes: self.body_memory_per_runner_bytes,
            max_wait: Duration::from_secs(self.wait_seconds),
            ..BudgetLimits::default()
        }
    }

    pub(super) fn body(&self) -> BodyLimits {
        BodyLimits { max_decoded_bytes: self.max_decoded_bytes, ..BodyLimits::default() }
    }
}

impl TenantLimitsSection {
    /// These limits, and `every` where they say nothing. `at` is the section's place in the file.
    pub(super) fn over(&self, every: &TenantLimits, at: &str, faults: &mut ConfigFaults) -> TenantLimits {
        let mut rate = |name, per_second, burst, every| rate(at, name, per_second, burst, every, faults);
        TenantLimits {
            max_in_flight: self.in_flight.unwrap_or(every.max_in_flight),
            max_waiting: self.waiting.unwrap_or(every.max_waiting),
            max_wait: self.wait_seconds.map_or(every.max_wait, Duration::from_secs),
            memory_bytes: self.body_memory_bytes.or(every.memory_bytes),
            rates: Rates {
                requests: rate("requests", self.requests_per_second, self.requests_burst, every.rates.requests),
                bytes: rate("bytes", self.bytes_per_second, self.bytes_burst, every.rates.bytes),
            },
            runner: RunnerLimits {
                max_in_flight: self.runner_in_flight.or(every.runner.max_in_flight),
                max_waiting: self.runner_waiting.or(every.runner.max_waiting),
                memory_bytes: self.runner_body_memory_bytes.or(every.runner.memory_bytes),
                rates: Rates {
                    requests: rate(
                        "runner_requests",
                        self.runner_requests_per_second,
                        self.runner_requests_burst,
                        every.runner.rates.requests,
                    ),
                    bytes: rate(
                        "runner_bytes",
                        self.runner_bytes_per_second,
                        self.runner_bytes_burst,
                        every.runner.rates.bytes,
                    ),
                },
            },
        }
    }
}

/// A rate of the two keys `NAME_per_second` and `NAME_burst`; where the first is not given, that of every tenant.
fn rate(
    at: &str,
    name: &str,
    per_second: Option<u64>,
    burst: Option<u64>,
    every: Option<Rate>,
    faults: &mut ConfigFaults,
) -> Option<Rate> {
    let mut nonzero = |key: &str, value: u64| {
        let value = NonZeroU64::new(value);
        if value.is_none() {
            faults.push(ConfigFault::new(
                format!("{at}.{name}_{key}"),
                "is zero: nothing would get through",
                "set at least 1, or leave the key out",
            ));
        }
        value
    };
    let given = match per_second {
        Some(per_second) => Some(nonzero("per_second", per_second)?),
        None => every.map(|rate| rate.per_second),
    };
    let burst = match burst {
        Some(burst) => Some(nonzero("burst", burst)?),
        None if per_second.is_none() => every.map(|rate| rate.burst),
        None => None,
    };
    match (given, burst) {
        (Some(per_second), Some(burst)) => Some(Rate { per_second, burst }),
        (Some(per_second), None) => Some(Rate { per_second, burst: per_second.saturating_mul(BURST_FACTOR) }),
        (None, Some(_)) => {
            faults.push(ConfigFault::new(
                format!("{at}.{name}_burst"),
                "means nothing without a rate",
                format!("set {name}_per_second too, or remove it"),
            ));
            None
        }
        (None, None) => None,
    }
}

const BURST_FACTOR: NonZeroU64 = match NonZeroU64::new(BURST_SECONDS) {
    Some(factor) => factor,
    None => NonZeroU64::MIN,
};
