//! Tenants: whose data a runner's batches are.
//!
//! A [`TenantPlan`] says which tenants there are; checked, it is a [`TenantSet`]; published in [`Tenancy`], it decides for
//! each request. Rules look at what was verified, the certificate and the token: nothing in a request can choose. Only what is
//! listed is shared: a runner that no rule matches is refused, unless there is a default.

mod collect;
mod derive;
mod directory;
mod fault;
mod meter;
mod name;
mod plan;
mod rule;
mod set;
mod tenant;

pub use derive::derived_account;
pub use directory::{Published, RemovedTenant, Tenancy};
pub use fault::{TenancyFault, TenancyFaults};
pub use name::{TenantName, TenantNameError};
pub use plan::{AccountSource, Stores, TenantPlan, TenantSettings};
pub use rule::{PatternError, Rule, RunnerPattern};
pub use set::TenantSet;
pub use tenant::Tenant;
