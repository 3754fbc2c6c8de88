//! `deploy/network-operator`: manifests for NVIDIA's network-operator, rendered from the chart as templates of its own.

use std::fs;
use std::path::PathBuf;

use ipam_e2e::network_operator::{FOLDER, Policy, render};
use ipam_e2e::{binaries, chart};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::dry_run::complete_plane;
use crate::rendered::{only, render_with};

const HEADER: &str =
    "{{- /* Rendered from charts/nv-ipam by `cargo test -p ipam-e2e --test chart`. Do not edit. */ -}}\n";
/// What the chart renders, and what the network-operator puts in its place. The fields of the data are those of its templates.
const WORDS: [(&str, &str); 3] = [
    ("the-namespace", "{{ .RuntimeSpec.Namespace }}"),
    ("the-image:the-tag", "'{{ imagePath .CrSpec.Repository .CrSpec.Image .CrSpec.Version }}'"),
    ("/the-plugins", "{{ .RuntimeSpec.CniBinDirectory }}"),
];

/// Kinds that the network-operator deletes when nvIpam is disabled. It would leave others behind.
const KINDS: [&str; 9] = [
    "ServiceAccount",
    "DaemonSet",
    "Deployment",
    "Service",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingWebhookConfiguration",
];
/// A file for each case: its name, whether the webhook is on, and whether the cluster is an OpenShift.
const CASES: [(&str, bool, bool); 4] = [
    ("040-nv-ipam.yaml", false, false),
    ("040-nv-ipam.openshift.yaml", false, true),
    ("040-nv-ipam-webhook.yaml", true, false),
    ("040-nv-ipam-webhook.openshift.yaml", true, true),
];

/// What the chart renders, with the names that the network-operator's manifests have.
fn objects(webhook: bool, openshift: bool) -> Vec<Value> {
    let certificates = if webhook { "self-managed" } else { "none" };
    let (certificates, openshift) =
        (format!("webhook.certificates={certificates}"), format!("openshift.enabled={openshift}"));
    let values = [
        "crds.install=false",
        "uninstall.releasePools=false",
        "admissionPolicy.create=false",
        "image.repository=the-image",
        "image.tag=the-tag",
        "agent.cni.binDir=/the-plugins",
        // The network-operator deletes the CRDs after the operator, and waits for them.
        "operator.finalizers=false",
        &certificates,
        &openshift,
    ];
    // Its own Secret: cert-manager may still write the other one.
    let secret = webhook.then_some("webhook.secretName=nv-ipam-webhook-own-cert");
    let sets = values.into_iter().chain(secret).flat_map(|value| ["--set", value]);
    let mut objects = render_with(&["--namespace", "the-namespace"].into_iter().chain(sets).collect::<Vec<_>>());
    objects.retain(|object| KINDS.iter().any(|kind| object["kind"] == *kind));
    for object in &mut objects {
        let labels = object["metadata"]["labels"].as_object_mut().unwrap();
        labels.retain(|label, _| label != "helm.sh/chart" && label != "app.kubernetes.io/managed-by");
        if matches!(object["kind"].as_str(), Some("Deployment" | "DaemonSet")) {
            adapt(object);
        }
    }
    objects
}

/// A selector cannot be changed, so it stays that of the network-operator. Marks stand where a NicClusterPolicy sets something.
fn adapt(object: &mut Value) {
    let name = object["metadata"]["name"].clone();
    object["spec"]["selector"]["matchLabels"] = json!({"name": name});
    let is_agent = object["kind"] == "DaemonSet";
    let template = &mut object["spec"]["template"];
    template["metadata"]["labels"]["name"] = name.clone();
    let pod = &mut template["spec"];
    pod["imagePullSecrets"] = json!(PULL_SECRETS);
    if is_agent {
        pod["affinity"] = json!(NODE_AFFINITY);
    }
    template["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = name.clone();
    let container = &mut template["spec"]["containers"][0];
    container["name"] = name;
    container["resources"] = json!(format!("{RESOURCES}{}", container["resources"]));
}

const PULL_SECRETS: &str = "PULL-SECRETS";
const NODE_AFFINITY: &str = "NODE-AFFINITY";
const RESOURCES: &str = "RESOURCES";

/// The text of the objects, with actions of the template in the place of marks.
fn template(objects: &[Value]) -> String {
    let document = |object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap();
        let text = serde_yaml::to_string(object).unwrap();
        let lines = text.lines().map(|line| with_actions(line, name) + "\n");
        format!("---\n{}", lines.collect::<String>())
    };
    let text: String = objects.iter().map(document).collect();
    WORDS.into_iter().fold(text, |text, (word, action)| text.replace(word, action))
}

