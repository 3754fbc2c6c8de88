//! Every manifest of every file in `charts/nv-ipam/ci` passes a strict dry run of the real API server, and the pods fit the standards
//! that their namespace enforces.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use ipam_e2e::ControlPlane;
use ipam_e2e::chart::{self, helm};
use ipam_e2e::cluster::await_crds;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::rendered::{only, render_with};
use crate::stage::{install_cert_manager_definitions, plane, release};

/// The values files, by name.
fn files() -> Vec<PathBuf> {
    let folder = fs::read_dir(chart::folder().join("ci")).unwrap();
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 10, "{files:?}");
    files
}

/// A kind of the Prometheus operator. Its own definitions are not here: this one knows the fields that the chart writes, and the API
/// server rejects all others.
fn monitoring_kind(kind: &str, spec: &Value) -> Value {
    let singular = kind.to_lowercase();
    let plural = format!("{singular}s");
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let names = json!({"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
        "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": [version]},
    })
}

fn monitoring_definitions() -> [Value; 3] {
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": text});
    let selector = json!({"type": "object", "properties": {"matchLabels": texts}});
    let relabelings = json!({"type": "array", "items": {"type": "object", "properties": {
        "action": text, "sourceLabels": {"type": "array", "items": text}, "regex": text, "targetLabel": text, "replacement": text,
    }}});
    let endpoints = json!({"type": "array", "items": {"type": "object", "properties": {
        "port": text, "interval": text, "scrapeTimeout": text, "relabelings": relabelings, "metricRelabelings": relabelings,
    }}});
    let rule = json!({"type": "object", "required": ["expr"], "properties": {
        "alert": text, "record": text, "expr": text, "for": text, "labels": texts, "annotations": texts,
    }});
    let group = json!({"type": "object", "required": ["name"], "properties": {
        "name": text, "rules": {"type": "array", "items": rule},
    }});
    [
        monitoring_kind("ServiceMonitor", &json!({"selector": selector, "endpoints": endpoints})),
        monitoring_kind("PodMonitor", &json!({"selector": selector, "podMetricsEndpoints": endpoints})),
        monitoring_kind("PrometheusRule", &json!({"groups": {"type": "array", "items": group}})),
    ]
}

/// The shared control plane, with the definitions of all kinds that the chart can render.
pub(crate) fn complete_plane() -> &'static ControlPlane {
    static READY: OnceLock<()> = OnceLock::new();
    READY.get_or_init(|| {
        install_cert_manager_definitions(plane());
        for definition in monitoring_definitions() {
            plane().kubectl().apply(&definition.to_string()).unwrap();
        }
        await_crds(plane()).unwrap();
    });
    plane()
}

/// Creates the namespaces that the objects are in.
fn make_namespaces(text: &str) {
    let documents = serde_yaml::Deserializer::from_str(text).map(|document| Value::deserialize(document).unwrap());
    let documents: Vec<Value> = documents.collect();
    let named = documents.iter().filter_map(|document| document["metadata"]["namespace"].as_str());
    for name in named.collect::<BTreeSet<_>>() {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        plane().kubectl().apply(&namespace.to_string()).unwrap();
    }
}

#[test]
fn manifests_of_every_ci_file_pass_a_strict_dry_run() {
    let plane = complete_plane();
    let chart = chart::folder().display().to_string();
    let apply = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"];
    for file in files() {
        let file = file.display().to_string();
        let text = helm(&["template", "nv-ipam", &chart, "--namespace", "net", "-f", &file]).unwrap();
        make_namespaces(&text);
        let said = plane.kubectl().run_with(&apply, &text).unwrap_or_else(|error| panic!("{file}: {error:#}"));
        let documents = text.lines().filter(|line| line.starts_with("kind: ")).count();
        assert_eq!(said.lines().filter(|line| line.contains("server dry run")).count(), documents, "{file}: {said}");
    }
}

#[test]
fn strict_dry_run_rejects_a_field_that_is_unknown() {
    let plane = complete_plane();
    for (kind, group) in [("ServiceMonitor", "monitoring.coreos.com/v1"), ("Service", "v1")] {
        let spec = json!({"selector": {}, "unknown": 1});
        let object =
            json!({"apiVersion": group, "kind": kind, "metadata": {"name": "x", "namespace": "default"}, "spec": spec});
        let words = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"];
        let said = plane.kubectl().run_with(&words, &object.to_string()).unwrap_err().to_string();
        assert!(said.contains("unknown"), "{said}");
    }
}

#[test]
fn operator_and_uninstall_job_fit_the_restricted_standard() {
    let release = release("restricted", &["webhook.certificates=none"]);
    let (kubectl, namespace) = (plane().kubectl(), release.namespace());
    let label = "pod-security.kubernetes.io/enforce=restricted";
    kubectl.run(&["label", "namespace", namespace, label]).unwrap();
    for words in [&[][..], &["--api-versions", "security.openshift.io/v1"]] {
        let objects = render_with(words);
        let create = |kind: &str| {
            let spec = &only(&objects, kind)["spec"]["template"]["spec"];
            let metadata = json!({"name": kind.to_lowercase(), "namespace": namespace});
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
            kubectl.run_with(&["create", "--dry-run=server", "--validate=strict", "-f", "-"], &pod.to_string())
        };
        create("Deployment").unwrap();
        create("Job").unwrap();
        let said = create("DaemonSet").unwrap_err().to_string();
        assert!(said.contains("PodSecurity") && said.contains("restricted"), "{said}");
    }
}
