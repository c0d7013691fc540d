//! `certs show`: what is in files, in words. Nothing secret is printed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use telemetry_certs::{CertificateSummary, KeySummary, PemItem, RevocationList, inspect_file, split_writer_uri};
use telemetry_relay::admin::ENDS_SOON;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cli::Outcome;
use crate::cli::exit::Failure;

const DAY: u64 = 24 * 60 * 60;

/// One file.
#[derive(Serialize)]
struct Shown {
    file: PathBuf,
    /// Why it can't be used; then there are no items.
    fault: Option<String>,
    items: Vec<Item>,
}

/// One section: what it is, and what there is to say.
#[derive(Serialize)]
struct Item {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    facts: serde_json::Map<String, serde_json::Value>,
    warnings: Vec<String>,
}

pub(super) fn run(files: &[PathBuf], json: bool) -> Outcome {
    let now = SystemTime::now();
    let shown: Vec<Shown> = files.iter().map(|file| show(file, now)).collect();
    if json {
        println!("{}", serde_json::to_string(&shown).map_err(Failure::other)?);
    } else {
        shown.iter().for_each(print);
    }
    let faults: Vec<&str> = shown.iter().filter_map(|file| file.fault.as_deref()).collect();
    if faults.is_empty() { Ok(()) } else { Err(Failure::Other(faults.join("\n"))) }
}

