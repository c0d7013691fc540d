//! Tenants that can be.

use std::collections::{HashMap, HashSet};

use telemetry_proto::Signal;

use super::{Rule, Stores, TenancyFault, TenancyFaults, TenantName, TenantPlan, TenantSettings};
use crate::admission::TenantLimits;
use crate::forward::Account;

/// A plan that was checked, ready to be [published](super::Tenancy::publish).
#[derive(Debug, Clone)]
pub struct TenantSet {
    pub(super) plan: TenantPlan,
}

impl TenantSet {
    /// Everyone is one tenant, "default", with these limits.
    #[must_use]
    pub fn single(limits: TenantLimits) -> Self {
        Self { plan: TenantPlan { default_limits: limits, ..TenantPlan::default() } }
    }

    /// The plan.
    #[must_use]
    pub const fn plan(&self) -> &TenantPlan {
        &self.plan
    }
}

impl TenantPlan {
    /// Checks the plan against the stores that it is to be used with.
    ///
    /// # Errors
    /// Every fault, in the order of the tenants.
    pub fn check(self, stores: &Stores) -> Result<TenantSet, TenancyFaults> {
        let mut faults = Vec::new();
        if self.tenants.is_empty() {
            check_limits(&TenantName::default_tenant(), &self.default_limits, &mut faults);
            if stores.have_cluster() {
                faults.push(TenancyFault::ClusterWithoutTenants);
            }
        }
        let mut checker = Checker::default();
        for tenant in &self.tenants {
            checker.check_name(tenant, &mut faults);
            let is_writers = self.writers.iter().any(|(_, name)| *name == tenant.name);
            let is_default = self.default_tenant.as_ref() == Some(&tenant.name);
            checker.check_rules(tenant, is_default || is_writers, &mut faults);
            checker.check_account(tenant, &mut faults);
            check_stores(tenant, stores, &mut faults);
            check_limits(&tenant.name, &tenant.limits, &mut faults);
        }
        if let Some(default) = &self.default_tenant {
            checker.check_default(default, &mut faults);
        }
        for (writer, tenant) in &self.writers {
            if !checker.names.contains(tenant) {
                let (writer, tenant) = (writer.clone(), tenant.clone());
                faults.push(TenancyFault::UnknownWriterTenant { writer, tenant });
            }
        }
        if faults.is_empty() { Ok(TenantSet { plan: self }) } else { Err(TenancyFaults(faults)) }
    }
}

/// What was seen of the tenants before the one that is looked at.
#[derive(Default)]
struct Checker<'a> {
    names: HashSet<&'a TenantName>,
    rules: Vec<SeenRule<'a>>,
    accounts: HashMap<Account, &'a TenantName>,
}

struct SeenRule<'a> {
    tenant: &'a TenantName,
    number: usize,
    rule: &'a Rule,
}

impl<'a> Checker<'a> {
    fn check_name(&mut self, tenant: &'a TenantSettings, faults: &mut Vec<TenancyFault>) {
        if !self.names.insert(&tenant.name) {
            faults.push(TenancyFault::DuplicateName { tenant: tenant.name.clone() });
        }
    }

    fn check_rules(&mut self, tenant: &'a TenantSettings, is_named_elsewhere: bool, faults: &mut Vec<TenancyFault>) {
        if tenant.rules.is_empty() && !is_named_elsewhere {
            faults.push(TenancyFault::NoRule { tenant: tenant.name.clone() });
        }
        for (index, rule) in tenant.rules.iter().enumerate() {
            let number = index + 1;
            if rule.is_empty() {
                faults.push(TenancyFault::EmptyRule { tenant: tenant.name.clone(), number });
                continue;
            }
            if let Some(first) = self.rules.iter().find(|seen| seen.rule.covers(rule)) {
                faults.push(TenancyFault::ShadowedRule {
                    tenant: tenant.name.clone(),
                    number,
                    rule: rule.to_string(),
                    by: first.tenant.clone(),
                    by_number: first.number,
                });
            }
            self.rules.push(SeenRule { tenant: &tenant.name, number, rule });
        }
    }

