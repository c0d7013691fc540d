//! A tenant at work.

use std::sync::Arc;

use telemetry_proto::Signal;
use telemetry_proto::claims::Grants;

use super::meter::Meter;
use super::{AccountSource, TenantName, TenantSettings};
use crate::admission::{Allowance, TenantLimits};
use crate::forward::TenantPin;

/// A tenant: whose data a runner's batches are, and what it may use.
#[derive(Debug)]
pub struct Tenant {
    name: TenantName,
    /// `None` for the one tenant that there is where none is configured.
    pin: Option<TenantPin>,
    signals: Grants,
    allowance: Allowance,
    meter: Arc<Meter>,
}

impl Tenant {
    /// The one tenant that there is where none is configured.
    pub(super) fn single(limits: TenantLimits, before: Option<&Self>) -> Self {
        Self::new(TenantName::default_tenant(), None, Grants::of(&Signal::ALL), limits, before)
    }

    pub(super) fn configured(settings: &TenantSettings, before: Option<&Self>) -> Self {
        let pin = TenantPin::new(settings.name.as_str(), settings.account.as_ref().map(AccountSource::account));
        let signals = Grants::of(settings.signals.as_deref().unwrap_or(&Signal::ALL));
        Self::new(settings.name.clone(), Some(pin), signals, settings.limits, before)
    }

    /// A tenant goes on where the one of its name before it was.
    fn new(
        name: TenantName,
        pin: Option<TenantPin>,
        signals: Grants,
        limits: TenantLimits,
        before: Option<&Self>,
    ) -> Self {
        let (allowance, meter) = match before {
            Some(before) => (before.allowance.with_limits(limits), Arc::clone(&before.meter)),
            None => (Allowance::new(limits), Arc::default()),
        };
        Self { name, pin, signals, allowance, meter }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &TenantName {
        &self.name
    }

    /// What names it to the stores; `None` where no tenants are configured.
    #[must_use]
    pub const fn pin(&self) -> Option<&TenantPin> {
        self.pin.as_ref()
    }

    /// Whether it writes `signal`.
    #[must_use]
    pub const fn writes(&self, signal: Signal) -> bool {
        self.signals.allows(signal)
    }

    /// What it may use, and what it uses.
    #[must_use]
    pub const fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }
}
