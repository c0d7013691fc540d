//! Which tenant is it? Asked once per request, of a snapshot that can be replaced at any time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use telemetry_proto::{Reason, RunnerId, Signal, WriterName};

use super::rule::Facts;
use super::{Rule, Tenant, TenantName, TenantSet};
use crate::gate::{Author, Peer, Principal};

/// The tenants that are in force.
#[derive(Debug)]
pub struct Tenancy {
    current: ArcSwap<Snapshot>,
    /// Held by whoever computes the next snapshot from the current one.
    change: Mutex<()>,
}

/// What became of the tenants when others were published.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Published {
    /// How many tenants there are.
    pub tenants: usize,
    /// Those that are no more.
    pub removed: Vec<RemovedTenant>,
}

/// A tenant that is no more. What its runners send from now on is refused, unless another tenant's rule matches them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedTenant {
    /// Its name.
    pub name: TenantName,
    /// How many of its runners wrote within the last minute.
    pub active_runners: usize,
    /// How many of the runners that are connected can be its own, by their certificates.
    pub connected_runners: usize,
}

#[derive(Debug)]
struct Snapshot {
    tenants: Vec<Arc<Tenant>>,
    /// Rules that name one runner and nothing else, by that runner.
    exact: HashMap<RunnerId, Choice>,
    /// All others, in their order.
    rules: Vec<(Rule, Choice)>,
    default: Option<Arc<Tenant>>,
    /// The tenant of everyone, where none is configured; else of each writer.
    writers: Writers,
}

#[derive(Debug)]
enum Writers {
    All(Arc<Tenant>),
    Each(HashMap<WriterName, Arc<Tenant>>),
}

#[derive(Debug, Clone)]
struct Choice {
    /// The rule's place among all.
    order: usize,
    tenant: Arc<Tenant>,
}

impl Tenancy {
    /// With these tenants.
    #[must_use]
    pub fn new(set: &TenantSet) -> Self {
        Self { current: ArcSwap::from_pointee(Snapshot::new(set, &[])), change: Mutex::new(()) }
    }

    /// Puts other tenants in force, for every request from now on; those that are running go on as they began.
    ///
    /// A tenant of a name that was there before goes on where it was: what it uses it still uses, those who wait keep their
    /// place, and its counters go on, whether its limits changed or not.
    ///
    /// `connected` are those who are connected, to say how many of them belonged to a tenant that is no more.
    pub fn publish<'a>(&self, set: &TenantSet, connected: impl IntoIterator<Item = &'a Peer>) -> Published {
        let _alone = self.change.lock();
        let before = self.current.load_full();
        let after = Snapshot::new(set, &before.tenants);
        let is_gone = |old: &Tenant| after.tenants.iter().all(|new| new.name() != old.name());
        let gone: Vec<_> = before.tenants.iter().filter(|old| is_gone(old)).collect();
        let mut runners: HashMap<&TenantName, HashSet<&RunnerId>> = HashMap::new();
        let connected = connected.into_iter().filter(|_| !gone.is_empty());
        for (runner, peer) in connected.filter_map(|peer| Some((peer.runner()?, peer))) {
            for tenant in before.possible(Facts::of_certificate(runner, peer)) {
                runners.entry(tenant.name()).or_default().insert(runner);
            }
        }
        let removed: Vec<_> = gone
            .into_iter()
            .map(|old| RemovedTenant {
                name: old.name().clone(),
                active_runners: old.allowance().active_runners(),
                connected_runners: runners.get(old.name()).map_or(0, HashSet::len),
            })
            .collect();
        let published = Published { tenants: after.tenants.len(), removed };
        self.current.store(Arc::new(after));
        for tenant in &published.removed {
            let RemovedTenant { name, active_runners, connected_runners } = tenant;
            tracing::warn!(tenant = %name, connected_runners, active_runners, "a tenant was removed");
        }
        published
    }

    /// The tenant of a principal.
    ///
    /// # Errors
    /// [`Reason::TenantUnknown`] when no rule matches and there is no default.
    pub fn resolve(&self, principal: &Principal) -> Result<Arc<Tenant>, Reason> {
        let current = self.current.load();
        let tenant = match principal.author() {
            Author::Runner(runner) => current.resolve(Facts::of(runner, principal)),
            Author::Writer(name) => current.of_writer(name),
        };
        tenant.map(Arc::clone).ok_or(Reason::TenantUnknown)
    }

    /// Whether a peer's tenant may write `signal`. A runner's may depend on the token that it will show: then it is whether
    /// one of those that it can have by its certificate may.
    #[must_use]
    pub fn may_write(&self, peer: &Peer, signal: Signal) -> bool {
        let current = self.current.load();
        match peer.author() {
            Author::Runner(runner) => {
                let facts = Facts::of_certificate(runner, peer);
                current.possible(facts).into_iter().any(|tenant| tenant.writes(signal))
            }
            Author::Writer(name) => current.of_writer(name).is_some_and(|tenant| tenant.writes(signal)),
        }
    }

    /// The tenant of a writer that is no runner.
    #[must_use]
    pub fn of_writer(&self, name: &WriterName) -> Option<Arc<Tenant>> {
        self.current.load().of_writer(name).cloned()
    }

    /// The tenants that are in force, in their order.
    #[must_use]
    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.current.load().tenants.clone()
    }
}

