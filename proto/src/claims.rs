//! The claims of a workload token and the rules they are checked by.
//!
//! Signatures are the verifier's business; what is here takes claims that are already authenticated and decides whether
//! they are good enough. Each rule that fails has a [`Reason`] of its own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Reason, RunnerId, Signal, limits};

/// The audience that a token for the relay is minted for.
pub const AUDIENCE: &str = "miren-telemetry";
/// The value of `identity_type`.
pub const IDENTITY_TYPE_SYSTEM: &str = "system";
/// The value of `system_workload`.
pub const WORKLOAD: &str = "telemetrywriter";
/// The default name of the claim that holds the runner's ID.
pub const RUNNER_ID_CLAIM: &str = "runner_id";

/// The claims of a workload token. Times are whole seconds since 1970 (RFC 7519 section 2, NumericDate).
///
/// The runner's ID is not a field: the name of its claim is a setting of the verifier, which reads it from
/// [`extra`](Self::extra).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Issuer (RFC 7519 section 4.1.1).
    pub iss: String,
    /// Subject: `[org:ORG:][cluster:CLUSTER:]system:telemetrywriter`.
    pub sub: String,
    /// Audience: one string or a list of strings.
    pub aud: Audience,
    /// Expiry.
    pub exp: u64,
    /// Not valid before.
    pub nbf: u64,
    /// Issued at.
    pub iat: u64,
    /// `system` for a token of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_type: Option<String>,
    /// `telemetrywriter` for a token of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_workload: Option<String>,
    /// The signals that the token grants. Absent: metrics and logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signals: Option<Vec<String>>,
    /// The organisation, as issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization_id: Option<String>,
    /// The cluster, as issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The token's own ID, as issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jti: Option<String>,
    /// Everything else, the runner's ID among it.
    #[serde(flatten)]
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// The `aud` claim (RFC 7519 section 4.1.3): one string or a list of strings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Audience {
    /// A single audience.
    One(String),
    /// Several audiences.
    Many(Vec<String>),
}

impl Audience {
    /// Whether the token is for `audience`.
    #[must_use]
    pub fn contains(&self, audience: &str) -> bool {
        match self {
            Self::One(one) => one == audience,
            Self::Many(many) => many.iter().any(|one| one == audience),
        }
    }
}

/// Whether a token must name its runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunnerBinding {
    /// Every token names the runner.
    #[default]
    Required,
    /// A token of an older issuer may name none; one that names a runner must still name the right one.
    IfPresent,
}

/// What claims are checked against.
#[derive(Debug, Clone)]
pub struct Expectations {
    /// Issuers that are accepted: the current one and previous ones.
    pub issuers: Vec<String>,
    /// How far clocks may differ.
    pub leeway: Duration,
    /// The name of the claim that holds the runner's ID.
    pub runner_id_claim: String,
    /// Whether that claim must be there.
    pub runner_binding: RunnerBinding,
}

impl Expectations {
    /// The strict defaults for one issuer.
    #[must_use]
    pub fn new(issuer: impl Into<String>) -> Self {
        Self {
            issuers: vec![issuer.into()],
            leeway: limits::DEFAULT_LEEWAY,
            runner_id_claim: RUNNER_ID_CLAIM.to_owned(),
            runner_binding: RunnerBinding::Required,
        }
    }
}

/// The signals that a token grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grants {
    bits: u8,
}

impl Grants {
    /// What a token without the claim `signals` grants: metrics and logs.
    pub const DEFAULT: Self = Self { bits: 0b011 };
    /// Nothing at all.
    pub const NONE: Self = Self { bits: 0 };

    /// The grant of exactly these signals.
    #[must_use]
    pub fn of(signals: &[Signal]) -> Self {
        Self { bits: signals.iter().fold(0, |bits, signal| bits | Self::bit(*signal)) }
    }

    /// Whether `signal` is granted.
    #[must_use]
    pub const fn allows(self, signal: Signal) -> bool {
        self.bits & Self::bit(signal) != 0
    }

    const fn bit(signal: Signal) -> u8 {
        match signal {
            Signal::Metrics => 0b001,
            Signal::Logs => 0b010,
            Signal::Traces => 0b100,
        }
    }
}

/// What is left of claims that passed every rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedClaims {
    /// The runner that the token names; `None` only under [`RunnerBinding::IfPresent`].
    pub runner: Option<RunnerId>,
    /// The signals that the token grants.
    pub grants: Grants,
    /// The organisation, as issued.
    pub organization: Option<String>,
    /// Start of validity, seconds since 1970, without leeway.
    pub not_before: u64,
    /// End of validity, seconds since 1970, without leeway.
    pub expires_at: u64,
}

impl VerifiedClaims {
    /// Checks the two times again; a cached verification ages.
    ///
    /// # Errors
    /// [`Reason::TokenExpired`] or [`Reason::TokenNotYetValid`].
    pub fn check_time(&self, now: u64, leeway: Duration) -> Result<(), Reason> {
        check_end(self.expires_at, now, leeway)?;
        check_start(self.not_before, now, leeway)
    }
}

