//! Fuzz targets of this crate. For fuzzers and the suite `fuzz` only.

mod batch_ids;
mod head;
mod spans;
mod token;

use std::collections::HashSet;

use telemetry_proto::fuzzing::{Target, texts};

use crate::config;
use crate::gate::{KeySet, RemovedRunners, StaticToken};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    spans::TARGET,
    token::TARGET,
    head::TARGET,
    batch_ids::TARGET,
    Target {
        name: "config",
        run: config,
        seeds: || texts(&[include_str!("../../../deploy/relay.example.toml"), CONFIG]),
        words: &[
            "[[tenants]]\n",
            "[[writers]]\n",
            "[limits]\n",
            "[traces]\n",
            "= 0\n",
            "= -1\n",
            "= \"\"\n",
            "= []\n",
            "= nan\n",
            "'''",
        ],
    },
    Target {
        name: "keys",
        run: keys,
        seeds: || texts(&[JWKS, "r7\n# r8\n r9 # gone\n", " s3cret\n"]),
        words: &[
            "\"kty\":", "\"OKP\"", "\"RSA\"", "\"EC\"", "\"kid\":", "\"alg\":", "\"x\":", "\"n\":", "\"e\":", "AQAB",
            "=", "#",
        ],
    },
];

const CONFIG: &str = r#"
default_tenant = "a"
[tls]
certificate = "c.pem"
key = "k.pem"
client_ca = "ca.pem"
[tokens]
issuer = "https://c.example"
[stores.traces]
url = "http://127.0.0.1:10428"
[traces]
sample_ratio = 0.5
[[tenants]]
name = "a"
match = [{ runner = "edge-*" }]
account = "1:2"
[[writers]]
name = "gw"
certificate_uri = "spiffe://prod/writer/gw"
signals = ["traces"]
tenant = "a"
"#;

/// The public key of RFC 8037 appendix A.2.
const JWKS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1","alg":"EdDSA","use":"sig",
    "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// A configuration is read, or every fault of it can be told.
fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(faults) = config::examine_text(text) {
        assert!(!faults.as_slice().is_empty() && !faults.to_string().is_empty(), "refused without a reason");
    }
}

/// Keys that are read are written and read again; a list of removed runners is whole or refused.
fn keys(data: &[u8]) {
    if let Ok(keys) = KeySet::from_jwks(data) {
        let again = KeySet::from_jwks(keys.to_jwks().as_bytes());
        let kids = |keys: &KeySet| keys.iter().map(|(kid, _)| kid.to_owned()).collect::<HashSet<_>>();
        assert_eq!(again.ok().as_ref().map(kids), Some(kids(&keys)));
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(removed) = RemovedRunners::parse(text)
    {
        assert!(removed.iter().all(|runner| text.contains(runner.as_str())));
    }
    if let Ok(token) = StaticToken::new(data) {
        assert!(std::str::from_utf8(data.trim_ascii()).is_ok_and(|text| token.is(text)));
    }
}
