//! What an issuer mints.

use std::time::Duration;

use telemetry_proto::{Signal, claims, limits};

use super::MintRate;

/// What an issuer mints, and for whom. Checked by [`Issuer::new`](super::Issuer::new).
#[derive(Debug, Clone)]
pub struct IssuerConfig {
    /// The issuer's name: `iss`.
    pub issuer: String,
    /// The organisation: `organization_id`, and `org:` in `sub`.
    pub organization: Option<String>,
    /// The cluster: `cluster_id`, and `cluster:` in `sub`.
    pub cluster: Option<String>,
    /// The workloads that tokens are minted for.
    pub workloads: Vec<String>,
    /// The audiences that tokens are minted for.
    pub audiences: Vec<String>,
    /// The signals that may be granted.
    pub signals: Vec<Signal>,
    /// The shortest life of a token, whatever is asked for.
    pub min_lifetime: Duration,
    /// The longest life of a token, whatever is asked for.
    pub max_lifetime: Duration,
    /// The name of the claim that holds the runner's ID.
    pub runner_id_claim: String,
    /// How often one runner may ask.
    pub rate: MintRate,
}

impl IssuerConfig {
    /// The defaults of the contract: telemetry writers only, for every signal, 60 s to 24 h.
    #[must_use]
    pub fn new(issuer: impl Into<String>) -> Self {
        Self {
            issuer: issuer.into(),
            organization: None,
            cluster: None,
            workloads: vec![claims::WORKLOAD.to_owned()],
            audiences: vec![claims::AUDIENCE.to_owned()],
            signals: Signal::ALL.to_vec(),
            min_lifetime: limits::MIN_TOKEN_LIFETIME,
            max_lifetime: limits::MAX_TOKEN_LIFETIME,
            runner_id_claim: claims::RUNNER_ID_CLAIM.to_owned(),
            rate: MintRate::default(),
        }
    }

    /// Looks for settings under which no token, or no acceptable token, would be minted.
    pub(crate) fn check(&self) -> Result<(), IssuerConfigError> {
        let lists = [("workloads", &self.workloads), ("audiences", &self.audiences)];
        for (setting, list) in lists {
            if list.is_empty() || !list.iter().all(|name| is_name(name)) {
                return Err(IssuerConfigError::Name { setting });
            }
        }
        for (setting, name) in [("organization", &self.organization), ("cluster", &self.cluster)] {
            if name.as_ref().is_some_and(|name| !is_name(name) || name.contains(':')) {
                return Err(IssuerConfigError::Name { setting });
            }
        }
        if !is_name(&self.issuer) {
            return Err(IssuerConfigError::Name { setting: "issuer" });
        }
        if !is_name(&self.runner_id_claim) || CLAIMS_OF_OURS.contains(&self.runner_id_claim.as_str()) {
            return Err(IssuerConfigError::RunnerIdClaim);
        }
        if self.signals.is_empty() {
            return Err(IssuerConfigError::NoSignals);
        }
        let bounds = limits::MIN_TOKEN_LIFETIME..=limits::MAX_TOKEN_LIFETIME;
        let within = bounds.contains(&self.min_lifetime) && bounds.contains(&self.max_lifetime);
        if !within || self.min_lifetime > self.max_lifetime {
            return Err(IssuerConfigError::Lifetime);
        }
        if self.rate.per_minute == 0 || self.rate.burst == 0 {
            return Err(IssuerConfigError::Rate);
        }
        Ok(())
    }
}

/// Why an issuer can't start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IssuerConfigError {
    /// A name that is empty, too long or has other characters than visible ASCII; in organisation and cluster also a colon,
    /// which separates them in `sub`.
    #[error(
        "{setting}: expected 1 to {MAX_NAME_BYTES} visible ASCII characters, without a colon in organization and cluster"
    )]
    Name {
        /// The setting.
        setting: &'static str,
    },
    /// The name of the runner's claim is no name, or that of another claim.
    #[error("runner_id_claim: expected a name that no other claim has")]
    RunnerIdClaim,
    /// No signal may be granted.
    #[error("signals: there is none, so no token could be minted")]
    NoSignals,
    /// Lifetimes out of bounds.
    #[error("lifetimes: expected 60 s <= min_lifetime <= max_lifetime <= 24 h")]
    Lifetime,
    /// A rate of zero.
    #[error("rate: per_minute and burst must be at least 1")]
    Rate,
}

