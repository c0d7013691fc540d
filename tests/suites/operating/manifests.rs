//! The Kubernetes manifests.

use std::path::Path;
use std::process::Command;

use saphyr::{LoadableYamlNode as _, Scalar, Yaml};
use serde_json::{Map, Value};
use telemetry_relay::config::ConfigFile;
use telemetry_rig::program::Program;
use telemetry_rig::suite::TestResult;

use super::{file, read};

const RELAY: &str = "deploy/kubernetes/relay.yaml";
const NO_ENV: [(&str, &str); 0] = [];

pub(crate) async fn the_manifests_keep_the_stores_to_the_relay() -> TestResult {
    let manifests = manifests()?;
    let stateful_set = of_kind(&manifests, "StatefulSet");
    let labels = &stateful_set["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&stateful_set["spec"]["selector"]["matchLabels"], labels);
    let pod = &stateful_set["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert!(pod.get("hostNetwork").is_none());

    let containers = list(&pod["containers"]);
    assert_eq!(
        containers.iter().map(|c| text(&c["name"])).collect::<Vec<_>>(),
        ["relay", "victoria-metrics", "victoria-logs"]
    );
    for container in containers {
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], false, "{container}");
        assert_eq!(security["readOnlyRootFilesystem"], true, "{container}");
        assert_eq!(list(&security["capabilities"]["drop"]), ["ALL"], "{container}");
        assert!(container["resources"]["limits"]["memory"].is_string(), "{container}");
        // Each volume exists.
        let volumes: Vec<_> = list(&pod["volumes"]).iter().map(|volume| &volume["name"]).collect();
        let claims = list(&stateful_set["spec"]["volumeClaimTemplates"]).iter().map(|claim| &claim["metadata"]["name"]);
        let volumes: Vec<_> = volumes.into_iter().chain(claims).collect();
        for mount in list(&container["volumeMounts"]) {
            assert!(volumes.contains(&&mount["name"]), "{mount}");
        }
        if text(&container["name"]) != "relay" {
            let listens = list(&container["args"]).iter().map(text).find(|arg| arg.starts_with("-httpListenAddr="));
            assert!(listens.is_some_and(|listens| listens.contains("127.0.0.1:")), "{container}");
            assert!(container.get("ports").is_none(), "{container}");
        }
    }

    let policy = &of_kind(&manifests, "NetworkPolicy")["spec"];
    assert_eq!(&policy["podSelector"]["matchLabels"], labels);
    assert_eq!(list(&policy["policyTypes"]), ["Ingress", "Egress"]);
    assert_eq!(list(&policy["egress"]).len(), 0);
    let ingress = list(&policy["ingress"]);
    assert_eq!(ingress.len(), 1);
    let allowed: Vec<_> =
        list(&ingress[0]["ports"]).iter().map(|port| (text(&port["protocol"]), &port["port"])).collect();
    assert_eq!(allowed, [("UDP", &Value::from(8443))]);

    let service = &of_kind(&manifests, "Service")["spec"];
    assert_eq!(&service["selector"], labels);
    for port in list(&service["ports"]) {
        let target = list(&containers[0]["ports"]).iter().find(|open| open["name"] == port["targetPort"]);
        assert_eq!(target.map(|open| &open["protocol"]), Some(&port["protocol"]), "{port}");
    }
    for manifest in &manifests {
        assert!(manifest["apiVersion"].is_string() && manifest["metadata"]["name"].is_string(), "{manifest}");
        assert!(manifest["kind"] == "Namespace" || manifest["metadata"]["namespace"] == "telemetry", "{manifest}");
    }
    Ok(())
}

