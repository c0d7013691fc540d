//! Why the tenants can't be as they are wanted.

use std::fmt;

use telemetry_proto::{Signal, WriterName};

use super::TenantName;
use crate::forward::Account;

/// One fault of a [`TenantPlan`](super::TenantPlan).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TenancyFault {
    /// Two tenants have one name.
    #[error("two tenants have this name")]
    DuplicateName {
        /// The name.
        tenant: TenantName,
    },
    /// Nothing leads to the tenant.
    #[error("nobody can belong to this tenant: it has no rule, is not the default, and no writer's")]
    NoRule {
        /// The tenant.
        tenant: TenantName,
    },
    /// A rule that asks for nothing, or for an organisation without a name.
    #[error("rule {number} asks for nothing, or for an empty name")]
    EmptyRule {
        /// The tenant.
        tenant: TenantName,
        /// Which of its rules, from 1.
        number: usize,
    },
    /// A rule that can never match, for one before it matches whatever it would.
    #[error("rule {number} ({rule}) can never match: rule {by_number} of tenant {by} comes first and covers it")]
    ShadowedRule {
        /// The tenant.
        tenant: TenantName,
        /// Which of its rules, from 1.
        number: usize,
        /// What it says.
        rule: String,
        /// The tenant whose rule comes first.
        by: TenantName,
        /// Which of that tenant's rules, from 1.
        by_number: usize,
    },
    /// The default is no tenant.
    #[error("there is no tenant {tenant}")]
    UnknownDefault {
        /// The name.
        tenant: TenantName,
    },
    /// The default can never apply.
    #[error("the default can never apply: rule {by_number} of tenant {by} covers everyone")]
    ShadowedDefault {
        /// The default.
        tenant: TenantName,
        /// The tenant whose rule covers everyone.
        by: TenantName,
        /// Which of that tenant's rules, from 1.
        by_number: usize,
    },
    /// A writer's tenant is none.
    #[error("writer {writer} belongs to tenant {tenant}, which there is not")]
    UnknownWriterTenant {
        /// The writer.
        writer: WriterName,
        /// The name.
        tenant: TenantName,
    },
    /// The tenant writes what there is no store for.
    #[error("it writes {signal}, but there is no store for {signal}")]
    MissingStore {
        /// The tenant.
        tenant: TenantName,
        /// The signal.
        signal: Signal,
    },
    /// The tenant writes nothing.
    #[error("it writes nothing: its signals are an empty list")]
    NoSignals {
        /// The tenant.
        tenant: TenantName,
    },
    /// A store needs an account that the tenant does not have.
    #[error("it needs an account: the store for {signal} tells tenants apart by it")]
    MissingAccount {
        /// The tenant.
        tenant: TenantName,
        /// The signal.
        signal: Signal,
    },
    /// Two tenants would write into one account.
    #[error("tenants {first} and {second} have the same account {account}")]
    AccountCollision {
        /// The one that comes first.
        first: TenantName,
        /// The other.
        second: TenantName,
        /// The account.
        account: Account,
    },
    /// A cluster is to be written to, but there is no tenant, and so no account.
    #[error("a cluster needs accounts, and without tenants there are none")]
    ClusterWithoutTenants,
    /// A limit of zero lets nothing through.
    #[error("{limit} is zero: nothing would get through")]
    ZeroLimit {
        /// The tenant.
        tenant: TenantName,
        /// The limit, by its key.
        limit: &'static str,
    },
}

impl TenancyFault {
    /// The tenant that the fault is about, if it is about one.
    #[must_use]
    pub const fn tenant(&self) -> Option<&TenantName> {
        match self {
            Self::DuplicateName { tenant }
            | Self::NoRule { tenant }
            | Self::EmptyRule { tenant, .. }
            | Self::ShadowedRule { tenant, .. }
            | Self::MissingStore { tenant, .. }
            | Self::NoSignals { tenant }
            | Self::MissingAccount { tenant, .. }
            | Self::AccountCollision { second: tenant, .. }
            | Self::ZeroLimit { tenant, .. } => Some(tenant),
            Self::UnknownDefault { .. }
            | Self::ShadowedDefault { .. }
            | Self::UnknownWriterTenant { .. }
            | Self::ClusterWithoutTenants => None,
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::DuplicateName { .. } => "rename one of them",
            Self::NoRule { .. } => {
                "add a rule, name it as default_tenant or as the tenant of a writer, or remove the tenant"
            }
            Self::EmptyRule { .. } => "name a runner, a certificate_organization or a token_organization",
            Self::ShadowedRule { .. } => "put it before the other, or remove it",
            Self::UnknownDefault { .. } | Self::UnknownWriterTenant { .. } => "add that tenant, or name another",
            Self::ShadowedDefault { .. } => "remove default_tenant, or that rule",
            Self::MissingStore { .. } => "add the store, or remove the signal from this tenant's list",
            Self::NoSignals { .. } => "list what it writes, or leave the key out",
            Self::MissingAccount { .. } => "give it an account, or account_from",
            Self::AccountCollision { .. } => "give one of them another account",
            Self::ClusterWithoutTenants => "add tenants, or remove cluster = true",
            Self::ZeroLimit { .. } => "set at least 1, or leave the key out",
        }
    }
}

/// Every fault of a [`TenantPlan`](super::TenantPlan).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenancyFaults(pub Vec<TenancyFault>);

impl fmt::Display for TenancyFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0.len();
        write!(f, "the tenants have {n} fault{}:", if n == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|fault| match fault.tenant() {
            Some(tenant) => write!(f, "\n  - {tenant}: {fault}"),
            None => write!(f, "\n  - {fault}"),
        })
    }
}

impl std::error::Error for TenancyFaults {}
