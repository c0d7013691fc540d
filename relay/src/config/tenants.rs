//! `[[tenants]]`: who shares the stores.

use std::fmt::Display;
use std::str::FromStr;

use serde::Deserialize;
use telemetry_proto::Signal;

use super::limits::TenantLimitsSection;
use super::writers::tenants_of_writers;
use super::{ConfigFault, ConfigFaults, ConfigFile};
use crate::admission::TenantLimits;
use crate::tenancy::{AccountSource, Rule, Stores, TenancyFault, TenantPlan, TenantSet, TenantSettings};

/// `[[tenants]]`: one tenant. Without any, everyone is one tenant, "default", and nothing names it to the stores.
///
/// The tenants' rules are tried in the order of the file, and the first that matches decides. What they look at was verified;
/// nothing in a request can choose.
#[derive(Debug, Clone, Deserialize)]
pub struct TenantSection {
    /// Its name: in metrics and logs, and as the label `miren_tenant` in VictoriaMetrics as a single node. Required.
    pub name: String,
    /// Who belongs to it. Required, but for the tenant that `default_tenant` names.
    #[serde(default, rename = "match")]
    pub rules: Vec<RuleSection>,
    /// Its account, `"ACCOUNT"` or `"ACCOUNT:PROJECT"`. This or `account_from` is required where a store tells tenants apart by
    /// it: VictoriaLogs, VictoriaTraces, and VictoriaMetrics as a cluster.
    pub account: Option<String>,
    /// Derives the account from a namespace and its UID: the same everywhere and for ever.
    pub account_from: Option<AccountFromSection>,
    /// What it writes: a list of `metrics`, `logs`, `traces`. Default: whatever there is a store for.
    pub signals: Option<Vec<Signal>>,
    /// `[tenants.limits]`
    #[serde(default)]
    pub limits: TenantLimitsSection,
}

/// One of `match`: conditions that must all hold. At least one is required.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct RuleSection {
    /// A runner's ID, or the beginning of one and a `*`.
    pub runner: Option<String>,
    /// The organisation (O) of the certificate's subject.
    pub certificate_organization: Option<String>,
    /// The token's `organization_id`.
    pub token_organization: Option<String>,
}

/// `account_from`.
#[derive(Debug, Clone, Deserialize)]
pub struct AccountFromSection {
    /// The namespace. Required.
    pub namespace: String,
    /// Its UID. Required.
    pub uid: String,
}

/// The tenants of the file, if they can be.
pub(super) fn tenants(file: &ConfigFile, faults: &mut ConfigFaults) -> Option<TenantSet> {
    let mut every = file.limits.of_every_tenant(faults);
    if !file.tenants.is_empty() {
        every.memory_bytes = every.memory_bytes.or(Some(file.limits.body_memory_bytes / 2));
    }
    let tenants: Vec<_> = file.tenants.iter().map(|section| tenant(section, &every, faults)).collect();
    let default = file.default_tenant.as_ref().map(|name| parse("default_tenant".into(), name, faults));
    // Only what can be read can be checked.
    let plan = TenantPlan {
        tenants: tenants.iter().flatten().cloned().collect(),
        default_tenant: default.clone().flatten(),
        default_limits: every,
        writers: tenants_of_writers(file),
    };
    let all_read = tenants.iter().all(Option::is_some) && default.is_none_or(|name| name.is_some());
    match plan.check(&stores(file)) {
        Ok(set) => all_read.then_some(set),
        Err(found) => {
            // A tenant that can't be read may be the one that is missed.
            let is_sure = |fault: &TenancyFault| {
                all_read
                    || !matches!(
                        fault,
                        TenancyFault::UnknownDefault { .. }
                            | TenancyFault::UnknownWriterTenant { .. }
                            | TenancyFault::ClusterWithoutTenants
                    )
            };
            found.0.iter().filter(|fault| is_sure(fault)).for_each(|fault| faults.push(fault_of(fault)));
            None
        }
    }
}

fn stores(file: &ConfigFile) -> Stores {
    let sections = [&file.stores.metrics, &file.stores.logs, &file.stores.traces];
    let configured =
        Signal::ALL.into_iter().zip(sections).filter_map(|(signal, store)| Some((signal, store.as_ref()?)));
    configured.fold(Stores::default(), |stores, (signal, store)| stores.with(signal, store.cluster))
}

