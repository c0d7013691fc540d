//! `certs show`, `renew` and `revoke`.

use std::os::unix::fs::PermissionsExt;

use telemetry_certs::{Credentials, Crls, PeerIdentity};

use super::*;

fn credentials(dir: &TempDir, name: &str) -> Credentials {
    Credentials::from_files(file(dir, &format!("{name}.pem")), file(dir, &format!("{name}-key.pem"))).unwrap()
}

#[test]
fn show_says_whose_certificate_it_is_and_prints_nothing_secret() {
    let dir = cluster();
    let all = ["runner-r7.pem", "coordinator.pem", "ca.pem", "runner-r7-key.pem"].map(|name| file(&dir, name));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let text = succeed(&[&["certs", "show"], all.as_slice()].concat());
    for expected in
        ["runner r7", "a coordinator", "an authority", "clientAuth", "ECDSA P-256", "private-key", "self-signed"]
    {
        assert!(text.out.contains(expected), "{expected:?} is not in\n{}", text.out);
    }
    let json = succeed(&[&["certs", "show", "--json"], all.as_slice()].concat());
    let secret = std::fs::read_to_string(file(&dir, "runner-r7-key.pem")).unwrap();
    for line in secret.lines().filter(|line| !line.contains("-----")) {
        assert!(!text.out.contains(line) && !json.out.contains(line), "a line of the key is printed");
    }
    let shown = json.json();
    assert_eq!(
        shown[0]["items"][0]["key_sha256"], shown[3]["items"][0]["key_sha256"],
        "certificate and key belong together"
    );
    assert_eq!(shown[0]["items"][0]["days_left"], 29);
}

#[test]
fn show_warns_of_what_ends_and_of_what_others_can_read_and_names_what_is_no_pem() {
    let dir = cluster();
    let path = dir.path().to_str().unwrap();
    succeed(&["certs", "issue", "runner", "r8", "--dir", path, "--days", "1"]);
    let key = file(&dir, "runner-r8-key.pem");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let json = succeed(&["certs", "show", "--json", &key]).json();
    assert!(json[0]["items"][0]["warnings"][0].as_str().unwrap().contains("chmod 600"), "{json}");
    let broken = file(&dir, "removed.txt");
    let said = relay(&["certs", "show", "--json", &broken, &file(&dir, "ca.pem")]);
    let json = said.json();
    assert!(said.code == Some(1) && json[0]["fault"].as_str().unwrap().contains("removed.txt: empty"), "{json}");
    assert_eq!(json[1]["fault"], serde_json::Value::Null, "the other file is shown all the same");
}

#[test]
fn renew_keeps_the_holder_and_the_key_unless_told_otherwise() {
    let dir = cluster();
    let path = dir.path().to_str().unwrap();
    succeed(&["certs", "issue", "writer", "edge", "--dir", path]);
    for name in ["runner-r7", "coordinator", "writer-edge"] {
        let certificate = file(&dir, &format!("{name}.pem"));
        let key = || std::fs::read_to_string(file(&dir, &format!("{name}-key.pem"))).unwrap();
        let (before, key_before) = (credentials(&dir, name), key());
        succeed(&["certs", "renew", &certificate, "--dir", path, "--days", "7"]);
        let same_key = credentials(&dir, name);
        assert!(before.leaf() != same_key.leaf() && key() == key_before, "{name}");
        succeed(&["certs", "renew", &certificate, "--dir", path, "--new-key", "--key", "ed25519"]);
        let new_key = credentials(&dir, name);
        assert!(new_key.leaf() != same_key.leaf() && key() != key_before, "{name}");
        let mode = std::fs::metadata(file(&dir, &format!("{name}-key.pem"))).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
        let names =
            |one: &Credentials| telemetry_certs::describe(one.leaf()).map(|s| (s.subject, s.san, s.usages)).unwrap();
        assert_eq!(names(&before), names(&new_key), "{name}");
    }
    let said = relay(&["certs", "renew", &file(&dir, "ca.pem"), "--dir", path]);
    assert!(
        said.code == Some(1) && said.err.contains("neither a runner's nor a coordinator's nor a writer's"),
        "{}",
        said.err
    );
}