pub(crate) async fn the_relay_of_the_manifests_is_configured_soundly() -> TestResult {
    let manifests = manifests()?;
    let config = text(&of_kind(&manifests, "ConfigMap")["data"]["relay.toml"]);
    let file = ConfigFile::parse(config, &NO_ENV).map_err(|faults| faults.to_string())?;
    let metrics = file.stores.metrics.ok_or("no store for metrics")?;
    let logs = file.stores.logs.ok_or("no store for logs")?;
    assert_eq!((metrics.url.as_str(), logs.url.as_str()), ("http://127.0.0.1:8428", "http://127.0.0.1:9428"));
    assert!(!metrics.allow_remote && !logs.allow_remote);

    let stateful_set = of_kind(&manifests, "StatefulSet");
    let pod = &stateful_set["spec"]["template"]["spec"];
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap_or_default();
    assert!(grace >= 2 * file.listener.drain_seconds + 5, "the pod is killed while it drains, or writes its batch IDs");
    // What the configuration names is below what is mounted.
    let relay = &list(&pod["containers"])[0];
    let mounted: Vec<_> = list(&relay["volumeMounts"]).iter().map(|mount| text(&mount["mountPath"])).collect();
    assert!(file.state.folder.is_some(), "batch IDs do not outlive a stop");
    let kept = file.listener.reset_key.iter().chain(&file.state.folder);
    for path in [&file.tls.certificate, &file.tls.key, &file.tls.client_ca].into_iter().chain(kept) {
        assert!(mounted.iter().any(|folder| path.starts_with(folder)), "{} is not mounted", path.display());
    }
    Ok(())
}

/// By Kubernetes' own types, that know no other fields; and whoever is named is there.
pub(crate) async fn the_manifests_are_valid_and_their_names_lead_somewhere() -> TestResult {
    let checker = Program::CheckManifests.find()?;
    let faults = |path: &Path| -> Result<String, std::io::Error> {
        let output = Command::new(&checker).arg(path).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.success(), said.is_empty(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        Ok(said)
    };
    assert_eq!(faults(&file(RELAY))?, "");
    // And it would say so if they were not.
    let (folder, whole) = (tempfile::tempdir()?, read(RELAY)?);
    let spoilt = folder.path().join("spoilt.yaml");
    for (good, bad, expected) in [
        ("serviceName: ", "servicename: ", "unknown field \"spec.servicename\""),
        ("periodSeconds: 1\n", "periodSeconds: often\n", "document 6"),
        ("apiVersion: apps/v1", "apiVersion: apps/v1beta9", "no kind \"StatefulSet\""),
        ("targetPort: quic", "targetPort: tcp", "has no port tcp over UDP"),
        ("port: 8443\n  # It", "port: 8444\n  # It", "has no port 8444 over UDP"),
        ("path: /healthz, port: admin", "path: /healthz, port: metrics", "is probed at port metrics"),
        ("selector:\n    app.kubernetes.io/name: t", "selector:\n    app.kubernetes.io/name: x", "matches no pod"),
        (
            "podSelector:\n    matchLabels:\n      app",
            "podSelector:\n    matchLabels:\n      xpp",
            "podSelector matches no pod",
        ),
        (
            "matchLabels:\n      app.kubernetes.io/name: telemetry-relay\n  template",
            "matchLabels:\n      app.kubernetes.io/name: relay\n  template",
            "does not match the labels",
        ),
        ("{ name: pki, mountPath", "{ name: keys, mountPath", "mounts keys, which is no volume"),
        ("{ key: scrape.yml,", "{ key: scrape.yaml,", "has no scrape.yaml"),
        ("serviceAccountName: telemetry-relay", "serviceAccountName: relay", "no ServiceAccount relay"),
    ] {
        assert!(whole.contains(good), "{good:?} is not in the manifests any more");
        std::fs::write(&spoilt, whole.replacen(good, bad, 1))?;
        let said = faults(&spoilt)?;
        assert!(said.contains(expected), "{bad}: {expected:?} is not in\n{said}");
    }
    Ok(())
}

fn manifests() -> Result<Vec<Value>, String> {
    let text = read(RELAY)?;
    let documents = Yaml::load_from_str(&text).map_err(|error| error.to_string())?;
    Ok(documents.iter().map(json).collect())
}

fn json(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Value(Scalar::Boolean(value)) => (*value).into(),
        Yaml::Value(Scalar::Integer(value)) => (*value).into(),
        Yaml::Value(Scalar::String(value)) => value.to_string().into(),
        Yaml::Sequence(values) => values.iter().map(json).collect(),
        Yaml::Mapping(entries) => {
            let entry =
                |(key, value): (&Yaml<'_>, &Yaml<'_>)| (key.as_str().unwrap_or_default().to_owned(), json(value));
            Value::Object(entries.iter().map(entry).collect::<Map<_, _>>())
        }
        _ => Value::Null,
    }
}

fn of_kind<'a>(manifests: &'a [Value], kind: &str) -> &'a Value {
    manifests.iter().find(|manifest| manifest["kind"] == kind).unwrap_or(&Value::Null)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
