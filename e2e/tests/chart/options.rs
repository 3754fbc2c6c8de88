//! What the optional values render, without a cluster.

use serde_json::{Value, json};

use crate::rendered::{names, only, render, render_with};

/// The pod templates of a release: operator, agent and the Job of the uninstall.
fn pods(objects: &[Value]) -> [&Value; 3] {
    ["Deployment", "DaemonSet", "Job"].map(|kind| &only(objects, kind)["spec"]["template"]["spec"])
}

const ON_OPENSHIFT: [&str; 2] = ["--api-versions", "security.openshift.io/v1"];

#[test]
fn operator_and_job_have_no_fixed_user_on_openshift() {
    let elsewhere = render(&[]);
    let [operator, _, job] = pods(&elsewhere);
    for pod in [operator, job] {
        assert_eq!(pod["securityContext"]["runAsUser"], 65532);
        assert_eq!(pod["securityContext"]["fsGroup"], 65532);
    }
    assert!(!names(&elsewhere, "Role").contains("nv-ipam-node-scc"));

    let certificates = ["--set", "webhook.certificates=openshift"];
    let forced = ["--set", "openshift.enabled=true"];
    for words in [&ON_OPENSHIFT[..], &certificates, &forced] {
        let objects = render_with(words);
        let [operator, agent, job] = pods(&objects);
        for pod in [operator, job] {
            let contexts = [&pod["securityContext"], &pod["containers"][0]["securityContext"]];
            for field in ["runAsUser", "runAsGroup", "fsGroup"] {
                assert!(contexts.iter().all(|context| context.get(field).is_none()), "{words:?}: {field} in {pod}");
            }
            assert_eq!(contexts[0], &json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}));
        }
        assert_eq!(agent["containers"][0]["securityContext"]["seLinuxOptions"], json!({"type": "spc_t"}));
        assert_eq!(agent["containers"][0]["securityContext"]["runAsUser"], 0);
        assert!(agent.to_string().contains("--cni-bin-dir=/var/lib/cni/bin"), "{agent}");
        assert!(names(&objects, "RoleBinding").contains("nv-ipam-node-scc"), "{words:?}");
    }
    let off = render_with(&[&ON_OPENSHIFT[..], &["--set", "openshift.enabled=false"]].concat());
    assert_eq!(pods(&off)[0]["securityContext"]["runAsUser"], 65532);
    assert!(!names(&off, "Role").contains("nv-ipam-node-scc"));
}

#[test]
fn security_contexts_are_replaced_by_values() {
    let objects = render(&[
        "operator.podSecurityContext.runAsUser=7",
        "operator.securityContext.seLinuxOptions.level=s0:c1",
        "agent.securityContext.seLinuxOptions.type=spc_t",
        "agent.podSecurityContext.appArmorProfile.type=Unconfined",
    ]);
    let [operator, agent, job] = pods(&objects);
    for pod in [operator, job] {
        assert_eq!(pod["securityContext"]["runAsUser"], 7);
        assert_eq!(pod["containers"][0]["securityContext"]["seLinuxOptions"]["level"], "s0:c1");
    }
    assert_eq!(agent["containers"][0]["securityContext"]["seLinuxOptions"]["type"], "spc_t");
    assert_eq!(agent["securityContext"]["appArmorProfile"]["type"], "Unconfined");
    let privileged = render(&["agent.privileged=true", "openshift.enabled=true"]);
    let agent = pods(&privileged)[1];
    let expected = json!({"privileged": true, "runAsUser": 0, "readOnlyRootFilesystem": true});
    assert_eq!(agent["containers"][0]["securityContext"], expected);
    assert_eq!(agent["securityContext"], json!({}));
}

