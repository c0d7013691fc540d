//! Every file that a relay runs from, cut in every way: the start is refused, and the message names the file, what is wrong
//! with it, and what to do. While it runs, the files before stay in force.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use telemetry_certs::ClusterAuthority;
use telemetry_certs::testing::Leaf;
use tempfile::TempDir;

use super::*;

const WHOLE: &str = r#"
[listener]
address = "127.0.0.1:0"
reset_key = "reset.key"
[tls]
certificate = "coordinator.pem"
key = "coordinator-key.pem"
client_ca = "roots.pem"
crls = ["crl.pem"]
[tokens]
issuer = "https://coordinator.test"
keys = ["keys.json"]
[issuer]
signing_key = "token-signing-key.pem"
previous_keys = ["previous.json"]
[runners]
removed = "removed.txt"
[identity]
ca_certificate = "ca.pem"
ca_key = "ca-key.pem"
[stores.traces]
url = "http://127.0.0.1:9"
[[writers]]
name = "gateway"
certificate_uri = "spiffe://test/writer/gateway"
token_file = "gateway.token"
signals = ["traces"]
"#;
const JWKS: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// A folder with every file that a configuration can name.
fn whole() -> TempDir {
    let dir = cluster();
    succeed(&["certs", "revoke", "--serial", "0a", "--dir", dir.path().to_str().unwrap()]);
    fs::copy(dir.path().join("ca.pem"), dir.path().join("roots.pem")).unwrap();
    for (name, content) in [
        ("keys.json", JWKS.as_bytes()),
        ("previous.json", JWKS.replace("k1", "k2").as_bytes()),
        ("gateway.token", b"secret\n"),
        ("reset.key", &[7; 64]),
        ("relay.toml", WHOLE.as_bytes()),
    ] {
        fs::write(dir.path().join(name), content).unwrap();
    }
    dir
}

/// What a file becomes.
enum Cut {
    Empty,
    Half,
    Missing,
    /// Even root can't read a folder as a file.
    Unreadable,
    Garbage,
    Other(Vec<u8>),
}

/// A file that is cut until this is dropped.
struct Broken {
    path: PathBuf,
    whole: Vec<u8>,
}

impl Broken {
    fn cut(path: PathBuf, cut: &Cut) -> Self {
        let whole = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        match cut {
            Cut::Missing => {}
            Cut::Unreadable => fs::create_dir(&path).unwrap(),
            Cut::Empty => fs::write(&path, "").unwrap(),
            Cut::Half => fs::write(&path, &whole[..whole.len() / 2]).unwrap(),
            Cut::Garbage => fs::write(&path, b"\xff\xfe\0garbage").unwrap(),
            Cut::Other(content) => fs::write(&path, content).unwrap(),
        }
        Self { path, whole }
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
        let _ = fs::write(&self.path, &self.whole);
    }
}

/// What the start is refused with.
#[track_caller]
fn refused(dir: &Path) -> String {
    // A relay that starts all the same is ended, and is red.
    let config = dir.join("relay.toml");
    let mut serve = Command::new("timeout");
    serve.args(["-k", "1", "30", env!("CARGO_BIN_EXE_telemetry-relay"), "serve", "--config"]).arg(config);
    let output = serve.output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{message}");
    assert!(!message.contains("PRIVATE KEY-----\nM") && !message.contains("secret"), "nothing secret is ever printed");
    message
}

/// PEM of certificates, keys and lists is read by one reader, with these words.
const PEM: [(Cut, &str, &str); 5] = [
    (Cut::Empty, "empty", "write it again"),
    (Cut::Half, "truncated", "copy it again, whole"),
    (Cut::Missing, "no such file", "check the path"),
    (Cut::Unreadable, "cannot be read", "check its permissions"),
    (Cut::Garbage, "not PEM", "convert DER"),
];

