//! The overlays in `deploy/`, for users of kustomize: they are rendered from the chart, and the API server takes them.

use std::fs;
use std::path::PathBuf;

use ipam_e2e::binaries;
use serde::Deserialize as _;
use serde_json::Value;

use crate::dry_run::complete_plane;
use crate::rendered::render_with;

/// The overlays, and the certificates of each.
const OVERLAYS: [(&str, &str); 4] = [
    ("certmanager", "webhook.certificates=cert-manager"),
    ("no-webhook", "webhook.certificates=none"),
    ("openshift", "webhook.certificates=openshift"),
    ("self-managed", "webhook.certificates=self-managed"),
];
const HEADER: &str = "# Rendered from charts/nv-ipam by `cargo test -p ipam-e2e --test chart`. Do not edit.\n";

fn folder(overlay: &str) -> PathBuf {
    binaries::workspace().join("deploy/overlays").join(overlay)
}

/// What the chart renders, without the traces of Helm. The CRDs are a base of the overlay, and hooks are Helm's.
fn rendered(certificates: &str) -> Vec<Value> {
    let values = ["crds.install=false", "uninstall.releasePools=false", certificates];
    let sets = values.into_iter().flat_map(|value| ["--set", value]);
    let mut objects = render_with(&["--namespace", "kube-system"].into_iter().chain(sets).collect::<Vec<_>>());
    for object in &mut objects {
        let labels = object["metadata"]["labels"].as_object_mut().unwrap();
        labels.retain(|label, _| label != "helm.sh/chart" && label != "app.kubernetes.io/managed-by");
    }
    objects
}

#[test]
fn overlays_are_rendered_from_the_chart() {
    let mut stale = Vec::new();
    for (overlay, certificates) in OVERLAYS {
        let (file, wanted) = (folder(overlay).join("manifests.yaml"), rendered(certificates));
        let text = fs::read_to_string(&file).unwrap_or_default();
        let documents = serde_yaml::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap());
        // Compared as values: the order of the fields depends on the features that other crates turn on.
        if documents.filter(|document| !document.is_null()).collect::<Vec<_>>() != wanted {
            let documents = wanted.iter().map(|object| serde_yaml::to_string(object).unwrap());
            fs::write(&file, format!("{HEADER}{}", documents.collect::<Vec<_>>().join("---\n"))).unwrap();
            stale.push(overlay);
        }
    }
    assert!(stale.is_empty(), "the overlays {stale:?} were stale and are now rewritten: look at them and commit them");
}

#[test]
fn overlays_pass_a_strict_dry_run() {
    let kubectl = complete_plane().kubectl();
    for (overlay, certificates) in OVERLAYS {
        let folder = folder(overlay).display().to_string();
        let words =
            ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-k", &folder];
        let said = kubectl.run(&words).unwrap_or_else(|error| panic!("{overlay}: {error:#}"));
        let lines = said.lines().filter(|line| line.contains("server dry run")).count();
        assert_eq!(lines, rendered(certificates).len() + 3, "{overlay}: {said}");
    }
}