fn tenant(section: &TenantSection, every: &TenantLimits, faults: &mut ConfigFaults) -> Option<TenantSettings> {
    let at = format!("tenants.{}", section.name);
    let name = parse(format!("{at}.name"), &section.name, faults);
    let rules: Vec<_> = section.rules.iter().map(|rule_section| rule(rule_section, &at, faults)).collect();
    let account = account(section, &at, faults);
    let limits = section.limits.over(every, &format!("{at}.limits"), faults);
    Some(TenantSettings {
        name: name?,
        rules: rules.into_iter().collect::<Option<_>>()?,
        account: account?,
        signals: section.signals.clone(),
        limits,
    })
}

fn rule(section: &RuleSection, at: &str, faults: &mut ConfigFaults) -> Option<Rule> {
    let runner = section.runner.as_ref().map(|text| parse(format!("{at}.match.runner ({text:?})"), text, faults));
    Some(Rule {
        runner: match runner {
            Some(pattern) => Some(pattern?),
            None => None,
        },
        certificate_organization: section.certificate_organization.clone(),
        token_organization: section.token_organization.clone(),
    })
}

/// The account, if there is to be one. The outer `None` says that it can't be had.
fn account(section: &TenantSection, at: &str, faults: &mut ConfigFaults) -> Option<Option<AccountSource>> {
    match (&section.account, &section.account_from) {
        (Some(_), Some(_)) => {
            faults.push(ConfigFault::new(
                format!("{at}.account"),
                "is given, and derived by account_from as well",
                "remove one of them",
            ));
            None
        }
        (Some(text), None) => parse(format!("{at}.account"), text, faults).map(|a| Some(AccountSource::Given(a))),
        (None, Some(from)) => {
            for (key, value) in [("namespace", &from.namespace), ("uid", &from.uid)] {
                let at = format!("{at}.account_from.{key}");
                faults.require(!value.is_empty(), &at, "is empty", "name the namespace and its UID");
            }
            let (namespace, uid) = (from.namespace.clone(), from.uid.clone());
            Some(Some(AccountSource::Derived { namespace, uid }))
        }
        (None, None) => Some(None),
    }
}

fn parse<T: FromStr<Err: Display>>(at: String, text: &str, faults: &mut ConfigFaults) -> Option<T> {
    faults.take(&at, "", text.parse())
}