#[test]
fn a_cut_in_each_file_is_refused_at_start_with_the_file_the_fault_and_a_remedy() {
    use Cut::{Empty, Garbage, Half, Missing, Unreadable};
    const KEYS: &str = "name a JWKS document that ends in .json";
    const SIGNING: &str = "PKCS#8 private key in PEM";
    const RUNNERS: &str = "one runner's ID a line";
    const TOKEN: &str = "write the token, and nothing else";
    const RESET: &str = "it is made when it is missing";
    const TOML: &str = "name a readable file with --config";
    let dir = whole();
    let path = |name: &str| dir.path().join(name);
    let cases: Vec<(&str, Cut, &str, &str)> = vec![
        ("keys.json", Empty, "is not a JSON object", KEYS),
        ("keys.json", Half, "is not a JSON object", KEYS),
        ("keys.json", Missing, "No such file", KEYS),
        ("keys.json", Unreadable, "Is a directory", KEYS),
        ("keys.json", Garbage, "is not a JSON object", KEYS),
        ("previous.json", Empty, "is not a JSON object", KEYS),
        ("previous.json", Half, "is not a JSON object", KEYS),
        ("previous.json", Missing, "No such file", KEYS),
        ("previous.json", Unreadable, "Is a directory", KEYS),
        ("previous.json", Garbage, "is not a JSON object", KEYS),
        ("token-signing-key.pem", Empty, "no PEM section", SIGNING),
        ("token-signing-key.pem", Half, "no PEM section", SIGNING),
        ("token-signing-key.pem", Missing, "No such file", SIGNING),
        ("token-signing-key.pem", Unreadable, "Is a directory", SIGNING),
        ("token-signing-key.pem", Garbage, "no PEM section", SIGNING),
        // Empty is a list of nobody. Of half a list nobody can say that it is one.
        ("removed.txt", Missing, "No such file", RUNNERS),
        ("removed.txt", Unreadable, "Is a directory", RUNNERS),
        ("removed.txt", Garbage, "can't be read", RUNNERS),
        ("removed.txt", Cut::Other(b"r7\nnot an id\n".to_vec()), "no runner ID on line 2", RUNNERS),
        // Nor of half a token.
        ("gateway.token", Empty, "is empty", TOKEN),
        ("gateway.token", Missing, "No such file", TOKEN),
        ("gateway.token", Unreadable, "Is a directory", TOKEN),
        ("gateway.token", Garbage, "visible ASCII", TOKEN),
        // One that is missing is made.
        ("reset.key", Empty, "holds 0 bytes", RESET),
        ("reset.key", Half, "holds 32 bytes", RESET),
        ("reset.key", Unreadable, "Is a directory", RESET),
        ("reset.key", Garbage, "and not the 64", RESET),
        ("relay.toml", Empty, "[tls]: missing field", "`certificate`"),
        ("relay.toml", Half, "TOML parse error", "write it as TOML 1.0"),
        ("relay.toml", Missing, "No such file", TOML),
        ("relay.toml", Unreadable, "Is a directory", TOML),
        ("relay.toml", Garbage, "valid UTF-8", TOML),
    ];
    let pem = ["coordinator.pem", "coordinator-key.pem", "roots.pem", "crl.pem", "ca.pem", "ca-key.pem"];
    let pem = pem.into_iter().flat_map(|name| PEM.map(|(cut, fault, remedy)| (name, cut, fault, remedy)));
    for (name, cut, fault, remedy) in pem.chain(cases) {
        let _broken = Broken::cut(path(name), &cut);
        let message = refused(dir.path());
        for expected in [name, fault, remedy] {
            assert!(message.contains(expected), "{name}: {expected:?} is not in\n{message}");
        }
    }
}

