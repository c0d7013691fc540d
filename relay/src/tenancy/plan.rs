//! What someone wants the tenants to be.

use telemetry_proto::{Signal, WriterName};

use super::{Rule, TenantName, derived_account};
use crate::admission::TenantLimits;
use crate::forward::{Account, needs_account};

/// Which tenants there are to be. [`check`](Self::check) says whether that can be.
#[derive(Debug, Clone, Default)]
pub struct TenantPlan {
    /// The tenants, in the order in which their rules are tried. Without any, everyone is one tenant, "default".
    pub tenants: Vec<TenantSettings>,
    /// The tenant of runners that no rule matches; without it they are refused.
    pub default_tenant: Option<TenantName>,
    /// What the one tenant may use where none is listed.
    pub default_limits: TenantLimits,
    /// The tenants of writers that are no runners: neither rules nor the default are for them. Where no tenant is listed, they
    /// belong to the one that everyone belongs to.
    pub writers: Vec<(WriterName, TenantName)>,
}

/// One tenant.
#[derive(Debug, Clone)]
pub struct TenantSettings {
    /// Its name.
    pub name: TenantName,
    /// Who belongs to it: whoever one of these matches, unless one before it does.
    pub rules: Vec<Rule>,
    /// Its account at stores that tell tenants apart by it.
    pub account: Option<AccountSource>,
    /// What it writes; `None` for whatever there is a store for.
    pub signals: Option<Vec<Signal>>,
    /// What it may use.
    pub limits: TenantLimits,
}

/// Where a tenant's account comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountSource {
    /// It is given.
    Given(Account),
    /// It follows from a namespace and its UID: see [`derived_account`].
    Derived {
        /// The namespace.
        namespace: String,
        /// The namespace's UID: another namespace that gets the name later has another.
        uid: String,
    },
}

impl AccountSource {
    /// The account.
    #[must_use]
    pub fn account(&self) -> Account {
        match self {
            Self::Given(account) => *account,
            Self::Derived { namespace, uid } => derived_account(namespace, uid),
        }
    }
}

/// Which stores there are, and how they tell tenants apart: what a plan is checked against.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stores([Option<Store>; 3]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Store {
    needs_account: bool,
    is_cluster: bool,
}

impl Stores {
    /// With a store for `signal`; for metrics, `cluster` says whether it is a cluster.
    #[must_use]
    pub const fn with(mut self, signal: Signal, cluster: bool) -> Self {
        let is_cluster = cluster && matches!(signal, Signal::Metrics);
        self.0[signal as usize] = Some(Store { needs_account: needs_account(signal, cluster), is_cluster });
        self
    }

    pub(super) const fn has(&self, signal: Signal) -> bool {
        self.0[signal as usize].is_some()
    }

    pub(super) fn need_account(&self, signal: Signal) -> bool {
        self.0[signal as usize].is_some_and(|store| store.needs_account)
    }

    /// Whether one of them can't be written to without an account.
    pub(super) fn have_cluster(&self) -> bool {
        self.0.iter().flatten().any(|store| store.is_cluster)
    }
}