fn fault_of(fault: &TenancyFault) -> ConfigFault {
    let at = match (fault, fault.tenant()) {
        (TenancyFault::ZeroLimit { tenant, limit }, _) => format!("tenants.{tenant}.limits.{limit}"),
        (TenancyFault::ClusterWithoutTenants, _) => "stores.metrics.cluster".to_owned(),
        (TenancyFault::UnknownWriterTenant { writer, .. }, _) => format!("writers.{writer}.tenant"),
        (_, Some(tenant)) => format!("tenants.{tenant}"),
        (_, None) => "default_tenant".to_owned(),
    };
    ConfigFault::new(at, fault, fault.remedy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EnvSource;

    const NO_ENV: &[(&str, &str); 0] = &[];
    const HEAD: &str = r#"
        default_tenant = "rest"
        [tls]
        certificate = "c.pem"
        key = "k.pem"
        client_ca = "ca.pem"
        [tokens]
        issuer = "https://c.example"
        [stores.metrics]
        url = "http://127.0.0.1:8480"
        cluster = true
        [stores.logs]
        url = "http://127.0.0.1:9428"
    "#;

    fn read(text: &str) -> (Option<TenantSet>, Vec<String>) {
        let env: &dyn EnvSource = NO_ENV;
        let file = ConfigFile::parse(text, env).unwrap();
        let mut faults = ConfigFaults::default();
        let set = tenants(&file, &mut faults);
        (set, faults.as_slice().iter().map(|fault| format!("{}: {}", fault.at, fault.problem)).collect())
    }

    #[test]
    fn tenants_are_read_with_their_rules_accounts_and_limits() {
        let text = format!(
            r#"{HEAD}
            [limits]
            tenant_in_flight = 6
            tenant_requests_per_second = 50
            runner_bytes_per_second = 1000
            runner_bytes_burst = 5000
            [[tenants]]
            name = "acme"
            match = [{{ runner = "edge-*", token_organization = "acme" }}, {{ certificate_organization = "Acme" }}]
            account = "12:3"
            signals = ["logs"]
            [tenants.limits]
            in_flight = 8
            requests_burst = 70
            runner_bytes_per_second = 2000
            [[tenants]]
            name = "rest"
            account_from = {{ namespace = "rest", uid = "1" }}
            "#
        );
        let (set, faults) = read(&text);
        assert_eq!(faults, [""; 0]);
        let set = set.unwrap();
        let plan = set.plan();
        let [acme, rest] = &plan.tenants[..] else { panic!("two tenants") };
        assert_eq!(acme.rules.len(), 2);
        assert_eq!(acme.rules[0].to_string(), "runner = \"edge-*\", token_organization = \"acme\"");
        assert_eq!(acme.account.as_ref().unwrap().account().to_string(), "12:3");
        assert_eq!(rest.account.as_ref().unwrap().account(), crate::tenancy::derived_account("rest", "1"));
        let requests = |limits: &TenantLimits| limits.rates.requests.map(|r| (r.per_second.get(), r.burst.get()));
        let bytes = |limits: &TenantLimits| limits.runner.rates.bytes.map(|r| (r.per_second.get(), r.burst.get()));
        assert_eq!((acme.limits.max_in_flight, rest.limits.max_in_flight), (8, 6));
        assert_eq!((requests(&acme.limits), requests(&rest.limits)), (Some((50, 70)), Some((50, 500))));
        assert_eq!((bytes(&acme.limits), bytes(&rest.limits)), (Some((2_000, 20_000)), Some((1_000, 5_000))));
        assert_eq!(acme.limits.memory_bytes, Some(128 * 1024 * 1024), "half of the memory");
        assert_eq!(plan.default_tenant.as_ref().unwrap().as_str(), "rest");
    }

    #[test]
    fn every_fault_is_named_with_its_place() {
        let text = format!(
            r#"{HEAD}
            [limits]
            tenant_requests_per_second = 0
            runner_requests_burst = 5
            [[tenants]]
            name = "a b"
            account = "0x1f"
            match = [{{ runner = "*x" }}]
            [[tenants]]
            name = "b"
            account = "1"
            account_from = {{ namespace = "", uid = "1" }}
            limits = {{ in_flight = 0, bytes_per_second = 0 }}
            [[tenants]]
            name = "c"
            account = "4294967296"
            [[tenants]]
            name = "d"
            match = [{{ runner = "d-*" }}, {{ runner = "d-1" }}]
            limits = {{ in_flight = 0 }}
            "#
        );
        let (set, faults) = read(&text);
        assert!(set.is_none());
        let number =
            "expected ACCOUNT or ACCOUNT:PROJECT, each a decimal number from 0 to 4294967295 without leading zeros";
        assert_eq!(
            faults,
            [
                "limits.tenant_requests_per_second: is zero: nothing would get through",
                "limits.runner_requests_burst: means nothing without a rate",
                "tenants.a b.name: not a tenant's name: expected 1 to 64 of A-Z a-z 0-9 . _ - and a letter or digit first",
                "tenants.a b.match.runner (\"*x\"): expected a runner's ID, or the beginning of one and a * behind it",
                &format!("tenants.a b.account: {number}"),
                "tenants.b.account: is given, and derived by account_from as well",
                "tenants.b.limits.bytes_per_second: is zero: nothing would get through",
                &format!("tenants.c.account: {number}"),
                "tenants.d: rule 2 (runner = \"d-1\") can never match: rule 1 of tenant d comes first and covers it",
                "tenants.d: it needs an account: the store for metrics tells tenants apart by it",
                "tenants.d.limits.in_flight: in_flight is zero: nothing would get through",
            ]
        );
    }

    #[test]
    fn what_can_be_checked_without_tenants_is() {
        let alone = HEAD.replace("default_tenant", "# ");
        assert_eq!(
            read(&alone).1,
            ["stores.metrics.cluster: a cluster needs accounts, and without tenants there are none"]
        );
        assert_eq!(read(HEAD).1[1..], ["default_tenant: there is no tenant rest"]);
        let single = alone.replace("cluster = true", "");
        assert!(read(&single).0.is_some());
    }

    #[test]
    fn tenants_that_cant_be_read_are_all_named() {
        let text =
            format!("{HEAD}\n[[tenants]]\nnam = 'a'\n[[tenants]]\nname = 'b'\nsignals = ['profiles']\nlimits.x = 1\n");
        let faults = ConfigFile::parse(&text, NO_ENV).unwrap_err();
        let at: Vec<_> = faults.as_slice().iter().map(|fault| fault.at.as_str()).collect();
        assert_eq!(at, ["tenants[1].nam", "[tenants[1]]", "tenants[2].limits.x", "[tenants[2]]"]);
        let faults = ConfigFile::parse(&HEAD.replace("\"rest\"", "7\ntenants = 1"), NO_ENV).unwrap_err();
        let at: Vec<_> = faults.as_slice().iter().map(|fault| fault.at.as_str()).collect();
        assert_eq!(at, ["default_tenant", "tenants"]);
    }
}
