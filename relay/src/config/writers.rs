//! `[[writers]]`: who else than runners may write.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use telemetry_proto::{Signal, WriterName};

use super::{ConfigFaults, ConfigFile};
use crate::gate::{StaticToken, Writer, WriterCertificate, WriterSet};
use crate::tenancy::TenantName;

/// `[[writers]]`: a writer that is no runner, a gateway for example. It connects as runners do, over mTLS with a certificate of
/// the cluster's CA, and shows its token in the same header; the token stays the same. What it writes is filed under
/// `writer:NAME`, where a runner's ID stands otherwise.
///
/// A certificate that names a runner is never a writer's.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct WriterSection {
    /// Its name: of letters, digits, `.`, `_`, `-`. Required.
    pub name: Option<String>,
    /// The SPIFFE ID among its certificate's SAN URIs, exactly. This, `certificate_common_name` or both are required.
    pub certificate_uri: Option<String>,
    /// Its certificate's common name, exactly. Alone, it is that of a certificate without a SPIFFE ID.
    pub certificate_common_name: Option<String>,
    /// A file with its token: at most 8 KiB of visible ASCII; white space around it does not count. Required.
    pub token_file: Option<PathBuf>,
    /// What it may write: a list of `metrics`, `logs`, `traces`. Required.
    pub signals: Option<Vec<Signal>>,
    /// The name of its tenant. Required where there are `[[tenants]]`; their rules are not for writers.
    pub tenant: Option<String>,
}

impl WriterSection {
    /// What it is called in messages.
    fn place(&self, index: usize) -> String {
        match &self.name {
            Some(name) => format!("writers.{name}"),
            None => format!("writers[{}]", index + 1),
        }
    }

    /// What its certificate is known by, if by anything.
    fn certificate(&self) -> Option<WriterCertificate> {
        let (uri, common_name) = (self.certificate_uri.clone(), self.certificate_common_name.clone());
        (uri.is_some() || common_name.is_some()).then_some(WriterCertificate { uri, common_name })
    }

    fn parsed_name(&self) -> Option<WriterName> {
        self.name.as_ref()?.parse().ok()
    }
}

/// The writers of the file, if they can be.
pub(super) fn writers(file: &ConfigFile, base: &Path, faults: &mut ConfigFaults) -> Option<WriterSet> {
    let sections = file.writers.iter().enumerate();
    let writers: Vec<_> =
        sections.map(|(index, section)| writer(section, &section.place(index), file, base, faults)).collect();
    let set = WriterSet::new(writers.into_iter().collect::<Option<_>>()?);
    faults.take("[[writers]]", "give each a name and a certificate of its own", set)
}

/// Which tenants writers belong to; those that can't be read are left out.
pub(super) fn tenants_of_writers(file: &ConfigFile) -> Vec<(WriterName, TenantName)> {
    let pair =
        |writer: &WriterSection| Some((writer.parsed_name()?, writer.tenant.as_ref()?.parse::<TenantName>().ok()?));
    file.writers.iter().filter_map(pair).collect()
}

fn writer(
    section: &WriterSection,
    at: &str,
    file: &ConfigFile,
    base: &Path,
    faults: &mut ConfigFaults,
) -> Option<Writer> {
    require_all(section, at, !file.tenants.is_empty(), faults);
    let name = section.name.as_ref().and_then(|name| faults.take(format!("{at}.name"), "", name.parse()));
    if let Some(tenant) = &section.tenant {
        faults.take(format!("{at}.tenant"), "", tenant.parse::<TenantName>());
    }
    check_certificate(section, at, faults);
    check_signals(section, at, file, faults);
    let token = section.token_file.as_ref().and_then(|path| {
        const REMEDY: &str = "write the token, and nothing else, into that file";
        let path = base.join(path);
        faults.take(format!("{at}.token_file ({})", path.display()), REMEDY, StaticToken::from_file(&path))
    });
    Some(Writer { name: name?, certificate: section.certificate()?, token: token?, signals: section.signals.clone()? })
}

/// A writer that is described in part would be one that nobody meant.
fn require_all(section: &WriterSection, at: &str, has_tenants: bool, faults: &mut ConfigFaults) {
    let required = [
        ("name", section.name.is_some(), "name it"),
        (
            "certificate_uri",
            section.certificate().is_some(),
            "say whose certificate is its own, by this or by certificate_common_name",
        ),
        ("token_file", section.token_file.is_some(), "name the file with its token"),
        ("signals", section.signals.is_some(), "list what it may write, [\"traces\"] for example"),
        ("tenant", section.tenant.is_some() || !has_tenants, "name one of the [[tenants]]"),
    ];
    for (key, is_there, remedy) in required {
        faults.require(is_there, &format!("{at}.{key}"), "is missing", remedy);
    }
    faults.require(
        section.tenant.is_none() || has_tenants,
        &format!("{at}.tenant"),
        "is given, but there are no tenants",
        "add [[tenants]], or remove it",
    );
}

/// What a runner's certificate has can't be what a writer is known by.
fn check_certificate(section: &WriterSection, at: &str, faults: &mut ConfigFaults) {
    if let Some(uri) = &section.certificate_uri {
        let lower = uri.to_ascii_lowercase();
        faults.require(
            uri.starts_with("spiffe://") && !lower.contains("/runner/"),
            &format!("{at}.certificate_uri"),
            "is no SPIFFE ID of a writer",
            "write it as spiffe://CLUSTER/writer/NAME; only runners have /runner/ in theirs",
        );
    }
    if let Some(name) = &section.certificate_common_name {
        faults.require(
            !name.is_empty() && !name.to_ascii_lowercase().starts_with("runner-"),
            &format!("{at}.certificate_common_name"),
            "is empty, or a runner's",
            "only runners have a common name that begins with runner-",
        );
    }
}

