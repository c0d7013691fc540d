//! Lesson 3 (nginx 817, haproxy 2322): whatever a certificate looks like, the identity in it is there.

use telemetry_certs::testing::{Hierarchy, Leaf, TestKey};
use telemetry_certs::{Issued, KeyKind};
use telemetry_proto::{RunnerId, Signal};
use telemetry_rig::outcome;
use telemetry_rig::peers::{PeerClient, PeerRequest, Stack};
use telemetry_rig::rig::{Cluster, Rig};
use telemetry_rig::suite::{Suite, TestResult};

use crate::needs;

const KEYS: [TestKey; 4] = [TestKey::Ed25519, TestKey::P256, TestKey::P384, TestKey::Rsa2048];

pub(crate) fn add(suite: Suite, stack: Stack) -> Suite {
    let name = |test: &str| format!("{stack:?}: lesson_3_{test}").to_lowercase();
    suite
        .test(&name("every_kind_of_key_directly_below_the_root"), needs(stack), move || direct(stack))
        .test(&name("every_kind_of_key_with_an_intermediate"), needs(stack), move || intermediate(stack))
        .test(&name("large_chains"), needs(stack), move || large(stack))
}

async fn direct(stack: Stack) -> TestResult {
    let rig = Rig::builder().start().await?;
    for (number, key) in KEYS.into_iter().enumerate() {
        let (ours, older) = (format!("ours-{number}"), format!("older-{number}"));
        identity_is_there(stack, &rig, &ours, &Leaf::runner(&ours).key(key).issued_by(rig.cluster().authority()))
            .await?;
        let leaf = Leaf::legacy_runner(&older).key(key).dns_name("coordinator.example");
        identity_is_there(stack, &rig, &older, &leaf.issued_by(rig.cluster().authority())).await?;
    }
    Ok(())
}

async fn intermediate(stack: Stack) -> TestResult {
    for kind in [KeyKind::Ed25519, KeyKind::P256] {
        let Hierarchy { root, intermediate } = Hierarchy::new(kind);
        let cluster = Cluster::of(intermediate, &root.certificate_pem())?;
        let rig = Rig::builder().cluster(cluster).start().await?;
        for (number, key) in KEYS.into_iter().enumerate() {
            let id = format!("r-{number}");
            let issued = Leaf::runner(&id).key(key).issued_by(rig.cluster().authority());
            assert_eq!(issued.chain_pem.matches("BEGIN CERTIFICATE").count(), 2, "leaf and intermediate");
            identity_is_there(stack, &rig, &id, &issued).await?;
        }
    }
    Ok(())
}

/// Chains that do not fit into the first packets of a handshake, nor into three times what came before them.
async fn large(stack: Stack) -> TestResult {
    let Hierarchy { root, intermediate } = Hierarchy::new(KeyKind::P256);
    let cluster = Cluster::of(intermediate, &root.certificate_pem())?;
    let rig = Rig::builder().cluster(cluster).start().await?;
    for names in [50, 200, 350] {
        let id = format!("r-{names}");
        let leaf = (0..names).fold(Leaf::legacy_runner(&id).key(TestKey::Rsa2048), |leaf, number| {
            leaf.dns_name(&format!("a-rather-long-name-of-a-host-{number}.example"))
        });
        identity_is_there(stack, &rig, &id, &leaf.issued_by(rig.cluster().authority())).await?;
    }
    Ok(())
}

/// A write with this certificate is delivered, and filed under the runner that the certificate names.
async fn identity_is_there(stack: Stack, rig: &Rig, id: &str, identity: &Issued) -> TestResult {
    let runner = RunnerId::new(id)?;
    let client = PeerClient::start(stack, rig.relay_address(), rig.cluster().root_pem(), identity)?;
    let token = rig.token_for(&runner).sign(rig.signing_key());
    let write = PeerRequest::write(Signal::Metrics, &token, "up 1 1790000000000\n");
    let answer = client.send(write).await.map_err(|error| format!("{id}: {error}"))?;
    answer.expect_delivered()?;
    let samples = rig.metrics_store().samples().await?;
    let filed_under = samples.last().map(|sample| sample.label("miren_runner"));
    outcome::saw(format!("filed under {}", filed_under.unwrap_or_default()));
    assert_eq!(filed_under, Some(id));
    Ok(())
}