fn check_end(expires_at: u64, now: u64, leeway: Duration) -> Result<(), Reason> {
    if now < expires_at.saturating_add(leeway.as_secs()) { Ok(()) } else { Err(Reason::TokenExpired) }
}

fn check_start(not_before: u64, now: u64, leeway: Duration) -> Result<(), Reason> {
    if now.saturating_add(leeway.as_secs()) >= not_before { Ok(()) } else { Err(Reason::TokenNotYetValid) }
}

/// One rule of the contract about claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClaimCheck {
    /// `iss` is an issuer that is accepted.
    Issuer,
    /// `aud` holds [`AUDIENCE`].
    Audience,
    /// `exp` is not over.
    End,
    /// `nbf` and `iat` have come.
    Start,
    /// It lives no longer than is accepted.
    Lifetime,
    /// `identity_type` is [`IDENTITY_TYPE_SYSTEM`].
    IdentityType,
    /// `system_workload` is [`WORKLOAD`].
    Workload,
    /// It names its runner, as the binding wants it.
    Runner,
}

impl ClaimCheck {
    /// Every rule, in the order in which they are checked.
    pub const ALL: [Self; 8] = [
        Self::Issuer,
        Self::Audience,
        Self::End,
        Self::Start,
        Self::Lifetime,
        Self::IdentityType,
        Self::Workload,
        Self::Runner,
    ];
}

impl Claims {
    /// Checks every rule of the contract but the signature and the peer, in the order of [`ClaimCheck::ALL`]. `now` is in
    /// seconds since 1970.
    ///
    /// # Errors
    /// The reason of the first rule that fails.
    pub fn verify(&self, expected: &Expectations, now: u64) -> Result<VerifiedClaims, Reason> {
        ClaimCheck::ALL.into_iter().try_for_each(|check| self.check(check, expected, now))?;
        Ok(VerifiedClaims {
            runner: self.runner(expected)?,
            grants: self.grants(),
            organization: self.organization_id.clone(),
            not_before: self.valid_from(),
            expires_at: self.exp,
        })
    }

    /// Checks one rule. [`verify`](Self::verify) is all of them; this is for whoever explains a token.
    ///
    /// # Errors
    /// The rule's reason.
    pub fn check(&self, check: ClaimCheck, expected: &Expectations, now: u64) -> Result<(), Reason> {
        let (holds, reason) = match check {
            ClaimCheck::Issuer => (expected.issuers.contains(&self.iss), Reason::TokenWrongIssuer),
            ClaimCheck::Audience => (self.aud.contains(AUDIENCE), Reason::TokenWrongAudience),
            ClaimCheck::End => return check_end(self.exp, now, expected.leeway),
            ClaimCheck::Start => return check_start(self.valid_from(), now, expected.leeway),
            ClaimCheck::Lifetime => {
                let longest = limits::MAX_TOKEN_LIFETIME.as_secs() + expected.leeway.as_secs();
                (self.lifetime() <= longest, Reason::TokenTooLongLived)
            }
            ClaimCheck::IdentityType => {
                (self.identity_type.as_deref() == Some(IDENTITY_TYPE_SYSTEM), Reason::TokenNotSystem)
            }
            ClaimCheck::Workload => (self.system_workload.as_deref() == Some(WORKLOAD), Reason::TokenWrongWorkload),
            ClaimCheck::Runner => return self.runner(expected).map(drop),
        };
        if holds { Ok(()) } else { Err(reason) }
    }

    /// From when on it is valid: the later of `nbf` and `iat`, seconds since 1970.
    #[must_use]
    pub fn valid_from(&self) -> u64 {
        self.nbf.max(self.iat)
    }

    /// How long it lives, in seconds: from the earlier of `nbf` and `iat` to `exp`.
    #[must_use]
    pub fn lifetime(&self) -> u64 {
        self.exp.saturating_sub(self.iat.min(self.nbf))
    }

    fn runner(&self, expected: &Expectations) -> Result<Option<RunnerId>, Reason> {
        match self.extra.get(&expected.runner_id_claim) {
            Some(serde_json::Value::String(id)) => RunnerId::new(id).map(Some).map_err(|_| Reason::TokenMalformed),
            Some(_) => Err(Reason::TokenMalformed),
            None if expected.runner_binding == RunnerBinding::IfPresent => Ok(None),
            None => Err(Reason::TokenMalformed),
        }
    }

