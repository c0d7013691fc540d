//! Rules that choose a tenant by what was verified.

use std::fmt;
use std::str::FromStr;

use telemetry_proto::RunnerId;

use crate::gate::{Credential, Peer, Principal};

/// Runners: one, or all whose ID begins so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunnerPattern {
    /// `ID`.
    Exact(RunnerId),
    /// `PREFIX*`; `*` alone is every runner.
    Prefix(String),
}

/// The text is no pattern of a runner's ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a runner's ID, or the beginning of one and a * behind it")]
pub struct PatternError;

impl FromStr for RunnerPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_suffix('*') {
            None => RunnerId::new(text).map(Self::Exact).map_err(|_| PatternError),
            Some("") => Ok(Self::Prefix(String::new())),
            // What is no ID begins none.
            Some(prefix) => RunnerId::new(prefix).map(|id| Self::Prefix(id.into())).map_err(|_| PatternError),
        }
    }
}

impl RunnerPattern {
    fn matches(&self, runner: &RunnerId) -> bool {
        match self {
            Self::Exact(id) => id == runner,
            Self::Prefix(prefix) => runner.as_str().starts_with(prefix),
        }
    }

    /// Whether every runner that `other` matches is one that this matches.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Exact(id)) => self.matches(id),
            (Self::Prefix(prefix), Self::Prefix(longer)) => longer.starts_with(prefix),
            (Self::Exact(_), Self::Prefix(_)) => false,
        }
    }
}

impl fmt::Display for RunnerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(id) => id.fmt(f),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// Conditions on a principal, all of which must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// The runner that certificate and token name.
    pub runner: Option<RunnerPattern>,
    /// The organisation (O) of the certificate's subject, exactly.
    pub certificate_organization: Option<String>,
    /// The token's `organization_id`, exactly.
    pub token_organization: Option<String>,
}

/// What rules look at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) runner: &'a RunnerId,
    pub(super) certificate_organization: Option<&'a str>,
    pub(super) token_organization: Option<&'a str>,
}

impl<'a> Facts<'a> {
    /// What was verified of a runner; rules are for runners only.
    pub(super) fn of(runner: &'a RunnerId, principal: &'a Principal) -> Self {
        let token_organization = match principal.credential() {
            Credential::Workload(claims) => claims.organization.as_deref(),
            Credential::Static => None,
        };
        Self { token_organization, ..Self::of_certificate(runner, principal.peer()) }
    }

    /// What its certificate says of a runner.
    pub(super) fn of_certificate(runner: &'a RunnerId, peer: &'a Peer) -> Self {
        Self { runner, certificate_organization: peer.identity().organization(), token_organization: None }
    }
}

impl Rule {
    /// Whether it asks for nothing, or for an organisation without a name.
    pub(super) fn is_empty(&self) -> bool {
        let organizations = [&self.certificate_organization, &self.token_organization];
        let is_nameless = organizations.into_iter().flatten().any(String::is_empty);
        is_nameless || (self.runner.is_none() && organizations.into_iter().all(Option::is_none))
    }

    pub(super) fn matches(&self, facts: Facts<'_>) -> bool {
        self.matches_certificate(facts) && is(&self.token_organization, facts.token_organization)
    }

    /// Whether it matches with some token.
    pub(super) fn matches_certificate(&self, facts: Facts<'_>) -> bool {
        self.runner.as_ref().is_none_or(|pattern| pattern.matches(facts.runner))
            && is(&self.certificate_organization, facts.certificate_organization)
    }

    /// Whether every principal that `other` matches is one that this matches. An `other` behind it can then never match.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let is = |mine: &Option<String>, theirs: &Option<String>| mine.is_none() || mine == theirs;
        let runners = match (&self.runner, &other.runner) {
            (None, _) => true,
            (Some(mine), Some(theirs)) => mine.covers(theirs),
            (Some(mine), None) => *mine == RunnerPattern::Prefix(String::new()),
        };
        runners
            && is(&self.certificate_organization, &other.certificate_organization)
            && is(&self.token_organization, &other.token_organization)
    }

    /// Whether it matches everyone.
    pub(super) fn covers_everyone(&self) -> bool {
        self.covers(&Self::default())
    }

    /// The one runner that it names, if it asks for nothing else.
    pub(super) fn only_runner(&self) -> Option<&RunnerId> {
        match self {
            Self {
                runner: Some(RunnerPattern::Exact(id)),
                certificate_organization: None,
                token_organization: None,
            } => Some(id),
            _ => None,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conditions = [
            ("runner", self.runner.as_ref().map(ToString::to_string)),
            ("certificate_organization", self.certificate_organization.clone()),
            ("token_organization", self.token_organization.clone()),
        ];
        let mut separator = "";
        for (name, value) in conditions {
            if let Some(value) = value {
                write!(f, "{separator}{name} = {value:?}")?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

fn is(wanted: &Option<String>, fact: Option<&str>) -> bool {
    wanted.as_deref().is_none_or(|wanted| fact == Some(wanted))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A rule of `runner`, `certificate_organization`, `token_organization`; empty for none.
    pub(in crate::tenancy) fn rule(runner: &str, certificate: &str, token: &str) -> Rule {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Rule {
            runner: given(runner).map(|text| text.parse().unwrap()),
            certificate_organization: given(certificate),
            token_organization: given(token),
        }
    }

    #[test]
    fn patterns_are_ids_or_beginnings_of_ids() {
        for good in ["r7", "edge-*", "*", "a.b*"] {
            assert_eq!(good.parse::<RunnerPattern>().unwrap().to_string(), good);
        }
        for bad in ["", "**", "*-edge", "a*b", "-a*", " *", "a b*", "r?", "[a-z]*"] {
            assert_eq!(bad.parse::<RunnerPattern>(), Err(PatternError), "{bad:?}");
        }
    }

    #[test]
    fn every_condition_must_hold() {
        let id = RunnerId::new("edge-7").unwrap();
        let facts = Facts { runner: &id, certificate_organization: Some("Acme"), token_organization: Some("acme") };
        for matching in
            [rule("edge-*", "", ""), rule("edge-7", "Acme", "acme"), rule("", "", "acme"), rule("*", "", "")]
        {
            assert!(matching.matches(facts), "{matching}");
        }
        for other in
            [rule("edge-", "", ""), rule("edge-*", "acme", ""), rule("", "Acme", "Acme"), rule("EDGE-*", "", "")]
        {
            assert!(!other.matches(facts), "{other}");
        }
        let bare = Facts { certificate_organization: None, token_organization: None, ..facts };
        assert!(!rule("", "Acme", "").matches(bare));
    }

    #[test]
    fn a_rule_covers_what_is_narrower() {
        let cases = [
            ("edge-*", "edge-7", true),
            ("edge-*", "edge-7*", true),
            ("edge-7*", "edge-*", false),
            ("edge-7", "edge-7*", false),
            ("*", "edge-*", true),
        ];
        for (wide, narrow, covers) in cases {
            assert_eq!(rule(wide, "", "").covers(&rule(narrow, "", "")), covers, "{wide} {narrow}");
        }
        assert!(rule("", "Acme", "").covers(&rule("edge-*", "Acme", "x")));
        assert!(!rule("edge-*", "Acme", "").covers(&rule("edge-*", "", "")));
        assert!(rule("*", "", "").covers(&rule("", "Acme", "")));
        assert!(rule("*", "", "").covers_everyone() && !rule("a*", "", "").covers_everyone());
    }
}