/// A signal is granted to someone only where there is a store for it.
fn check_signals(section: &WriterSection, at: &str, file: &ConfigFile, faults: &mut ConfigFaults) {
    let stores = [&file.stores.metrics, &file.stores.logs, &file.stores.traces];
    for &signal in section.signals.iter().flatten() {
        faults.require(
            stores[signal as usize].is_some(),
            &format!("{at}.signals"),
            &format!("it writes {signal}, but there is no store for {signal}"),
            &format!("add [stores.{signal}] with a url, or remove the signal from the list"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_ENV: &[(&str, &str); 0] = &[];
    const HEAD: &str = r#"
        [tls]
        certificate = "c.pem"
        key = "k.pem"
        client_ca = "ca.pem"
        [tokens]
        issuer = "https://c.example"
        [stores.traces]
        url = "http://127.0.0.1:10428"
    "#;
    const GOOD: &str = r#"
        [[writers]]
        name = "gateway"
        certificate_uri = "spiffe://prod/writer/gateway"
        token_file = "gateway.token"
        signals = ["traces"]
    "#;

    fn read(text: &str) -> (Option<WriterSet>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("gateway.token"), " s3cret\n").unwrap();
        std::fs::write(folder.path().join("empty.token"), " \n").unwrap();
        let file = ConfigFile::parse(&format!("{HEAD}{text}"), NO_ENV).unwrap();
        let mut faults = ConfigFaults::default();
        let set = writers(&file, folder.path(), &mut faults);
        let fault = |fault: &super::super::ConfigFault| {
            let at = fault.at.replace(&format!("{}/", folder.path().display()), "");
            format!("{at}: {}", fault.problem)
        };
        (set, faults.as_slice().iter().map(fault).collect())
    }

    #[test]
    fn a_writer_is_read_with_its_certificate_its_token_and_its_signals() {
        let (set, faults) = read(GOOD);
        assert_eq!(faults, [""; 0]);
        let set = set.unwrap();
        let [writer] = set.as_slice() else { panic!("one writer") };
        assert_eq!((writer.name.as_str(), &writer.signals[..]), ("gateway", &[Signal::Traces][..]));
        assert_eq!(writer.certificate.uri.as_deref(), Some("spiffe://prod/writer/gateway"));
        assert!(writer.token.is("s3cret"));
        assert!(read("").0.unwrap().as_slice().is_empty());
    }

    #[test]
    fn a_writer_in_part_is_refused_with_the_name_of_what_is_missing() {
        for (key, at) in [
            ("name", "writers[1].name"),
            ("certificate_uri", "writers.gateway.certificate_uri"),
            ("token_file", "writers.gateway.token_file"),
            ("signals", "writers.gateway.signals"),
        ] {
            let text: String =
                GOOD.lines().filter(|line| !line.contains(&format!("{key} ="))).flat_map(|line| [line, "\n"]).collect();
            assert_eq!(read(&text).1, [format!("{at}: is missing")]);
        }
        let at =
            ["name", "certificate_uri", "token_file", "signals"].map(|key| format!("writers[1].{key}: is missing"));
        assert_eq!(read("[[writers]]").1, at);
        let tenants = "[[tenants]]\nname = 'a'\naccount = '1'\n";
        assert_eq!(read(&format!("{GOOD}{tenants}")).1, ["writers.gateway.tenant: is missing"]);
        let alone = format!("{GOOD}\ntenant = 'a'");
        assert_eq!(read(&alone).1, ["writers.gateway.tenant: is given, but there are no tenants"]);
    }

    #[test]
    fn every_fault_is_named() {
        let text = r#"
            [[writers]]
            name = "a b"
            certificate_uri = "https://prod/writer/a"
            certificate_common_name = "Runner-7"
            token_file = "empty.token"
            signals = ["traces", "logs"]
            [[writers]]
            name = "b"
            certificate_uri = "spiffe://prod/runner/r7"
            token_file = "nowhere"
            signals = ["traces"]
        "#;
        let (set, faults) = read(text);
        assert!(set.is_none());
        assert_eq!(
            faults,
            [
                "writers.a b.name: not a writer's name: expected 1 to 128 of A-Z a-z 0-9 . _ - and a letter or digit first",
                "writers.a b.certificate_uri: is no SPIFFE ID of a writer",
                "writers.a b.certificate_common_name: is empty, or a runner's",
                "writers.a b.signals: it writes logs, but there is no store for logs",
                "writers.a b.token_file (empty.token): is empty",
                "writers.b.certificate_uri: is no SPIFFE ID of a writer",
                "writers.b.token_file (nowhere): can't be read: No such file or directory (os error 2)",
            ]
        );
        let twice = format!("{GOOD}{GOOD}");
        assert_eq!(read(&twice).1, ["[[writers]]: two writers are called gateway"]);
    }

    #[test]
    fn unknown_keys_of_a_writer_are_refused() {
        let faults = ConfigFile::parse(&format!("{HEAD}[[writers]]\ntoken = 'x'"), NO_ENV).unwrap_err();
        assert_eq!(faults.as_slice()[0].at, "writers[1].token");
    }
}
