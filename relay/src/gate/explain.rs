//! A token explained to a person: every check that the verifier makes, in its order, with what was expected and found.
//!
//! Whether a check holds is asked of the verifier's own code; only the words are made here. What is shown of a token is its
//! header and its claims, piece by piece: never the signature, and so never a token that someone could use.

mod words;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde_json::Value;
use telemetry_proto::claims::{ClaimCheck, Claims, Expectations, VerifiedClaims};
use telemetry_proto::{Reason, RunnerId, Signal};

use super::authenticate::{FormCheck, authenticate};
use super::keys::KeySet;
use super::principal::{check_runner, check_signal};
use super::registry::RunnerRegistry;
use super::unique_claims::UniqueClaims;

/// What a token is checked against.
pub struct Question<'a> {
    /// The keys that may have signed it.
    pub keys: &'a KeySet,
    /// What its claims are checked against.
    pub expected: &'a Expectations,
    /// When it is shown, in seconds since 1970.
    pub now: u64,
    /// The runner whose certificate it is shown with, if that matters.
    pub runner: Option<&'a RunnerId>,
    /// The signal that it is shown for, if that matters.
    pub signal: Option<Signal>,
    /// Who knows which runners are registered, if that matters; asked about `runner`.
    pub registry: Option<&'a dyn RunnerRegistry>,
}

/// All that was checked of a token.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// Whether every check holds.
    pub ok: bool,
    /// What a relay says to the token: the reason of the first check that fails.
    #[serde(serialize_with = "code")]
    pub reason: Option<Reason>,
    /// Every check, in order.
    pub steps: Vec<Step>,
}

/// One check.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Its name.
    pub check: &'static str,
    /// What must be there.
    pub expected: String,
    /// What is there.
    pub found: String,
    /// What became of it.
    pub outcome: Outcome,
    /// What to do, if it fails.
    pub remedy: Option<&'static str>,
}

/// What became of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It holds.
    Holds,
    /// It does not. Of several, the first is what a relay tells.
    Fails,
    /// It could not be made, because of one before.
    NotReached,
}

/// Walks a token through every check. Claims are checked even if the signature is no good, so that all that is wrong is
/// said at once; such claims prove nothing.
#[must_use]
pub fn explain(token: &str, question: &Question<'_>) -> Explanation {
    let shown = Shown::of(token);
    let mut walk = Walk { steps: Vec::new(), first: None };
    if let (Some(registry), Some(runner)) = (question.registry, question.runner) {
        let removed = if registry.is_registered(runner) { Ok(()) } else { Err(Reason::RunnerRemoved) };
        let found = if removed.is_ok() { format!("{runner} is registered") } else { format!("{runner} was removed") };
        walk.step("runner-registered", "a runner that was not removed".to_owned(), found, Some(removed));
    }
    let authenticated = walk_form(token, question.keys, &shown, &mut walk);
    let claims = authenticated.or(shown.claims.clone());
    let verified = claims.as_ref().and_then(|claims| claims.verify(question.expected, question.now).ok());
    for check in ClaimCheck::ALL {
        let (name, expected, found) = words::claim(check, claims.as_ref(), question);
        let outcome = claims.as_ref().map(|claims| claims.check(check, question.expected, question.now));
        walk.step(name, expected, found, outcome);
    }
    walk_binding(claims.as_ref(), verified.as_ref(), question, &mut walk);
    Explanation { ok: walk.first.is_none(), reason: walk.first, steps: walk.steps }
}

/// Form and signature. The claims, if both are good.
fn walk_form(token: &str, keys: &KeySet, shown: &Shown, walk: &mut Walk) -> Option<Claims> {
    let mut outcomes = Vec::new();
    let authenticated = authenticate(token, keys, &mut |check, outcome| outcomes.push((check, outcome)));
    for check in FormCheck::ALL {
        let outcome = outcomes.iter().find(|(made, _)| *made == check).map(|(_, outcome)| *outcome);
        let (name, expected, found) = words::form(check, outcome, token, shown, keys);
        walk.step(name, expected, found, outcome);
    }
    authenticated.ok()
}

/// Whether it may be shown by this runner, for this signal.
fn walk_binding(claims: Option<&Claims>, verified: Option<&VerifiedClaims>, question: &Question<'_>, walk: &mut Walk) {
    if let Some(runner) = question.runner {
        let found = words::named_runner(claims, question.expected);
        let outcome = verified.map(|claims| check_runner(claims, runner));
        walk.step("runner-match", format!("minted for {runner}, as the certificate says"), found, outcome);
    }
    if let Some(signal) = question.signal {
        let outcome = verified.map(|claims| check_signal(claims, signal));
        walk.step("signal-granted", format!("grants {signal}"), words::granted(claims), outcome);
    }
}

struct Walk {
    steps: Vec<Step>,
    first: Option<Reason>,
}

impl Walk {
    fn step(&mut self, check: &'static str, expected: String, found: String, outcome: Option<Result<(), Reason>>) {
        let failed = outcome.and_then(Result::err);
        self.first = self.first.or(failed);
        let outcome = match outcome {
            None => Outcome::NotReached,
            Some(Ok(())) => Outcome::Holds,
            Some(Err(_)) => Outcome::Fails,
        };
        let remedy = failed.map(|reason| words::remedy(reason, check));
        self.steps.push(Step { check, expected, found, outcome, remedy });
    }
}

/// What can be read of a token, whether or not it is good: for the words only.
struct Shown {
    header: Option<Value>,
    claims: Option<Claims>,
    /// Why there are no claims.
    trouble: String,
}

impl Shown {
    fn of(token: &str) -> Self {
        let mut segments = token.split('.');
        let header = segments.next().and_then(decode).and_then(|json| serde_json::from_slice(&json).ok());
        let claims = match segments.next().and_then(decode) {
            None => Err("the second segment is no base64url".to_owned()),
            Some(json) => serde_json::from_slice::<UniqueClaims>(&json).map_err(|error| error.to_string()),
        };
        let (claims, trouble) = match claims {
            Ok(claims) => (Some(claims.0), String::new()),
            Err(trouble) => (None, trouble),
        };
        Self { header, claims, trouble }
    }
}

fn decode(segment: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(segment).ok()
}

#[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
fn code<S: serde::Serializer>(reason: &Option<Reason>, serializer: S) -> Result<S::Ok, S::Error> {
    reason.map(Reason::as_str).serialize(serializer)
}

#[cfg(test)]
mod tests;