    fn check_account(&mut self, tenant: &'a TenantSettings, faults: &mut Vec<TenancyFault>) {
        let Some(account) = tenant.account.as_ref().map(super::AccountSource::account) else { return };
        if let Some(first) = self.accounts.insert(account, &tenant.name) {
            let (first, second) = (first.clone(), tenant.name.clone());
            faults.push(TenancyFault::AccountCollision { first, second, account });
        }
    }

    fn check_default(&self, default: &TenantName, faults: &mut Vec<TenancyFault>) {
        if !self.names.contains(default) {
            faults.push(TenancyFault::UnknownDefault { tenant: default.clone() });
        }
        if let Some(first) = self.rules.iter().find(|seen| seen.rule.covers_everyone()) {
            let (tenant, by) = (default.clone(), first.tenant.clone());
            faults.push(TenancyFault::ShadowedDefault { tenant, by, by_number: first.number });
        }
    }
}

fn check_stores(tenant: &TenantSettings, stores: &Stores, faults: &mut Vec<TenancyFault>) {
    if tenant.signals.as_ref().is_some_and(Vec::is_empty) {
        faults.push(TenancyFault::NoSignals { tenant: tenant.name.clone() });
    }
    for &signal in tenant.signals.iter().flatten() {
        if !stores.has(signal) {
            faults.push(TenancyFault::MissingStore { tenant: tenant.name.clone(), signal });
        }
    }
    let writes = |signal: &Signal| tenant.signals.as_ref().is_none_or(|signals| signals.contains(signal));
    let needing = Signal::ALL.into_iter().find(|signal| writes(signal) && stores.need_account(*signal));
    if let (Some(signal), None) = (needing, &tenant.account) {
        faults.push(TenancyFault::MissingAccount { tenant: tenant.name.clone(), signal });
    }
}