impl Snapshot {
    fn new(set: &TenantSet, before: &[Arc<Tenant>]) -> Self {
        let plan = &set.plan;
        let of_name = |name: &TenantName| before.iter().find(|tenant| tenant.name() == name).map(Arc::as_ref);
        if plan.tenants.is_empty() {
            let single = Arc::new(Tenant::single(plan.default_limits, of_name(&TenantName::default_tenant())));
            let default = Some(Arc::clone(&single));
            let writers = Writers::All(Arc::clone(&single));
            return Self { tenants: vec![single], exact: HashMap::new(), rules: Vec::new(), default, writers };
        }
        let tenants: Vec<_> = plan
            .tenants
            .iter()
            .map(|settings| Arc::new(Tenant::configured(settings, of_name(&settings.name))))
            .collect();
        let mut exact = HashMap::new();
        let mut rules = Vec::new();
        let all = plan
            .tenants
            .iter()
            .zip(&tenants)
            .flat_map(|(settings, tenant)| settings.rules.iter().map(move |r| (r, tenant)));
        for (order, (rule, tenant)) in all.enumerate() {
            let choice = Choice { order, tenant: Arc::clone(tenant) };
            match rule.only_runner() {
                // Of two rules for one runner the first counts; a checked plan has no second.
                Some(runner) => drop(exact.entry(runner.clone()).or_insert(choice)),
                None => rules.push((rule.clone(), choice)),
            }
        }
        let named = |name: &TenantName| tenants.iter().find(|tenant| tenant.name() == name).cloned();
        let default = plan.default_tenant.as_ref().and_then(named);
        let writers = plan.writers.iter().filter_map(|(writer, tenant)| Some((writer.clone(), named(tenant)?)));
        let writers = Writers::Each(writers.collect());
        Self { tenants, exact, rules, default, writers }
    }

    fn resolve(&self, facts: Facts<'_>) -> Option<&Arc<Tenant>> {
        let exact = self.exact.get(facts.runner);
        let before_exact = exact.map_or(usize::MAX, |choice| choice.order);
        let others = self.rules.iter().take_while(|(_, choice)| choice.order < before_exact);
        let first = others.into_iter().find(|(rule, _)| rule.matches(facts)).map(|(_, choice)| choice);
        first.or(exact).map(|choice| &choice.tenant).or(self.default.as_ref())
    }

    /// The tenants that a runner can have, whatever its token says.
    fn possible(&self, facts: Facts<'_>) -> Vec<&Arc<Tenant>> {
        let exact = self.exact.get(facts.runner);
        let before_exact = exact.map_or(usize::MAX, |choice| choice.order);
        let mut possible = Vec::new();
        for (rule, choice) in self.rules.iter().take_while(|(_, choice)| choice.order < before_exact) {
            if rule.matches_certificate(facts) {
                possible.push(&choice.tenant);
                if rule.token_organization.is_none() {
                    return possible;
                }
            }
        }
        possible.extend(exact.map(|choice| &choice.tenant).or(self.default.as_ref()));
        possible
    }