#[test]
fn a_writers_certificate_is_issued_with_what_the_configuration_must_say_of_it() {
    let dir = cluster();
    let path = dir.path().to_str().unwrap();
    let said = succeed(&["certs", "issue", "writer", "edge", "--dir", path, "--days", "7"]);
    let uri = "spiffe://test/writer/edge";
    assert!(said.out.contains(&format!("certificate_uri = \"{uri}\"")), "{}", said.out);
    let identity = telemetry_certs::WriterIdentity::from_leaf(credentials(&dir, "writer-edge").leaf()).unwrap();
    assert_eq!((identity.uri.as_deref(), identity.common_name.as_deref()), (Some(uri), Some("writer-edge")));
    let mode = std::fs::metadata(file(&dir, "writer-edge-key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let shown = succeed(&["certs", "show", &file(&dir, "writer-edge.pem")]);
    assert!(shown.out.contains("writer edge"), "{}", shown.out);
    let again = relay(&["certs", "issue", "writer", "edge", "--dir", path]);
    assert!(again.code == Some(1) && again.err.contains("it is left as it was"), "{}", again.err);
    assert_eq!(relay(&["certs", "issue", "writer", "no/name", "--dir", path]).code, Some(64));
    // The relay takes it as it was said.
    let writer = format!(
        "[[writers]]\nname = \"edge\"\ncertificate_uri = \"{uri}\"\ntoken_file = \"edge.token\"\nsignals = [\"metrics\"]\n"
    );
    std::fs::write(file(&dir, "edge.token"), "secret").unwrap();
    std::fs::write(file(&dir, "relay.toml"), CONFIG.to_owned() + &writer).unwrap();
    let checked = relay(&["check", "--config", &file(&dir, "relay.toml")]);
    assert!(!checked.out.contains("writers"), "{}", checked.out);
}

#[test]
fn revoke_adds_to_the_list_and_its_number_grows() {
    let dir = cluster();
    let path = dir.path().to_str().unwrap();
    succeed(&["certs", "issue", "runner", "r8", "--dir", path]);
    let serial = |name: &str| PeerIdentity::from_leaf(credentials(&dir, name).leaf()).unwrap().serial;
    let list = || Crls::from_file(file(&dir, "crl.pem")).unwrap().read().remove(0);
    let serials = || list().revoked.into_iter().map(|revoked| revoked.serial).collect::<Vec<_>>();
    succeed(&["certs", "revoke", &file(&dir, "runner-r7.pem"), "--dir", path]);
    assert_eq!((list().number, serials()), (Some(1), vec![serial("runner-r7")]));
    succeed(&["certs", "revoke", "--serial", &serial("runner-r8").to_uppercase(), "--dir", path]);
    assert_eq!((list().number, serials()), (Some(2), vec![serial("runner-r7"), serial("runner-r8")]));
    let again = succeed(&["certs", "revoke", &file(&dir, "runner-r7.pem"), "--dir", path]);
    assert!(again.out.contains("revoked already") && list().number == Some(2), "{}", again.out);
    let other = cluster();
    let foreign = relay(&["certs", "revoke", &file(&other, "runner-r7.pem"), "--dir", path]);
    assert!(foreign.code == Some(1) && foreign.err.contains("only that authority can revoke it"), "{}", foreign.err);
    let others_list = file(&dir, "crl.pem");
    let other_dir = other.path().to_str().unwrap();
    let said = relay(&["certs", "revoke", "--serial", "0a", "--dir", other_dir, "--crl", &others_list]);
    assert!(said.code == Some(1) && said.err.contains("another authority's list"), "{}", said.err);
    let bad = relay(&["certs", "revoke", "--serial", "xyz", "--dir", path]);
    assert!(bad.code == Some(1) && bad.err.contains("not a serial number"), "{}", bad.err);
    assert_eq!(serials().len(), 2);
}
