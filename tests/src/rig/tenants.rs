//! Tenants of a rig.

#![expect(clippy::expect_used, reason = "test support")]

use telemetry_relay::admission::TenantLimits;
use telemetry_relay::tenancy::{AccountSource, Rule, TenantSettings};

/// A tenant: the runners that a pattern matches, and their account. It may use what is the default.
///
/// # Panics
/// When the name, the pattern or the account is none.
#[must_use]
pub fn tenant(name: &str, runners: &str, account: &str) -> TenantSettings {
    let runner = Some(runners.parse().expect("a pattern of the test"));
    TenantSettings {
        name: name.parse().expect("a tenant's name of the test"),
        rules: vec![Rule { runner, ..Rule::default() }],
        account: Some(AccountSource::Given(account.parse().expect("an account of the test"))),
        signals: None,
        limits: TenantLimits::default(),
    }
}