#[test]
fn one_operator_at_a_time_writes_without_election() {
    let strategy = |values: &[&str]| only(&render(values), "Deployment")["spec"]["strategy"].clone();
    let gapless = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
    assert_eq!(strategy(&[]), gapless);
    let alone = ["operator.leaderElect=false", "operator.replicas=1"];
    assert_eq!(strategy(&alone), json!({"type": "Recreate"}));
    assert_eq!(strategy(&["operator.strategy.type=Recreate"]), json!({"type": "Recreate"}));
}

#[test]
fn disruption_budget_never_blocks_drains_of_unready_replicas() {
    let budget = |values: &[&str]| only(&render(values), "PodDisruptionBudget")["spec"].clone();
    let default = budget(&[]);
    assert_eq!((&default["minAvailable"], &default["maxUnavailable"]), (&json!(1), &Value::Null));
    assert_eq!(default["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    let share = budget(&["operator.podDisruptionBudget.maxUnavailable=50%"]);
    assert_eq!((&share["minAvailable"], &share["maxUnavailable"]), (&Value::Null, &json!("50%")));
    for none in ["operator.podDisruptionBudget.create=false", "operator.replicas=1"] {
        assert!(names(&render(&[none]), "PodDisruptionBudget").is_empty(), "{none}");
    }
}

#[test]
fn spread_constraints_select_the_operators_pods() {
    let entry = "operator.topologySpreadConstraints[0]";
    let fields = ["maxSkew=1", "topologyKey=zone", "whenUnsatisfiable=ScheduleAnyway"];
    let values: Vec<String> = fields.iter().map(|field| format!("{entry}.{field}")).collect();
    let objects = render(&values.iter().map(String::as_str).collect::<Vec<_>>());
    let deployment = only(&objects, "Deployment");
    let constraint = &deployment["spec"]["template"]["spec"]["topologySpreadConstraints"][0];
    assert_eq!(constraint["labelSelector"], deployment["spec"]["selector"]);
}

#[test]
fn each_daemon_has_three_probes_unless_values_say_otherwise() {
    let objects = render(&["agent.startupProbe=null", "operator.livenessProbe.timeoutSeconds=7"]);
    let [operator, agent, _] = pods(&objects).map(|pod| &pod["containers"][0]);
    assert_eq!(operator["startupProbe"]["httpGet"]["path"], "/healthz");
    assert_eq!(operator["livenessProbe"]["timeoutSeconds"], 7);
    assert_eq!(operator["readinessProbe"]["httpGet"]["path"], "/readyz");
    assert!(agent.get("startupProbe").is_none());
    assert_eq!(agent["livenessProbe"]["timeoutSeconds"], 10);
}

#[test]
fn quota_allows_the_priority_classes_of_both_daemons() {
    let objects = render(&["resourceQuota.create=true"]);
    let expression = &only(&objects, "ResourceQuota")["spec"]["scopeSelector"]["matchExpressions"][0];
    assert_eq!(expression["values"], json!(["system-cluster-critical", "system-node-critical"]));
    assert!(pods(&objects)[2].get("priorityClassName").is_none(), "the quota is gone when the Job runs");
    assert_eq!(pods(&render(&[]))[2]["priorityClassName"], "system-cluster-critical");
}

#[test]
fn all_objects_follow_the_namespace_override() {
    let objects = render(&["namespaceOverride=system", "webhook.certificates=cert-manager", "openshift.enabled=true"]);
    for object in &objects {
        let namespace = object["metadata"]["namespace"].as_str();
        assert!(namespace.is_none_or(|namespace| namespace == "system"), "{object}");
    }
    let text = serde_json::to_string(&objects).unwrap();
    for words in ["system:serviceaccount:system:nv-ipam-node", "--ippools-namespace=system", "webhook.system.svc"] {
        assert!(text.contains(words), "{words} is missing");
    }
    let pools = render(&["namespaceOverride=system", "poolsNamespace=pools"]);
    assert!(serde_json::to_string(&pools).unwrap().contains("--ippools-namespace=pools"));
}

#[test]
fn common_labels_and_annotations_are_on_all_objects_and_pods() {
    let objects = render(&["commonLabels.team=net", "commonAnnotations.owner=me", "operator.podLabels.team=other"]);
    for object in &objects {
        assert_eq!(object["metadata"]["labels"]["team"], "net", "{object}");
        assert_eq!(object["metadata"]["annotations"]["owner"], "me", "{object}");
        let selector = &object["spec"]["selector"];
        assert!(!selector.to_string().contains("team"), "{selector}");
    }
    for (kind, team) in [("Deployment", "other"), ("DaemonSet", "net"), ("Job", "net")] {
        let metadata = &only(&objects, kind)["spec"]["template"]["metadata"];
        assert_eq!((&metadata["labels"]["team"], &metadata["annotations"]["owner"]), (&json!(team), &json!("me")));
    }
}

#[test]
fn each_component_has_its_own_image_before_the_common_one() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let (of_digest, by_digest) = (format!("image.digest={digest}"), format!("nv-ipam@{digest}"));
    let (of_digest, by_digest) = (of_digest.as_str(), by_digest.as_str());
    for (values, operator, agent) in [
        (&[][..], "nv-ipam:0.1.0", "nv-ipam:0.1.0"),
        (&[of_digest], by_digest, by_digest),
        (&["image.registry=a.example:5000"], "a.example:5000/nv-ipam:0.1.0", "a.example:5000/nv-ipam:0.1.0"),
        (&["image.registry=a", "global.imageRegistry=b"], "b/nv-ipam:0.1.0", "b/nv-ipam:0.1.0"),
        (&["image.tag=v1", "operator.image.tag=v2"], "nv-ipam:v2", "nv-ipam:v1"),
        (&[of_digest, "operator.image.tag=v2"], "nv-ipam:v2", by_digest),
        (&["agent.image.repository=own", "agent.image.registry=c", "image.tag=v3"], "nv-ipam:v3", "c/own:v3"),
    ] {
        let objects = render(values);
        let images = pods(&objects).map(|pod| pod["containers"][0]["image"].as_str().unwrap());
        assert_eq!(images, [operator, agent, operator], "{values:?}");
    }
    let secrets = ["imagePullSecrets[0].name=a", "global.imagePullSecrets[0]=b", "global.imagePullSecrets[1].name=a"];
    for pod in pods(&render(&secrets)) {
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "a"}, {"name": "b"}]));
    }
}

