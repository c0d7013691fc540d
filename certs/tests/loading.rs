//! Every fault of a file is named, with the file and what to do.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up fails")]

use std::fs;
use std::path::{Path, PathBuf};

use telemetry_certs::testing::{self, Leaf, TestKey};
use telemetry_certs::{CRL_LIFETIME, Credentials, CrlRequest, Crls, Issued, LoadError, LoadFault, Origin, Roots};

/// The name of a file, what is in it, and whether this is the fault.
type Case = (&'static str, String, fn(&LoadFault) -> bool);

#[test]
fn credentials_load_from_files_and_from_one_file() {
    let folder = Folder::new();
    for key in [TestKey::Ed25519, TestKey::P256, TestKey::P384, TestKey::Rsa2048] {
        let issued = Leaf::runner("r7").key(key).issued_by(&testing::authority());
        let chain = folder.write("chain.pem", &issued.chain_pem);
        let both = folder.write("both.pem", &(issued.key_pem.clone() + &issued.chain_pem));
        assert!(Credentials::from_files(&chain, folder.write("key.pem", &issued.key_pem)).is_ok(), "{key:?}");
        assert!(Credentials::from_files(&both, &both).is_ok(), "{key:?}");
    }
}

#[test]
fn line_ends_comments_and_missing_last_newlines_do_not_matter() {
    let Issued { chain_pem, key_pem } = runner();
    let chain = format!("subject=CN=runner-r7\n{}", chain_pem.replace('\n', "\r\n"));
    assert!(Credentials::from_pem(chain.as_bytes(), key_pem.trim_end().as_bytes()).is_ok());
}

#[test]
fn each_fault_of_a_chain_is_named() {
    let Issued { chain_pem, key_pem } = runner();
    let half = &chain_pem[..chain_pem.len() / 2];
    let second_half = format!("{chain_pem}{half}");
    let cases: [Case; 8] = [
        ("empty", String::new(), |fault| matches!(fault, LoadFault::Empty)),
        ("blank", " \n\n".to_owned(), |fault| matches!(fault, LoadFault::Empty)),
        ("der", "\u{30}\u{1}".to_owned(), |fault| matches!(fault, LoadFault::NotPem)),
        ("half", half.to_owned(), |fault| matches!(fault, LoadFault::Truncated)),
        ("second-half", second_half, |fault| matches!(fault, LoadFault::Truncated)),
        ("letters", chain_pem.replace("MI", "!!"), |fault| matches!(fault, LoadFault::Damaged)),
        ("key", key_pem.clone(), |fault| matches!(fault, LoadFault::NoCertificate)),
        ("octets", with_octets(&chain_pem), |fault| matches!(fault, LoadFault::BadCertificate { number: 1 })),
    ];
    let folder = Folder::new();
    let key = folder.write("key.pem", &key_pem);
    for (name, content, expected) in cases {
        let chain = folder.write(name, &content);
        let error = Credentials::from_files(&chain, &key).unwrap_err();
        assert!(expected(error.fault()), "{name}: {error}");
        assert_names(&error, &chain);
    }
}

#[test]
fn each_fault_of_a_key_is_named() {
    let Issued { chain_pem, key_pem } = runner();
    let encrypted = key_pem.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let cases: [Case; 7] = [
        ("empty", String::new(), |fault| matches!(fault, LoadFault::Empty)),
        ("half", key_pem[..60].to_owned(), |fault| matches!(fault, LoadFault::Truncated)),
        ("chain", chain_pem.clone(), |fault| matches!(fault, LoadFault::NoPrivateKey)),
        ("encrypted", encrypted, |fault| matches!(fault, LoadFault::EncryptedPrivateKey)),
        ("two", format!("{key_pem}{}", runner().key_pem), |fault| matches!(fault, LoadFault::SeveralPrivateKeys)),
        ("octets", with_octets(&key_pem), |fault| matches!(fault, LoadFault::UnusableKey)),
        ("others", runner().key_pem, |fault| matches!(fault, LoadFault::KeyMismatch { .. })),
    ];
    let folder = Folder::new();
    let chain = folder.write("chain.pem", &chain_pem);
    for (name, content, expected) in cases {
        let key = folder.write(name, &content);
        let error = Credentials::from_files(&chain, &key).unwrap_err();
        assert!(expected(error.fault()), "{name}: {error}");
        assert_names(&error, &key);
        assert!(!error.to_string().contains("MC4C"), "no key in it: {error}");
    }
}

#[test]
fn a_key_that_does_not_match_names_both_files() {
    let folder = Folder::new();
    let chain = folder.write("chain.pem", &runner().chain_pem);
    let key = folder.write("key.pem", &runner().key_pem);
    let text = Credentials::from_files(&chain, &key).unwrap_err().to_string();
    assert!(text.contains(chain.to_str().unwrap()) && text.contains(key.to_str().unwrap()), "{text}");
}

#[test]
fn a_chain_whose_leaf_is_not_first_does_not_match() {
    let issued = testing::Hierarchy::new(telemetry_certs::KeyKind::P256);
    let issued = Leaf::runner("r7").issued_by(&issued.intermediate);
    let (leaf, above) = issued.chain_pem.split_once("-----END CERTIFICATE-----\n").unwrap();
    let reversed = format!("{above}{leaf}-----END CERTIFICATE-----\n");
    let error = Credentials::from_pem(reversed.as_bytes(), issued.key_pem.as_bytes()).unwrap_err();
    assert!(matches!(error.fault(), LoadFault::KeyMismatch { .. }), "{error}");
    assert_eq!(*error.origin(), Origin::Text("private key"));
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = Folder::new();
    let issued = runner();
    let key = folder.write("key.pem", &issued.key_pem);
    let missing = folder.path("missing");
    let error = Credentials::from_files(&missing, &key).unwrap_err();
    assert!(matches!(error.fault(), LoadFault::Missing), "{error}");
    assert_names(&error, &missing);
    // A folder can be opened, but not read.
    let error = Credentials::from_files(folder.path(""), &key).unwrap_err();
    assert!(matches!(error.fault(), LoadFault::Unreadable(_)), "{error}");
}

#[test]
fn no_file_makes_us_read_without_end() {
    let folder = Folder::new();
    let issued = runner();
    let key = folder.write("key.pem", &issued.key_pem);
    let fits = folder.write("fits", &(issued.chain_pem.clone() + &"\n".repeat(1024 * 1024 - issued.chain_pem.len())));
    assert!(Credentials::from_files(fits, &key).is_ok());
    let endless = if cfg!(unix) { PathBuf::from("/dev/zero") } else { folder.write("zero", &"\0".repeat(1 << 21)) };
    let error = Credentials::from_files(endless, &key).unwrap_err();
    assert!(matches!(error.fault(), LoadFault::TooLarge { limit: 1_048_576 }), "{error}");
}

#[test]
fn roots_are_authorities() {
    let folder = Folder::new();
    let (one, two) = (testing::authority(), testing::authority());
    let file = folder.write("roots.pem", &(one.certificate_pem() + &two.certificate_pem()));
    let roots = Roots::from_file(&file).unwrap();
    assert_eq!(roots.certificates(), [one.certificate().clone(), two.certificate().clone()]);

    let file = folder.write("leaf.pem", &(one.certificate_pem() + &runner().chain_pem));
    let error = Roots::from_file(&file).unwrap_err();
    assert!(matches!(error.fault(), LoadFault::NotAuthority { number: 2 }), "{error}");
    assert_names(&error, &file);
    let error = Roots::from_pem(b"").unwrap_err();
    assert!(matches!(error.fault(), LoadFault::Empty), "{error}");
}

#[test]
fn revocation_lists_come_singly_or_together() {
    let folder = Folder::new();
    let authority = testing::authority();
    let request = CrlRequest { revoked: Vec::new(), number: 1, lifetime: CRL_LIFETIME };
    let list = authority.issue_crl(&request).unwrap();
    assert_eq!(Crls::from_file(folder.write("one.pem", &list)).unwrap().ders().len(), 1);
    assert_eq!(Crls::from_file(folder.write("two.pem", &list.repeat(2))).unwrap().read().len(), 2);

    let file = folder.write("ca.pem", &authority.certificate_pem());
    let error = Crls::from_file(&file).unwrap_err();
    assert!(matches!(error.fault(), LoadFault::NoRevocationList), "{error}");
    assert_names(&error, &file);
    let error = Crls::from_pem((list.clone() + &with_octets(&list)).as_bytes()).unwrap_err();
    assert!(matches!(error.fault(), LoadFault::BadRevocationList { number: 2 }), "{error}");
}

fn assert_names(error: &LoadError, path: &Path) {
    assert_eq!(*error.origin(), Origin::File(path.to_owned()));
    let text = error.to_string();
    assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
}

fn runner() -> Issued {
    Leaf::runner("r7").issued_by(&testing::authority())
}

/// PEM of the same kind around octets that are nothing.
fn with_octets(pem: &str) -> String {
    let lines: Vec<_> = pem.lines().collect();
    format!("{}\nAAECAwQF\n{}\n", lines[0], lines[lines.len() - 1])
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }
}