/// The longest name: with all of them at this size a token stays far below 8 KiB.
const MAX_NAME_BYTES: usize = 256;

/// The names that [`Claims`](claims::Claims) writes itself.
const CLAIMS_OF_OURS: [&str; 12] = [
    "iss",
    "sub",
    "aud",
    "exp",
    "nbf",
    "iat",
    "jti",
    "identity_type",
    "system_workload",
    "signals",
    "organization_id",
    "cluster_id",
];

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_accepted_and_each_bad_setting_is_named() {
        let check = |edit: fn(&mut IssuerConfig)| {
            let mut config = IssuerConfig::new("https://coordinator.example");
            edit(&mut config);
            config.check()
        };
        assert_eq!(check(|_| ()), Ok(()));
        assert_eq!(check(|c| (c.organization, c.cluster) = (Some("acme".into()), Some("eu-1".into()))), Ok(()));
        let name = |setting| Err(IssuerConfigError::Name { setting });
        assert_eq!(check(|c| c.issuer.clear()), name("issuer"));
        assert_eq!(check(|c| c.issuer = "x".repeat(MAX_NAME_BYTES + 1)), name("issuer"));
        assert_eq!(check(|c| c.organization = Some(String::new())), name("organization"));
        assert_eq!(check(|c| c.organization = Some("a:cluster:b".into())), name("organization"));
        assert_eq!(check(|c| c.cluster = Some("eu 1".into())), name("cluster"));
        assert_eq!(check(|c| c.workloads.clear()), name("workloads"));
        assert_eq!(check(|c| c.audiences = vec!["ä".into()]), name("audiences"));
        assert_eq!(check(|c| c.signals.clear()), Err(IssuerConfigError::NoSignals));
        assert_eq!(check(|c| c.runner_id_claim.clear()), Err(IssuerConfigError::RunnerIdClaim));
        assert_eq!(check(|c| c.runner_id_claim = "sub".into()), Err(IssuerConfigError::RunnerIdClaim));
        assert_eq!(check(|c| c.min_lifetime = Duration::from_secs(59)), Err(IssuerConfigError::Lifetime));
        assert_eq!(check(|c| c.max_lifetime = Duration::from_secs(86_401)), Err(IssuerConfigError::Lifetime));
        assert_eq!(
            check(|c| (c.min_lifetime, c.max_lifetime) = (Duration::from_secs(120), Duration::from_secs(60))),
            Err(IssuerConfigError::Lifetime)
        );
        assert_eq!(check(|c| c.rate.burst = 0), Err(IssuerConfigError::Rate));
        assert_eq!(check(|c| c.rate.per_minute = 0), Err(IssuerConfigError::Rate));
    }

    #[test]
    fn no_name_of_a_claim_is_missing_from_the_list() {
        let claims = claims::Claims {
            iss: String::new(),
            sub: String::new(),
            aud: claims::Audience::Many(Vec::new()),
            exp: 0,
            nbf: 0,
            iat: 0,
            identity_type: Some(String::new()),
            system_workload: Some(String::new()),
            signals: Some(Vec::new()),
            organization_id: Some(String::new()),
            cluster_id: Some(String::new()),
            jti: Some(String::new()),
            extra: serde_json::Map::new(),
        };
        let written = serde_json::to_value(&claims).unwrap();
        let mut written: Vec<_> = written.as_object().unwrap().keys().map(String::as_str).collect();
        let mut listed = CLAIMS_OF_OURS.to_vec();
        written.sort_unstable();
        listed.sort_unstable();
        assert_eq!(written, listed);
    }
}