#[test]
fn extra_objects_are_yaml_or_templates() {
    let text = r#"{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{{ .Release.Name }}-text"}}"#;
    let object = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-object"}}"#;
    let text = format!("extraObjects[1]={}", json!(text));
    let objects = render_with(&["--set-json", &format!("extraObjects[0]={object}"), "--set-json", &text]);
    assert_eq!(only(&objects, "ConfigMap")["metadata"]["name"], "nv-ipam-object");
    assert_eq!(only(&objects, "Secret")["metadata"]["name"], "nv-ipam-text");
}

#[test]
fn extra_pools_live_with_the_pools_and_outlive_the_release() {
    let pool = json!({"kind": "IPPool", "name": "rdma", "spec": {"subnet": "10.0.0.0/16", "perNodeBlockSize": 100}});
    let objects = render_with(&["--set", "poolsNamespace=pools", "--set-json", &format!("extraPools=[{pool}]")]);
    let rendered = only(&objects, "IPPool");
    assert_eq!(rendered["spec"], pool["spec"]);
    assert_eq!(rendered["metadata"]["namespace"], "pools");
    assert_eq!(rendered["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
}

#[test]
fn containers_beside_a_daemon_come_after_it() {
    let of = |daemon: &str| {
        let containers = json!([{"name": "beside", "image": "x"}]);
        [format!("{daemon}.initContainers={containers}"), format!("{daemon}.extraContainers={containers}")]
    };
    let values = [of("operator"), of("agent")].concat();
    let words: Vec<&str> = values.iter().flat_map(|value| ["--set-json", value]).collect();
    let objects = render_with(&words);
    for (pod, name) in pods(&objects)[..2].iter().zip(["controller", "node"]) {
        let names = [&pod["containers"][0]["name"], &pod["containers"][1]["name"], &pod["initContainers"][0]["name"]];
        assert_eq!(names.map(|name| name.as_str().unwrap()), [name, "beside", "beside"]);
    }
}

#[test]
fn webhook_is_reached_on_the_nodes_network_by_value() {
    let values = ["operator.hostNetwork=true", "webhook.annotations.a=b", "webhook.labels.c=d"];
    let objects = render(&[&values[..], &["webhook.certificates=cert-manager"]].concat());
    let pod = pods(&objects)[0];
    assert_eq!((&pod["hostNetwork"], &pod["dnsPolicy"]), (&json!(true), &json!("ClusterFirstWithHostNet")));
    let metadata = &only(&objects, "ValidatingWebhookConfiguration")["metadata"];
    assert_eq!(metadata["labels"]["c"], "d");
    assert_eq!(metadata["annotations"]["a"], "b");
    assert!(metadata["annotations"]["cert-manager.io/inject-ca-from"].is_string(), "{metadata}");
}

#[test]
fn operator_tolerates_gpu_nodes_and_prefers_the_control_plane() {
    let objects = render(&[]);
    let pod = pods(&objects)[0];
    let gpu = json!({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"});
    assert!(pod["tolerations"].as_array().unwrap().contains(&gpu), "{pod}");
    let preferred = &pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    assert!(preferred.to_string().contains("node-role.kubernetes.io/control-plane"), "{preferred}");
    let own = render(&["operator.affinity.podAffinity.x=y"]);
    assert_eq!(pods(&own)[0]["affinity"], json!({"podAffinity": {"x": "y"}}));
}

#[test]
fn service_accounts_take_labels_secrets_and_no_token_mount() {
    let account = "agent.serviceAccount";
    let values = ["labels.a=b", "imagePullSecrets[0].name=s", "automountServiceAccountToken=false"];
    let values = values.map(|value| format!("{account}.{value}"));
    let objects = render(&values.each_ref().map(String::as_str));
    let is_it = |object: &&Value| object["kind"] == "ServiceAccount" && object["metadata"]["name"] == "nv-ipam-node";
    let account = objects.iter().find(is_it).unwrap();
    assert_eq!(account["metadata"]["labels"]["a"], "b");
    assert_eq!(account["imagePullSecrets"], json!([{"name": "s"}]));
    assert_eq!(account["automountServiceAccountToken"], false);
    assert_eq!(pods(&objects)[1]["automountServiceAccountToken"], true, "the agent needs a token");
}

/// Values that turn on what `monitoring` has, except the monitors.
const MONITORING: [&str; 2] = ["monitoring.rules.create=true", "monitoring.dashboard.create=true"];

#[test]
fn monitors_select_the_pods_of_their_daemon() {
    for (value, kind, endpoints) in [
        ("monitoring.podMonitor.create=true", "PodMonitor", "podMetricsEndpoints"),
        ("monitoring.serviceMonitor.create=true", "ServiceMonitor", "endpoints"),
    ] {
        let objects = render(&[value, "webhook.certificates=none"]);
        assert_eq!(names(&objects, kind), ["nv-ipam-controller", "nv-ipam-node"].map(str::to_owned).into());
        for monitor in objects.iter().filter(|object| object["kind"] == kind) {
            let daemon = if monitor["metadata"]["name"] == "nv-ipam-node" { "DaemonSet" } else { "Deployment" };
            let selector = &only(&objects, daemon)["spec"]["selector"];
            assert_eq!(&monitor["spec"]["selector"], selector);
            assert_eq!(monitor["spec"][endpoints][0]["port"], "metrics");
        }
        assert_eq!(names(&objects, "Service").len(), if kind == "ServiceMonitor" { 2 } else { 0 });
    }
    let without = ["--set", "monitoring.podMonitor.create=true", "--set-string", "agent.metricsBindAddress=0"];
    let off = render_with(&without);
    assert_eq!(names(&off, "PodMonitor"), ["nv-ipam-controller".to_owned()].into());
}

#[test]
fn rules_lead_to_their_runbooks_and_name_the_agents() {
    let objects = render(&[&MONITORING[..], &["monitoring.rules.disabled[0]=NvIpamNoLeader"]].concat());
    let rules = only(&objects, "PrometheusRule")["spec"]["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() > 10, "{rules:?}");
    for rule in rules {
        let alert = rule["alert"].as_str().unwrap();
        assert_ne!(alert, "NvIpamNoLeader");
        let runbook = format!("docs/operations/alerts.md#{}", alert.to_lowercase());
        assert_eq!(rule["annotations"]["runbook_url"], runbook);
        assert!(rule["labels"]["severity"].is_string(), "{rule}");
    }
    let expressions = serde_json::to_string(rules).unwrap();
    assert!(expressions.contains(r#"up{namespace=\"net\",pod=~\"nv-ipam-node-.+\"}"#), "{expressions}");
}

#[test]
fn extra_rules_are_groups_of_their_own() {
    let extra = r#"monitoring.rules.extra=[{"name": "own", "rules": [{"record": "a:b", "expr": "vector(1)"}]}]"#;
    let objects = render_with(&["--set", MONITORING[0], "--set-json", extra]);
    let groups = only(&objects, "PrometheusRule")["spec"]["groups"].as_array().unwrap();
    let named: Vec<&str> = groups.iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert_eq!(named, ["nv-ipam", "own"]);
}

#[test]
fn dashboard_is_json_with_a_query_in_each_panel() {
    let objects = render(&MONITORING);
    let text = only(&objects, "ConfigMap")["data"]["nv-ipam.json"].as_str().unwrap();
    let dashboard: Value = serde_json::from_str(text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() > 20, "{} panels", panels.len());
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert!(panel["targets"][0]["expr"].is_string(), "{panel}");
    }
}

#[test]
fn network_policies_open_probes_metrics_and_webhook_alone() {
    let from = r#"networkPolicy.metricsFrom=[{"podSelector": {"matchLabels": {"app": "prometheus"}}}]"#;
    let values = ["networkPolicy.create=true", "networkPolicy.egress.restrict=true"];
    let words = [&["--set", values[0], "--set", values[1]][..], &["--set-json", from]].concat();
    let objects = render_with(&words);
    for (name, kind, ports) in
        [("nv-ipam-controller", "Deployment", &[8081, 8080, 9443][..]), ("nv-ipam-node", "DaemonSet", &[8081, 8080])]
    {
        let is_it = |object: &&Value| object["kind"] == "NetworkPolicy" && object["metadata"]["name"] == name;
        let policy = &objects.iter().find(is_it).unwrap()["spec"];
        assert_eq!(policy["podSelector"], only(&objects, kind)["spec"]["selector"]);
        let ingress = policy["ingress"].as_array().unwrap();
        let open: Vec<i64> = ingress.iter().map(|rule| rule["ports"][0]["port"].as_i64().unwrap()).collect();
        assert_eq!(open, ports);
        assert!(ingress[1]["from"][0]["podSelector"].is_object(), "{policy}");
        assert_eq!(policy["policyTypes"], json!(["Ingress", "Egress"]));
        let egress = policy["egress"].as_array().unwrap();
        let reached: Vec<&Value> = egress.iter().flat_map(|rule| rule["ports"].as_array().unwrap()).collect();
        let reached: Vec<i64> = reached.iter().map(|port| port["port"].as_i64().unwrap()).collect();
        assert_eq!(reached, [53, 53, 443, 6443]);
    }
    assert!(names(&render(&[]), "NetworkPolicy").is_empty());
}
