//! Tokens made byte by byte: a JSON library would not let one say what they say.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Map, Value};
use telemetry_proto::{Reason, Signal};
use telemetry_relay::issuer::SigningKey;
use telemetry_rig::outcome;
use telemetry_rig::raw::RawClient;
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::{Suite, TestResult};

use crate::NEEDS;
use crate::arena::{ATTACKER, LINE, withstand};

/// A token that must be refused.
pub(crate) struct Forgery {
    pub(crate) name: &'static str,
    pub(crate) token: fn(&Rig) -> String,
    pub(crate) reason: Reason,
}

/// Adds every forgery of a table.
pub(crate) fn add_forgeries(suite: Suite, room: &str, forgeries: impl IntoIterator<Item = Forgery>) -> Suite {
    forgeries.into_iter().fold(suite, |suite, Forgery { name, token, reason }| {
        suite.expecting(&format!("{room}: {name}"), format!("refused: {reason}"), NEEDS, move || {
            withstand(async move |rig| {
                let client = rig.raw_client(ATTACKER).await?;
                refused(&client, &token(rig), reason).await?;
                nothing_was_stored_but_of_honest_runners(rig)
            })
        })
    })
}

/// A write with this token is refused for this reason.
pub(crate) async fn refused(client: &RawClient, token: &str, reason: Reason) -> TestResult {
    let answer = client.write(Signal::Metrics).token(token).body(LINE).send().await?;
    outcome::saw(answer.to_string());
    Ok(answer.expect_refusal(reason)?)
}

pub(crate) fn nothing_was_stored_but_of_honest_runners(rig: &Rig) -> TestResult {
    let samples = rig.built_in_store().samples();
    let foreign = samples.iter().find(|sample| sample.label("miren_runner") != "r2");
    foreign.map_or(Ok(()), |sample| Err(format!("{sample:?} was stored").into()))
}

/// The text of a good token's header.
pub(crate) fn header(rig: &Rig) -> String {
    part(&rig.token(ATTACKER), 0)
}

/// The text of a good token's claims.
pub(crate) fn claims(rig: &Rig) -> String {
    part(&rig.token(ATTACKER), 1)
}

/// A JSON object with this raw text as the value of a member.
pub(crate) fn with(object: &str, name: &str, raw: &str) -> String {
    let mut members: Map<String, Value> = serde_json::from_str(object).unwrap_or_default();
    members.remove(name);
    also(&Value::Object(members).to_string(), name, raw)
}

/// The same, beside what the member may be already.
pub(crate) fn also(object: &str, name: &str, raw: &str) -> String {
    format!("{},\"{name}\":{raw}}}", object.trim_end().trim_end_matches('}'))
}

/// Signs header and claims, whatever they are, with the key of the issuer.
pub(crate) fn sign(rig: &Rig, header: &str, claims: impl AsRef<[u8]>) -> String {
    sign_with(rig.signing_key(), header, claims)
}

/// Signs with any key that signs with EdDSA.
pub(crate) fn sign_with(key: &SigningKey, header: &str, claims: impl AsRef<[u8]>) -> String {
    let message = message(header, claims);
    let key = EncodingKey::from_ed_pem(key.to_pem().unwrap_or_default().as_bytes());
    let signature = key.and_then(|key| jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::EdDSA));
    format!("{message}.{}", signature.unwrap_or_default())
}

/// Signs with a secret, as HS256 does.
pub(crate) fn sign_with_secret(secret: &[u8], header: &str, claims: &str) -> String {
    let message = message(header, claims);
    let key = EncodingKey::from_secret(secret);
    let signature = key.and_then(|key| jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256));
    format!("{message}.{}", signature.unwrap_or_default())
}

/// The two parts that are signed.
pub(crate) fn message(header: &str, claims: impl AsRef<[u8]>) -> String {
    format!("{}.{}", BASE64_URL_SAFE_NO_PAD.encode(header), BASE64_URL_SAFE_NO_PAD.encode(claims))
}

fn part(token: &str, index: usize) -> String {
    let part = token.split('.').nth(index).unwrap_or_default();
    String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(part).unwrap_or_default()).unwrap_or_default()
}