fn show(file: &Path, now: SystemTime) -> Shown {
    let (items, fault) = match inspect_file(file) {
        Ok(items) => (items, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let subjects: Vec<&str> = items
        .iter()
        .filter_map(|item| match item {
            PemItem::Certificate(certificate) => Some(certificate.subject.as_str()),
            _ => None,
        })
        .collect();
    let items = items.iter().map(|item| match item {
        PemItem::Certificate(certificate) => of_certificate(certificate, &subjects, now),
        PemItem::RevocationList(list) => of_list(list, now),
        PemItem::PrivateKey(key) => of_key(key, file),
        PemItem::Other(label) => {
            Item { kind: "other", facts: facts([("label", (*label).into())]), warnings: Vec::new() }
        }
    });
    Shown { file: file.to_owned(), fault, items: items.collect() }
}

fn of_certificate(certificate: &CertificateSummary, in_file: &[&str], now: SystemTime) -> Item {
    let chain = if certificate.issuer == certificate.subject {
        "self-signed".to_owned()
    } else if in_file.contains(&certificate.issuer.as_str()) {
        "its issuer is in this file".to_owned()
    } else {
        "its issuer is not in this file".to_owned()
    };
    let facts = facts([
        ("identity", identity(certificate).into()),
        ("subject", certificate.subject.clone().into()),
        ("issuer", certificate.issuer.clone().into()),
        ("chain", chain.into()),
        ("serial", certificate.serial.clone().into()),
        ("not_before", date(certificate.not_before).into()),
        ("not_after", date(certificate.not_after).into()),
        ("days_left", days_left(certificate.not_after, now).into()),
        ("names", certificate.san.clone().into()),
        ("usages", certificate.usages.clone().into()),
        ("key", certificate.key.kind.clone().into()),
        ("key_sha256", hex(&certificate.key.fingerprint).into()),
        ("sha256", hex(&certificate.fingerprint).into()),
    ]);
    Item { kind: "certificate", facts, warnings: certificate_warnings(certificate, now) }
}

fn identity(certificate: &CertificateSummary) -> String {
    let has = |usage: &str| certificate.usages.iter().any(|found| found == usage);
    match &certificate.identity {
        Some(runner) => format!("runner {runner}"),
        None if certificate.is_authority => "an authority".to_owned(),
        None if has("serverAuth") => "a coordinator".to_owned(),
        None if has("clientAuth") => match writer_of(certificate) {
            Some(writer) => format!("writer {writer}, where a relay's [[writers]] has it"),
            None => "nobody, but for a relay whose [[writers]] has its name".to_owned(),
        },
        None => "nobody that a relay or a runner accepts".to_owned(),
    }
}

fn writer_of(certificate: &CertificateSummary) -> Option<&str> {
    certificate.san.iter().find_map(|name| Some(split_writer_uri(name.strip_prefix("URI:")?)?.1))
}

fn certificate_warnings(certificate: &CertificateSummary, now: SystemTime) -> Vec<String> {
    let mut warnings = Vec::new();
    let life = certificate.not_after.duration_since(certificate.not_before).unwrap_or_default();
    match certificate.not_after.duration_since(now) {
        Err(_) => warnings.push("it has ended; renew it".to_owned()),
        Ok(left) if left < ENDS_SOON.min(life / 4) => warnings.push("it ends soon; renew it".to_owned()),
        Ok(_) => {}
    }
    if certificate.not_before > now {
        warnings.push("it is not valid yet; compare the clocks".to_owned());
    }
    let has = |usage: &str| certificate.usages.iter().any(|found| found == usage);
    if certificate.identity.is_some() && has("serverAuth") {
        warnings.push("a runner's certificate for servers too, as older issuers make them; renew it".to_owned());
    }
    if certificate.identity.is_some() && !certificate.usages.is_empty() && !has("clientAuth") {
        warnings.push("a runner's certificate that is not for clients; no relay accepts it".to_owned());
    }
    warnings
}

fn of_list(list: &RevocationList, now: SystemTime) -> Item {
    let serials: Vec<String> = list.revoked.iter().map(|revoked| revoked.serial.clone()).collect();
    let facts = facts([
        ("issuer", list.issuer.clone().into()),
        ("number", list.number.into()),
        ("this_update", date(list.this_update).into()),
        ("next_update", list.next_update.map(date).into()),
        ("revoked", serials.into()),
    ]);
    let overdue = list.next_update.is_some_and(|next| next < now);
    let warnings = overdue.then(|| "overdue: a relay goes on using it, other programs may not".to_owned());
    Item { kind: "revocation-list", facts, warnings: warnings.into_iter().collect() }
}

fn of_key(key: &KeySummary, file: &Path) -> Item {
    let facts = facts([("key", key.kind.clone().into()), ("key_sha256", hex(&key.fingerprint).into())]);
    let mode = std::fs::metadata(file).map(|metadata| metadata.permissions().mode() & 0o777).unwrap_or_default();
    let open = (mode & 0o077 != 0).then(|| format!("others than its owner may read it (mode {mode:o}); chmod 600"));
    Item { kind: "private-key", facts, warnings: open.into_iter().collect() }
}

fn print(shown: &Shown) {
    println!("{}", shown.file.display());
    for item in &shown.items {
        println!("  {}", item.kind);
        for (name, value) in &item.facts {
            let text = match value {
                serde_json::Value::String(text) => text.clone(),
                serde_json::Value::Array(list) if list.is_empty() => "none".to_owned(),
                serde_json::Value::Array(list) => {
                    list.iter().filter_map(|one| one.as_str()).collect::<Vec<_>>().join(", ")
                }
                serde_json::Value::Null => "none".to_owned(),
                other => other.to_string(),
            };
            println!("    {name:<12} {text}");
        }
        item.warnings.iter().for_each(|warning| println!("    warning      {warning}"));
    }
}

fn facts<const N: usize>(facts: [(&'static str, serde_json::Value); N]) -> serde_json::Map<String, serde_json::Value> {
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn date(time: SystemTime) -> String {
    OffsetDateTime::from(time).format(&Rfc3339).unwrap_or_default()
}

/// Whole days; negative once it has ended.
fn days_left(end: SystemTime, now: SystemTime) -> i64 {
    let days = |distance: Duration| i64::try_from(distance.as_secs() / DAY).unwrap_or(i64::MAX);
    match end.duration_since(now) {
        Ok(left) => days(left),
        Err(over) => -days(over.duration()) - 1,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