/// Rates can't be zero: their type sees to that.
fn check_limits(tenant: &TenantName, limits: &TenantLimits, faults: &mut Vec<TenancyFault>) {
    let zeros = [
        ("in_flight", limits.max_in_flight == 0),
        ("waiting", limits.max_waiting == 0),
        ("wait_seconds", limits.max_wait.is_zero()),
        ("body_memory_bytes", limits.memory_bytes == Some(0)),
        ("runner_in_flight", limits.runner.max_in_flight == Some(0)),
        ("runner_waiting", limits.runner.max_waiting == Some(0)),
        ("runner_body_memory_bytes", limits.runner.memory_bytes == Some(0)),
    ];
    for (limit, is_zero) in zeros {
        if is_zero {
            faults.push(TenancyFault::ZeroLimit { tenant: tenant.clone(), limit });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::AccountSource;
    use super::super::rule::tests::rule;
    use super::*;

    fn stores(signals: &[Signal], cluster: bool) -> Stores {
        signals.iter().fold(Stores::default(), |stores, signal| stores.with(*signal, cluster))
    }

    fn tenant(name: &str, account: Option<&str>, rules: &[Rule]) -> TenantSettings {
        TenantSettings {
            name: name.parse().unwrap(),
            rules: rules.to_vec(),
            account: account.map(|text| AccountSource::Given(text.parse().unwrap())),
            signals: None,
            limits: TenantLimits::default(),
        }
    }

    fn faults(tenants: Vec<TenantSettings>, default: Option<&str>, stores: &Stores) -> Vec<String> {
        let default_tenant = default.map(|name| name.parse().unwrap());
        let plan = TenantPlan { tenants, default_tenant, ..TenantPlan::default() };
        match plan.check(stores) {
            Ok(_) => Vec::new(),
            Err(faults) => {
                faults.0.iter().map(|f| format!("{}: {f}", f.tenant().map_or("-", TenantName::as_str))).collect()
            }
        }
    }

    #[test]
    fn a_plan_that_can_be_is_accepted() {
        let tenants = vec![
            tenant("a", Some("1"), &[rule("edge-7", "", ""), rule("", "Acme", "")]),
            tenant("b", Some("2"), &[rule("edge-*", "", "")]),
            tenant("rest", Some("0"), &[]),
        ];
        assert_eq!(faults(tenants, Some("rest"), &stores(&[Signal::Metrics, Signal::Logs], true)), [""; 0]);
        assert_eq!(faults(vec![], None, &stores(&Signal::ALL, false)), [""; 0]);
    }

    #[test]
    fn every_fault_is_named_and_all_at_once() {
        let mut limited = tenant("a", Some("7"), &[rule("x", "", "")]);
        limited.limits.max_in_flight = 0;
        limited.limits.runner.memory_bytes = Some(0);
        limited.limits.max_wait = Duration::ZERO;
        let mut writer = tenant("c", None, &[Rule::default(), rule("edge-7", "Acme", "")]);
        writer.signals = Some(vec![Signal::Traces]);
        let tenants =
            vec![limited, tenant("a", Some("7"), &[rule("edge-*", "", "")]), writer, tenant("d", Some("8"), &[])];
        assert_eq!(
            faults(tenants, Some("e"), &stores(&[Signal::Metrics, Signal::Logs], true)),
            [
                "a: in_flight is zero: nothing would get through",
                "a: wait_seconds is zero: nothing would get through",
                "a: runner_body_memory_bytes is zero: nothing would get through",
                "a: two tenants have this name",
                "a: tenants a and a have the same account 7:0",
                "c: rule 1 asks for nothing, or for an empty name",
                "c: rule 2 (runner = \"edge-7\", certificate_organization = \"Acme\") can never match: rule 1 of tenant a comes first and covers it",
                "c: it writes traces, but there is no store for traces",
                "d: nobody can belong to this tenant: it has no rule, is not the default, and no writer's",
                "-: there is no tenant e",
            ]
        );
    }

    #[test]
    fn a_writer_makes_its_tenant_one_that_somebody_belongs_to_and_must_name_one_that_there_is() {
        let writers = |tenant: &str| vec![("gw".parse().unwrap(), tenant.parse().unwrap())];
        let plan = |named: &str| TenantPlan {
            tenants: vec![tenant("a", Some("1"), &[rule("*", "", "")]), tenant("gateways", Some("2"), &[])],
            writers: writers(named),
            ..TenantPlan::default()
        };
        let stores = stores(&[Signal::Traces], false);
        assert!(plan("gateways").check(&stores).is_ok());
        let faults: Vec<_> = plan("other").check(&stores).unwrap_err().0.iter().map(ToString::to_string).collect();
        assert_eq!(
            faults,
            [
                "nobody can belong to this tenant: it has no rule, is not the default, and no writer's",
                "writer gw belongs to tenant other, which there is not",
            ]
        );
    }

    #[test]
    fn an_account_is_needed_where_a_store_tells_tenants_apart_by_it() {
        let nameless = || vec![tenant("a", None, &[rule("*", "", "")])];
        let missing =
            |signal| vec![format!("a: it needs an account: the store for {signal} tells tenants apart by it")];
        assert_eq!(faults(nameless(), None, &stores(&[Signal::Metrics], false)), [""; 0]);
        assert_eq!(faults(nameless(), None, &stores(&[Signal::Metrics], true)), missing("metrics"));
        assert_eq!(faults(nameless(), None, &stores(&[Signal::Logs], false)), missing("logs"));
        assert_eq!(faults(nameless(), None, &stores(&[Signal::Traces], false)), missing("traces"));
        let alone = faults(vec![], None, &stores(&[Signal::Metrics], true));
        assert_eq!(alone, ["-: a cluster needs accounts, and without tenants there are none"]);
    }

    #[test]
    fn tenants_whose_accounts_collide_are_refused_with_both_names() {
        let derived = AccountSource::Derived { namespace: "acme".into(), uid: "1".into() };
        let mut a = tenant("a", None, &[rule("a", "", "")]);
        a.account = Some(derived.clone());
        let mut b = tenant("b", None, &[rule("b", "", "")]);
        b.account = Some(derived.clone());
        let c = tenant("c", Some(&derived.account().to_string()), &[rule("c", "", "")]);
        let account = derived.account();
        assert_eq!(
            faults(vec![a, b, c], None, &stores(&[Signal::Logs], false)),
            [
                format!("b: tenants a and b have the same account {account}"),
                format!("c: tenants b and c have the same account {account}"),
            ]
        );
    }

    #[test]
    fn a_default_behind_a_rule_for_everyone_can_never_apply() {
        let tenants = vec![tenant("a", Some("1"), &[rule("*", "", "")]), tenant("b", Some("2"), &[])];
        assert_eq!(
            faults(tenants, Some("b"), &stores(&[Signal::Logs], false)),
            ["-: the default can never apply: rule 1 of tenant a covers everyone"]
        );
    }
}