    /// Signals of the future, unknown here, grant nothing here.
    fn grants(&self) -> Grants {
        self.signals.as_ref().map_or(Grants::DEFAULT, |names| {
            let known: Vec<Signal> = names.iter().filter_map(|name| name.parse().ok()).collect();
            Grants::of(&known)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_900_000_000;

    fn good() -> serde_json::Value {
        json!({
            "iss": "https://coordinator.example", "sub": "system:telemetrywriter", "aud": ["miren-telemetry"],
            "exp": NOW + 3_600, "nbf": NOW, "iat": NOW, "identity_type": "system",
            "system_workload": "telemetrywriter", "runner_id": "r7",
        })
    }

    fn verify(edit: impl FnOnce(&mut serde_json::Value)) -> Result<VerifiedClaims, Reason> {
        verify_with(&Expectations::new("https://coordinator.example"), edit)
    }

    fn verify_with(
        expected: &Expectations,
        edit: impl FnOnce(&mut serde_json::Value),
    ) -> Result<VerifiedClaims, Reason> {
        let mut claims = good();
        edit(&mut claims);
        let claims: Claims = serde_json::from_value(claims).map_err(|_| Reason::TokenMalformed)?;
        claims.verify(expected, NOW)
    }

    #[test]
    fn a_good_token_names_its_runner_and_grants_metrics_and_logs() {
        let verified = verify(|_| ()).unwrap();
        assert_eq!(verified.runner.unwrap().as_str(), "r7");
        assert!(verified.grants.allows(Signal::Metrics) && verified.grants.allows(Signal::Logs));
        assert!(!verified.grants.allows(Signal::Traces));
        assert!(verify(|c| c["aud"] = json!("miren-telemetry")).is_ok());
    }

    #[test]
    fn each_rule_has_its_reason() {
        type Edit = fn(&mut serde_json::Value);
        let cases: &[(Edit, Reason)] = &[
            (|c| c["iss"] = json!("https://coordinator.example/"), Reason::TokenWrongIssuer),
            (|c| c["aud"] = json!("miren-telemetry-x"), Reason::TokenWrongAudience),
            (|c| c["aud"] = json!([]), Reason::TokenWrongAudience),
            (|c| c["aud"] = json!([["miren-telemetry"]]), Reason::TokenMalformed),
            (|c| c["exp"] = json!(NOW - 30), Reason::TokenExpired),
            (|c| c["nbf"] = json!(NOW + 31), Reason::TokenNotYetValid),
            (|c| c["iat"] = json!(NOW + 31), Reason::TokenNotYetValid),
            (|c| c["exp"] = json!(NOW + 86_400 + 31), Reason::TokenTooLongLived),
            (|c| c["iat"] = json!(0), Reason::TokenTooLongLived),
            (|c| c["identity_type"] = json!("user"), Reason::TokenNotSystem),
            (|c| c["system_workload"] = json!("imagebuilder"), Reason::TokenWrongWorkload),
            (|c| c["runner_id"] = json!("r7\n"), Reason::TokenMalformed),
            (|c| c["runner_id"] = json!(["r7"]), Reason::TokenMalformed),
            (|c| c["exp"] = json!((NOW + 60).to_string()), Reason::TokenMalformed),
            (|c| c["exp"] = json!(1e10), Reason::TokenMalformed),
            (|c| c["exp"] = json!(-1), Reason::TokenMalformed),
        ];
        for (i, (edit, reason)) in cases.iter().enumerate() {
            assert_eq!(verify(edit).unwrap_err(), *reason, "case {i}");
        }
        for missing in ["iss", "sub", "aud", "exp", "nbf", "iat", "runner_id"] {
            let removed = verify(|c| drop(c.as_object_mut().unwrap().remove(missing)));
            assert_eq!(removed.unwrap_err(), Reason::TokenMalformed, "without {missing}");
        }
    }

    #[test]
    fn clocks_may_differ_by_the_leeway() {
        assert!(verify(|c| c["exp"] = json!(NOW - 29)).is_ok());
        assert!(verify(|c| c["nbf"] = json!(NOW + 30)).is_ok());
    }

    #[test]
    fn the_listed_signals_are_granted_and_no_others() {
        let verified = verify(|c| c["signals"] = json!(["traces", "profiles"])).unwrap();
        assert_eq!(verified.grants, Grants::of(&[Signal::Traces]));
        assert_eq!(verify(|c| c["signals"] = json!([])).unwrap().grants, Grants::NONE);
    }

    #[test]
    fn an_older_issuer_may_name_no_runner_only_where_the_setting_says_so() {
        let mut expected = Expectations::new("https://coordinator.example");
        expected.runner_binding = RunnerBinding::IfPresent;
        let without = verify_with(&expected, |c| drop(c.as_object_mut().unwrap().remove("runner_id"))).unwrap();
        assert_eq!(without.runner, None);
        assert!(verify_with(&expected, |c| c["runner_id"] = json!("")).is_err());
        expected.runner_id_claim = "node".to_owned();
        let renamed = verify_with(&expected, |c| c["node"] = json!("r9")).unwrap();
        assert_eq!(renamed.runner.unwrap().as_str(), "r9");
    }

    #[test]
    fn duplicate_claims_are_malformed() {
        let text = good().to_string().replacen('{', r#"{"exp":9999999999,"#, 1);
        assert!(serde_json::from_str::<Claims>(&text).is_err());
    }
}
