//! What the chart renders, without a cluster.

use std::collections::BTreeSet;
use std::process::Command;

use ipam_e2e::chart::{self, helm};
use ipam_e2e::{binaries, child};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::stage::WAYS;

/// All objects that a release called `nv-ipam` in the namespace `net` has.
pub(crate) fn render(values: &[&str]) -> Vec<Value> {
    render_with(&values.iter().flat_map(|value| ["--set", value]).collect::<Vec<_>>())
}

/// The same with other arguments of `helm template`.
pub(crate) fn render_with(arguments: &[&str]) -> Vec<Value> {
    let chart = chart::folder().display().to_string();
    let text = helm(&[&["template", "nv-ipam", &chart, "--namespace", "net"], arguments].concat()).unwrap();
    let documents = serde_yaml::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}

pub(crate) fn only<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found: Vec<&Value> = objects.iter().filter(|object| object["kind"] == kind).collect();
    let [one] = found[..] else { panic!("{} of {kind}", found.len()) };
    one
}

pub(crate) fn names(objects: &[Value], kind: &str) -> BTreeSet<String> {
    let named = objects.iter().filter(|object| object["kind"] == kind);
    named.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn arguments(objects: &[Value], kind: &str) -> Vec<String> {
    let arguments = &only(objects, kind)["spec"]["template"]["spec"]["containers"][0]["args"];
    serde_json::from_value(arguments.clone()).unwrap()
}

/// `--flag` of each argument.
fn flags(arguments: &[String]) -> BTreeSet<String> {
    arguments.iter().map(|argument| argument.split('=').next().unwrap().to_owned()).collect()
}

#[test]
fn a_release_called_nv_ipam_has_the_names_of_the_contract() {
    let objects = render(&["webhook.certificates=self-managed"]);
    assert_eq!(only(&objects, "Deployment")["metadata"]["name"], "nv-ipam-controller");
    assert_eq!(only(&objects, "DaemonSet")["metadata"]["name"], "nv-ipam-node");
    let configuration = only(&objects, "ValidatingWebhookConfiguration");
    assert_eq!(configuration["metadata"]["name"], "nv-ipam-validating-webhook");
    let paths: BTreeSet<&str> = configuration["webhooks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|webhook| webhook["clientConfig"]["service"]["path"].as_str().unwrap())
        .collect();
    let wanted = ["cidrpool", "ippool"].map(|kind| format!("/validate-nv-ipam-nvidia-com-v1alpha1-{kind}"));
    assert_eq!(paths.into_iter().collect::<Vec<_>>(), wanted);
    assert_eq!(only(&objects, "Service")["metadata"]["name"], "nv-ipam-webhook");
    let operator = arguments(&objects, "Deployment");
    for wanted in [
        "--ippools-namespace=net",
        "--leader-elect=true",
        "--webhook-bind-address=:9443",
        "--webhook-secret=nv-ipam-webhook-server-cert",
        "--webhook-configuration=nv-ipam-validating-webhook",
        "--webhook-service=nv-ipam-webhook",
    ] {
        assert!(operator.contains(&wanted.to_owned()), "{operator:?} lacks {wanted}");
    }
    let rules = serde_json::to_string(&objects).unwrap();
    assert!(rules.contains(r#""resourceNames":["dd1643cf.nvidia.com"]"#));
    let agent = arguments(&objects, "DaemonSet");
    assert!(agent.contains(&"--bind-address=unix:///var/lib/cni/nv-ipam/daemon.sock".to_owned()), "{agent:?}");
    assert!(agent.contains(&"--store-file=/var/lib/cni/nv-ipam/store".to_owned()), "{agent:?}");
}

#[test]
fn each_way_to_have_certificates_renders_what_it_needs_and_nothing_of_the_others() {
    for way in WAYS {
        let objects = render(&[&format!("webhook.certificates={way}")]);
        let here = |kind: &str| !names(&objects, kind).is_empty();
        assert_eq!(here("ValidatingWebhookConfiguration"), way != "none", "{way}");
        assert_eq!(here("Service"), way != "none", "{way}");
        assert_eq!(here("Certificate"), way == "cert-manager", "{way}");
        assert_eq!(names(&objects, "Role").contains("nv-ipam-controller-certificates"), way == "self-managed", "{way}");
        let text = serde_json::to_string(&objects).unwrap();
        assert_eq!(text.contains("cert-manager.io/inject-ca-from"), way == "cert-manager", "{way}");
        assert_eq!(text.contains("service.beta.openshift.io/inject-cabundle"), way == "openshift", "{way}");
        assert_eq!(text.contains("service.beta.openshift.io/serving-cert-secret-name"), way == "openshift", "{way}");
        let operator = arguments(&objects, "Deployment");
        let mounted = operator.iter().any(|argument| argument.starts_with("--webhook-cert-dir="));
        assert_eq!(mounted, ["cert-manager", "openshift"].contains(&way), "{way}");
        assert!(operator.contains(&format!("--webhook={}", way != "none")), "{way}: {operator:?}");
    }
    let own = render(&["webhook.certificates=none", "webhook.caBundle=LS0tLS1CRUdJTg==", "webhook.secretName=mine"]);
    for webhook in only(&own, "ValidatingWebhookConfiguration")["webhooks"].as_array().unwrap() {
        assert_eq!(webhook["clientConfig"]["caBundle"], "LS0tLS1CRUdJTg==");
    }
    let volumes = &only(&own, "Deployment")["spec"]["template"]["spec"]["volumes"];
    assert_eq!(volumes[0]["secret"]["secretName"], "mine");
}

#[test]
fn nobody_but_writers_of_pools_in_their_namespace_waits_for_the_webhook() {
    let objects = render(&["webhook.certificates=self-managed", "poolsNamespace=pools"]);
    for webhook in only(&objects, "ValidatingWebhookConfiguration")["webhooks"].as_array().unwrap() {
        let name = webhook["name"].as_str().unwrap();
        assert_eq!(webhook["namespaceSelector"]["matchLabels"], json!({"kubernetes.io/metadata.name": "pools"}));
        assert_eq!((&webhook["sideEffects"], &webhook["matchPolicy"]), (&json!("None"), &json!("Equivalent")));
        let rule = &webhook["rules"][0];
        assert_eq!((&rule["scope"], &rule["apiGroups"]), (&json!("Namespaced"), &json!(["nv-ipam.nvidia.com"])));
        let resource = rule["resources"][0].as_str().unwrap();
        assert!(["ippools", "cidrpools"].contains(&resource), "no subresource: {rule}");
        let deletion = name.starts_with("delete-");
        let operations = if deletion { json!(["DELETE"]) } else { json!(["CREATE", "UPDATE"]) };
        assert_eq!(rule["operations"], operations);
        let policy = if deletion { "Ignore" } else { "Fail" };
        assert_eq!(webhook["failurePolicy"], policy, "only a warning is lost when nobody answers a deletion");
        let conditions = webhook["matchConditions"].to_string();
        assert!(conditions.contains("system:serviceaccount:net:nv-ipam-controller"), "{conditions}");
    }
}

#[test]
fn every_flag_of_both_daemons_is_reachable_by_values() {
    let all = [
        "agent.offlineLimit=1h",
        "agent.replacedMachineGrace=1h",
        "agent.containerRuntimeEndpoint=unix:///run/crio/crio.sock",
        "agent.bootIdFile=/boot",
        "agent.systemUuidFile=/uuid",
        "operator.releasedBlockGrace=1h",
        "operator.finalizers=false",
    ];
    // Each daemon logs in both forms, for some flags belong to one of them.
    let as_json = ["logging.infoBufferSize=64Ki", "logging.splitStream=true", "logging.flushFrequency=1s"];
    let as_json = [&as_json[..], &["featureGates.LoggingAlphaOptions=true"]].concat();
    let as_text = ["logging.format=text", "logging.vmodule=rpc=5", "featureGates.ContextualLogging=true"];
    let streams = ["logging.infoBufferSize=64Ki", "logging.splitStream=true", "featureGates.LoggingAlphaOptions=true"];
    let as_text = [&as_text[..], &streams].concat();
    let of = |daemon: &str, values: &[&str]| values.iter().map(|value| format!("{daemon}.{value}")).collect::<Vec<_>>();
    let ways = [("self-managed", "agent", "operator"), ("cert-manager", "operator", "agent")];
    let both = ways.map(|(way, json, text)| {
        let logging = [of(json, &as_json), of(text, &as_text), vec![format!("webhook.certificates={way}")]].concat();
        render(&all.into_iter().chain(logging.iter().map(String::as_str)).collect::<Vec<_>>())
    });
    let binaries = binaries::build().unwrap();
    // Set by the pod itself, or no setting.
    let elsewhere = ["--help", "--version", "--kubeconfig"];
    for (kind, program) in [("Deployment", &binaries.controller), ("DaemonSet", &binaries.agent)] {
        let rendered: BTreeSet<String> = both.iter().flat_map(|objects| flags(&arguments(objects, kind))).collect();
        let output = child::output(Command::new(program).arg("--help")).unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let known: BTreeSet<String> = help
            .lines()
            .filter(|line| line.trim_start().starts_with('-'))
            .flat_map(str::split_whitespace)
            .filter(|word| word.starts_with("--"))
            .map(|word| word.split(['=', '[', ',']).next().unwrap().to_owned())
            .collect();
        assert!(known.len() > 10, "{help}");
        let missing: Vec<_> =
            known.iter().filter(|flag| !rendered.contains(*flag) && !elsewhere.contains(&flag.as_str())).collect();
        let unknown: Vec<_> = rendered.iter().filter(|flag| !known.contains(*flag)).collect();
        assert!(unknown.is_empty(), "{} does not know {unknown:?}", program.display());
        assert!(missing.is_empty(), "no value of the chart leads to {missing:?} of {}", program.display());
    }
}

#[test]
fn the_agents_pod_mounts_what_it_writes_and_has_no_more_power_than_that_takes() {
    let objects = render(&["agent.storeFile=/data/store", "agent.cni.binDir=/var/lib/cni/bin"]);
    let template = &only(&objects, "DaemonSet")["spec"]["template"];
    let mut folders = ipam_e2e::chart::pods::host_folders(template);
    folders.sort();
    assert_eq!(folders, ["/data", "/etc/cni/net.d/nv-ipam.d", "/var/lib/cni/bin", "/var/lib/cni/nv-ipam"]);
    let security = &template["spec"]["containers"][0]["securityContext"];
    assert!(security.get("privileged").is_none());
    assert_eq!(security["capabilities"], json!({"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}));
    assert_eq!(security["readOnlyRootFilesystem"], true);
    let objects = render(&["agent.privileged=true", "agent.cni.skipBinaryCopy=true"]);
    let template = &only(&objects, "DaemonSet")["spec"]["template"];
    assert_eq!(template["spec"]["containers"][0]["securityContext"]["privileged"], true);
    assert!(!ipam_e2e::chart::pods::host_folders(template).contains(&"/opt/cni/bin".to_owned()));
}

#[test]
fn the_definitions_are_those_of_the_repository_and_outlive_the_release() {
    let objects = render(&[]);
    let rendered: Vec<&Value> = objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition").collect();
    assert_eq!(rendered.len(), 3);
    for definition in rendered {
        assert_eq!(definition["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
        let name = definition["metadata"]["name"].as_str().unwrap();
        let file =
            format!("crds/{}.yaml", name.split_once('.').map(|(plural, group)| format!("{group}_{plural}")).unwrap());
        let text = std::fs::read_to_string(binaries::workspace().join(file)).unwrap();
        let wanted: Value = serde_yaml::from_str(&text).unwrap();
        assert_eq!(numbers(&definition["spec"]), numbers(&wanted["spec"]), "{name}");
    }
    assert!(names(&render(&["crds.install=false"]), "CustomResourceDefinition").is_empty());
}

/// The same value with each number as a float: Go templates know no other.
fn numbers(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(numbers).collect(),
        Value::Object(fields) => fields.iter().map(|(key, field)| (key.clone(), numbers(field))).collect(),
        other => other.clone(),
    }
}