    fn of_writer(&self, name: &WriterName) -> Option<&Arc<Tenant>> {
        match &self.writers {
            Writers::All(tenant) => Some(tenant),
            Writers::Each(tenants) => tenants.get(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::tests::rule;
    use super::super::{Stores, TenantPlan, TenantSettings};
    use super::*;
    use crate::admission::{Caller, TenantLimits};
    use crate::gate::fixtures::peer;

    fn set(tenants: &[(&str, &[Rule])], default: Option<&str>) -> TenantSet {
        let tenants = tenants.iter().map(|(name, rules)| TenantSettings {
            name: name.parse().unwrap(),
            rules: rules.to_vec(),
            account: None,
            signals: None,
            limits: TenantLimits::default(),
        });
        let default_tenant = default.map(|name| name.parse().unwrap());
        let plan = TenantPlan { tenants: tenants.collect(), default_tenant, ..TenantPlan::default() };
        plan.check(&Stores::default()).unwrap()
    }

    fn resolve(tenancy: &Tenancy, runner: &str, certificate: &str, token: &str) -> Option<String> {
        let runner = RunnerId::new(runner).unwrap();
        let facts =
            Facts { runner: &runner, certificate_organization: Some(certificate), token_organization: Some(token) };
        tenancy.current.load().resolve(facts).map(|tenant| tenant.name().to_string())
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let a: &[Rule] = &[rule("edge-7", "", ""), rule("", "Acme", "")];
        let b: &[Rule] = &[rule("edge-8", "", ""), rule("edge-*", "", ""), rule("", "", "b")];
        let tenancy = Tenancy::new(&set(&[("a", a), ("b", b)], None));
        for (runner, certificate, token, tenant) in [
            ("edge-7", "", "b", Some("a")),
            ("edge-8", "Acme", "", Some("a")),
            ("edge-8", "", "", Some("b")),
            ("edge-9", "", "", Some("b")),
            ("x", "", "b", Some("b")),
            ("x", "acme", "B", None),
        ] {
            assert_eq!(
                resolve(&tenancy, runner, certificate, token).as_deref(),
                tenant,
                "{runner} {certificate} {token}"
            );
        }
        let with_default = Tenancy::new(&set(&[("a", a), ("b", &[])], Some("b")));
        assert_eq!(resolve(&with_default, "x", "", "").as_deref(), Some("b"));
    }

    #[test]
    fn what_a_runner_may_write_is_what_any_of_its_possible_tenants_may() {
        let a: &[Rule] = &[rule("", "", "acme"), rule("edge-7", "", "")];
        let b: &[Rule] = &[rule("edge-8", "", ""), rule("edge-*", "", "")];
        let mut set = set(&[("a", a), ("b", b), ("rest", &[])], Some("rest"));
        set.plan.tenants[0].signals = Some(vec![Signal::Traces]);
        set.plan.tenants[1].signals = Some(vec![Signal::Logs]);
        set.plan.tenants[2].signals = Some(vec![Signal::Metrics]);
        let tenancy = Tenancy::new(&set);
        let may = |runner: &str| Signal::ALL.map(|signal| tenancy.may_write(&peer(runner), signal));
        assert_eq!(may("edge-7"), [false, false, true]);
        assert_eq!(may("edge-8"), [false, true, true], "with a token of acme it is a's");
        assert_eq!(may("edge-9"), [false, true, true]);
        assert_eq!(may("x"), [true, false, true]);
    }

    #[test]
    fn without_tenants_everyone_is_one() {
        let tenancy = Tenancy::new(&TenantSet::single(TenantLimits::default()));
        assert_eq!(resolve(&tenancy, "anyone", "", "").as_deref(), Some("default"));
        assert!(tenancy.tenants()[0].pin().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_goes_on_where_it_was_and_one_that_goes_says_how_many_runners_it_had() {
        let everyone: &[Rule] = &[rule("r*", "", "")];
        let first = set(&[("a", everyone), ("gone", &[rule("x", "", "")])], None);
        let tenancy = Tenancy::new(&first);
        let caller = |id: &str| Caller { author: RunnerId::new(id).unwrap().into(), batch: None };
        let [a, gone] = &tenancy.tenants()[..] else { panic!("two tenants") };
        let _held = a.allowance().sender(caller("r1")).unwrap().permit().await.unwrap();
        drop(gone.allowance().sender(caller("x")).unwrap());

        let mut second = set(&[("a", everyone), ("new", &[rule("y", "", "")])], None);
        second.plan.tenants[0].limits.max_in_flight = 1;
        let connected = [peer("x"), peer("x"), peer("r1")];
        let published = tenancy.publish(&second, &connected);
        let removed = vec![RemovedTenant { name: "gone".parse().unwrap(), active_runners: 1, connected_runners: 1 }];
        assert_eq!(published, Published { tenants: 2, removed });
        assert_eq!(resolve(&tenancy, "x", "", ""), None);
        let a = &tenancy.tenants()[0];
        assert_eq!(a.allowance().in_flight(), 1, "what was in flight still is");
        assert!(a.allowance().sender(caller("r2")).unwrap().permit().await.is_err(), "and the new limit holds");
    }
}