#[test]
fn files_that_do_not_belong_together_are_refused_at_start_with_the_file_the_fault_and_a_remedy() {
    let (dir, other) = (whole(), whole());
    let read = |name: &str| fs::read(dir.path().join(name)).unwrap();
    let of_other = |name: &str| fs::read(other.path().join(name)).unwrap();
    let (key, runner_key) = (read("coordinator-key.pem"), read("runner-r7-key.pem"));
    let encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMA==\n-----END ENCRYPTED PRIVATE KEY-----\n".to_vec();
    for (name, content, expected) in [
        ("coordinator.pem", key.clone(), "are certificate and key swapped?"),
        ("coordinator.pem", of_other("coordinator.pem"), "not the key of the first certificate"),
        ("coordinator-key.pem", read("coordinator.pem"), "are certificate and key swapped?"),
        ("coordinator-key.pem", runner_key, "not the key of the first certificate"),
        ("coordinator-key.pem", encrypted, "decrypt it with"),
        ("coordinator-key.pem", [key.clone(), key].concat(), "more than one private key"),
        ("roots.pem", read("runner-r7.pem"), "holds the cluster's CA, not a leaf"),
        ("crl.pem", read("ca.pem"), "no revocation list"),
        ("crl.pem", of_other("crl.pem"), "issue a list"),
        ("keys.json", read("ca.pem"), "is not a JSON object"),
        ("token-signing-key.pem", read("ca.pem"), "PKCS#8 private key"),
        ("ca.pem", of_other("ca.pem"), "not the key of the first certificate"),
        ("ca-key.pem", of_other("ca-key.pem"), "not the key of the first certificate"),
    ] {
        let _broken = Broken::cut(dir.path().join(name), &Cut::Other(content));
        let message = refused(dir.path());
        assert!(message.contains(expected), "{name}: {expected:?} is not in\n{message}");
        // Of lists and roots that do not belong together either may be the wrong one.
        assert!(message.contains(name) || message.contains("[tls]"), "{name} is not in\n{message}");
    }
    // An authority of another cluster: what it issues would not get in.
    let _certificate = Broken::cut(dir.path().join("ca.pem"), &Cut::Other(of_other("ca.pem")));
    let _key = Broken::cut(dir.path().join("ca-key.pem"), &Cut::Other(of_other("ca-key.pem")));
    assert!(refused(dir.path()).contains("would not accept what it issues"));
}

fn authority(dir: &TempDir) -> ClusterAuthority {
    ClusterAuthority::load_files(None, dir.path().join("ca.pem"), dir.path().join("ca-key.pem")).unwrap()
}

fn write_coordinator(dir: &TempDir, leaf: &Leaf) {
    let issued = leaf.clone().issued_by(&authority(dir));
    fs::write(dir.path().join("coordinator.pem"), issued.chain_pem).unwrap();
    fs::write(dir.path().join("coordinator-key.pem"), issued.key_pem).unwrap();
}

/// A relay that no runner could connect to would look as if it ran.
#[test]
fn a_certificate_that_has_ended_or_not_begun_is_refused_at_start_and_named_by_check() {
    let dir = whole();
    let now = SystemTime::now();
    let leaf = || Leaf::coordinator("localhost");
    let day = Duration::from_secs(24 * 60 * 60);
    for (leaf, fault, remedy) in [
        (leaf().expired(), "has ended", "telemetry-relay certs renew"),
        (leaf().valid(now + day, now + 2 * day), "is not valid before", "set this machine's clock"),
    ] {
        write_coordinator(&dir, &leaf);
        let message = refused(dir.path());
        let said = relay(&["check", "--config", &file(&dir, "relay.toml")]);
        assert_eq!(said.code, Some(1), "{}", said.out);
        for text in [message, said.out] {
            for expected in ["tls.certificate", "coordinator.pem", fault, remedy] {
                assert!(text.contains(expected), "{expected:?} is not in\n{text}");
            }
        }
    }
}

#[test]
fn an_authority_that_has_ended_is_refused_unless_another_stands_beside_it() {
    let dir = whole();
    let ended = Leaf::blank().common_name("ended").expired().as_authority().issued_by(&authority(&dir)).chain_pem;
    fs::write(dir.path().join("relay.toml"), CONFIG.replace("ca.pem", "roots.pem")).unwrap();
    let roots = fs::read_to_string(dir.path().join("roots.pem")).unwrap();
    fs::write(dir.path().join("roots.pem"), &ended).unwrap();
    let message = refused(dir.path());
    for expected in ["tls.client_ca", "roots.pem", "has ended", "put a new CA beside it"] {
        assert!(message.contains(expected), "{expected:?} is not in\n{message}");
    }
    fs::write(dir.path().join("roots.pem"), ended + &roots).unwrap();
    let said = relay(&["check", "--config", &file(&dir, "relay.toml")]);
    assert!(!said.out.contains("client_ca"), "{}", said.out);
}