/// A line, or what stands in its place if it has a mark.
fn with_actions(line: &str, object: &str) -> String {
    let indent = &line[..line.len() - line.trim_start().len()];
    match line.trim().split_once(": ") {
        Some(("imagePullSecrets", PULL_SECRETS)) => format!(
            "{{{{- with .CrSpec.ImagePullSecrets }}}}\n{indent}imagePullSecrets:\n{{{{- range . }}}}\n{indent}- name: {{{{ . }}}}\n\
             {{{{- end }}}}\n{{{{- end }}}}"
        ),
        Some(("affinity", NODE_AFFINITY)) => format!(
            "{{{{- with .NodeAffinity }}}}\n{indent}affinity:\n{indent}  nodeAffinity: {{{{- . | yaml | nindent {} }}}}\n{{{{- end }}}}",
            indent.len() + 4
        ),
        Some(("resources", marked)) => {
            let given = |field: &str, key: &str| {
                let deep = indent.len() + 4;
                format!(
                    "{{{{- with .{field} }}}}\n{indent}  {key}: {{{{- . | yaml | nindent {deep} }}}}\n{{{{- end }}}}\n"
                )
            };
            let default = marked.trim_matches('\'').trim_start_matches(RESOURCES);
            format!(
                "{{{{- with .RuntimeSpec.ContainerResources }}}}\n{{{{- with index . \"{object}\" }}}}\n{indent}resources:\n{}{}\
                 {{{{- end }}}}\n{{{{- else }}}}\n{indent}resources: {default}\n{{{{- end }}}}",
                given("Requests", "requests"),
                given("Limits", "limits")
            )
        }
        _ => line.to_owned(),
    }
}

/// All files of the folder, by name.
fn files() -> Vec<(String, String)> {
    let crds = fs::read_dir(chart::folder().join("files/crds")).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| format!("005-{}", path.file_name().unwrap().to_str().unwrap());
    let mut files: Vec<(String, String)> =
        crds.map(|path| (named(&path), fs::read_to_string(&path).unwrap())).collect();
    for (name, webhook, openshift) in CASES {
        let not = |is: bool| if is { "" } else { "not " };
        let condition =
            format!("and ({}.CrSpec.EnableWebhook) ({}.RuntimeSpec.IsOpenshift)", not(webhook), not(openshift));
        let text = template(&objects(webhook, openshift));
        files.push((name.to_owned(), format!("{HEADER}{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n")));
    }
    files.sort();
    files
}

#[test]
fn network_operator_manifests_are_rendered_from_the_chart() {
    let folder = binaries::workspace().join(FOLDER);
    fs::create_dir_all(&folder).unwrap();
    let mut stale = Vec::new();
    for (name, wanted) in files() {
        let path = folder.join(&name);
        if fs::read_to_string(&path).unwrap_or_default() != wanted {
            fs::write(&path, wanted).unwrap();
            stale.push(name);
        }
    }
    assert!(stale.is_empty(), "the files {stale:?} were stale and are now rewritten: look at them and commit them");
}

#[test]
fn network_operator_manifests_pass_a_strict_dry_run() {
    let kubectl = complete_plane().kubectl();
    for (name, webhook, openshift) in CASES {
        for policy in [Policy::default(), Policy::full()] {
            let text = render("kube-system", "localhost", "nv-ipam", "0", &Policy { webhook, openshift, ..policy });
            let text = text.unwrap();
            let words =
                ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"];
            let said = kubectl.run_with(&words, &text).unwrap_or_else(|error| panic!("{name}: {error:#}\n{text}"));
            assert!(said.contains("daemonset.apps/nv-ipam-node"), "{name}: {said}");
            assert_eq!(said.contains("validatingwebhookconfiguration"), webhook, "{name}: {said}");
        }
    }
}

#[test]
fn network_operator_manifests_take_what_the_policy_sets() {
    let policy = Policy::full();
    let text = render("net", "localhost", "nv-ipam", "0", &policy).unwrap();
    let documents = serde_yaml::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap());
    let objects: Vec<Value> = documents.collect();
    let pod = |kind: &str| only(&objects, kind)["spec"]["template"]["spec"].clone();
    for (kind, name) in [("DaemonSet", "nv-ipam-node"), ("Deployment", "nv-ipam-controller")] {
        let (pod, wanted) = (pod(kind), &policy.resources[name]);
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]), "{kind}");
        let container = &pod["containers"][0];
        assert_eq!(container["image"], "localhost/nv-ipam:0", "{kind}");
        assert_eq!(container["resources"]["requests"], wanted["Requests"], "{kind}");
        assert_eq!(container["resources"]["limits"], wanted["Limits"], "{kind}");
        assert!(container["args"].as_array().unwrap().contains(&json!("--ippools-namespace=net")), "{container}");
    }
    assert_eq!(pod("DaemonSet")["affinity"]["nodeAffinity"], policy.node_affinity);
}
