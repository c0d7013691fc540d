//! `token mint` and `token explain`.

use telemetry_relay::issuer::SigningKey;
use tempfile::TempDir;

use super::*;

fn mint(dir: &TempDir, more: &[&str]) -> Said {
    relay(&[&["token", "mint", "--config", &file(dir, "relay.toml"), "--runner", "r7"], more].concat())
}

fn explain(dir: &TempDir, token: &str, more: &[&str]) -> Said {
    let config = file(dir, "relay.toml");
    let said = relay_with_input(&[&["token", "explain", "--config", &config, "-"], more].concat(), token);
    let signature = token.trim().rsplit('.').next().unwrap();
    assert!(signature.len() < 20 || !said.out.contains(signature) && !said.err.contains(signature), "{}", said.out);
    said
}

#[test]
fn a_minted_token_is_all_that_is_printed_and_every_check_of_it_holds() {
    let dir = cluster();
    let minted = mint(&dir, &["--lifetime", "600"]);
    assert_eq!((minted.code, minted.out.lines().count(), minted.err.as_str()), (Some(0), 1, ""));
    let said = explain(&dir, &minted.out, &["--runner", "r7", "--signal", "metrics"]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert!(said.out.contains("every check holds") && said.out.contains("runner-match"), "{}", said.out);
    let json = mint(&dir, &["--signals", "metrics", "--json"]).json();
    assert!(json["token"].is_string() && json["expires_at"].is_string(), "{json}");
}

#[test]
fn an_explanation_says_where_a_token_fails_and_what_to_do() {
    let dir = cluster();
    let token = mint(&dir, &[]).out;
    for (more, reason, check) in [
        (&["--runner", "r8"][..], "token-runner-mismatch", "runner-match"),
        (&["--signal", "logs", "--at", "2001-01-01T00:00:00Z"], "token-not-yet-valid", "already-valid"),
        (&["--at", "4000000000"], "token-expired", "not-expired"),
        (&["--signal", "traces"], "token-signal-not-granted", "signal-granted"),
    ] {
        let said = explain(&dir, &token, &[more, &["--json"]].concat());
        let json = said.json();
        assert_eq!((said.code, json["ok"].as_bool(), json["reason"].as_str()), (Some(1), Some(false), Some(reason)));
        let failed = json["steps"].as_array().unwrap().iter().find(|step| step["outcome"] == "fails").unwrap();
        assert_eq!(failed["check"], check);
        assert!(failed["remedy"].as_str().unwrap().len() > 10, "{failed}");
    }
    let (message, signature) = token.trim().rsplit_once('.').unwrap();
    let forged = format!("{message}.{}", signature.chars().rev().collect::<String>());
    let said = explain(&dir, &forged, &[]);
    assert!(said.code == Some(1) && said.out.contains("FAIL signature"), "{}", said.out);
    std::fs::write(dir.path().join("removed.txt"), "r7\n").unwrap();
    let said = explain(&dir, &token, &["--runner", "r7"]);
    assert!(said.code == Some(1) && said.err.contains("runner-removed"), "{}", said.err);
    let said = mint(&dir, &[]);
    assert!(said.code == Some(1) && said.out.is_empty() && said.err.contains("runner-removed"), "{}", said.err);
}

#[test]
fn an_explanation_needs_no_relay_but_keys_of_any_form() {
    let dir = cluster();
    let token = file(&dir, "token");
    std::fs::write(&token, mint(&dir, &[]).out).unwrap();
    let key = SigningKey::from_pem(&std::fs::read(dir.path().join("token-signing-key.pem")).unwrap()).unwrap();
    let keys = telemetry_relay::gate::KeySet::of(key.kid(), key.public().clone()).unwrap();
    std::fs::write(dir.path().join("jwks.json"), keys.to_jwks()).unwrap();
    let explain = |keys: &str, issuer: &str| {
        relay(&[
            "token",
            "explain",
            "--keys",
            &file(&dir, keys),
            "--issuer",
            issuer,
            "--file",
            &token,
            "--runner",
            "r7",
        ])
    };
    for keys in ["jwks.json", "token-signing-key.pem"] {
        let said = explain(keys, "https://coordinator.test");
        assert_eq!(said.code, Some(0), "{keys}: {}{}", said.out, said.err);
    }
    let other = explain("jwks.json", "https://elsewhere.test");
    assert!(other.code == Some(1) && other.err.contains("token-wrong-issuer"), "{}", other.err);
    let no_keys = explain("coordinator.pem", "https://coordinator.test");
    assert!(no_keys.code == Some(1) && no_keys.err.contains("coordinator.pem"), "{}", no_keys.err);
    assert_eq!(relay(&["token", "explain", "--file", &token]).code, Some(64), "neither configuration nor keys");
    assert_eq!(relay(&["token", "mint", "--runner", "r7"]).code, Some(64));
}
