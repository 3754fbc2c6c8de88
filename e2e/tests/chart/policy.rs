//! The admission policies, with real tokens: what an agent and the operator may write, and whom they leave alone.

use ipam_e2e::chart::service_ca::ServiceCa;
use ipam_e2e::chart::{Release, grants, pods};
use ipam_e2e::eventually_blocking;
use ipam_e2e::kubectl::Kubectl;
use serde_json::{Value, json};

use crate::stage::{SOON, account, node, plane, release};

const NOTHING_ELSE: &str = "an agent writes nothing of nv-ipam.nvidia.com but the status";
const STATUS: &str = r#"{"status": {"agentVersion": "9.9.9"}}"#;
const SPEC: &str = r#"{"spec": {"pools": []}, "metadata": {"labels": {"a": "b"}}}"#;

fn ipam_node(name: &str, namespace: &str) -> String {
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNode", "metadata": metadata, "spec": {"pools": []}})
        .to_string()
}

/// An IPAMNode from which an agent would allocate addresses.
fn with_block(name: &str, namespace: &str, last: &str) -> Value {
    let mut object: Value = serde_json::from_str(&ipam_node(name, namespace)).unwrap();
    object["spec"]["pools"] = json!([{"name": "p", "poolType": "IPPool", "state": "Active", "grant": "6543210000000001",
        "startIP": "10.0.0.1", "endIP": last, "subnet": "10.0.0.0/24"}]);
    object
}

/// A release with the records of two nodes.
fn two_nodes() -> (Release<'static>, [String; 2]) {
    let release = release("policy", &["webhook.certificates=none"]);
    let names = ["own", "other"].map(|short| format!("{}-{short}", release.namespace()));
    for name in &names {
        node(plane(), name, &json!({}));
        plane().kubectl().apply(&ipam_node(name, release.namespace())).unwrap();
    }
    (release, names)
}

/// Grants the agents all that RBAC refuses them, so that the policy alone is left to refuse it.
fn grant_everything(release: &Release<'_>, account: &str) {
    let (kubectl, namespace) = (release.plane().kubectl(), release.namespace());
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "everything", "namespace": namespace},
        "rules": [{"apiGroups": ["nv-ipam.nvidia.com"], "resources": ["*"], "verbs": ["*"]}],
    });
    kubectl.apply(&role.to_string()).unwrap();
    let subject = format!("--serviceaccount={namespace}:{account}");
    let words = ["create", "rolebinding", "everything", "-n", namespace, "--role=everything", &subject];
    kubectl.run(&words).unwrap();
}

/// kubectl's words of refusal, `None` when it was allowed.
fn refusal(kubectl: &Kubectl, words: &[&str], input: &str) -> Option<String> {
    let output = kubectl.output(words, input).unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Tries to patch an IPAMNode, its status if `of_status`.
fn patch(kubectl: &Kubectl, namespace: &str, name: &str, of_status: bool) -> Option<String> {
    let change = if of_status { STATUS } else { SPEC };
    let mut words = vec!["patch", "ipamnode", name, "-n", namespace, "--type=merge", "-p", change];
    if of_status {
        words.push("--subresource=status");
    }
    refusal(kubectl, &words, "")
}

#[test]
fn an_agent_writes_the_status_of_its_own_nodes_ipam_node_and_nothing_else() {
    let (release, [own, other]) = two_nodes();
    let namespace = release.namespace();
    let account = account(&release, "agent");
    grant_everything(&release, &account);
    grants::await_all(&release, &account).unwrap();
    let agent = plane().kubectl().with(pods::agent_pod(&release, &own).unwrap());
    let said = eventually_blocking("the policy is in force", SOON, || {
        let said = patch(&agent, namespace, &other, true).unwrap_or_default();
        if said.contains("of its own node alone") { Ok(said) } else { Err(said) }
    })
    .unwrap();
    assert!(said.contains(&own), "{said}");
    assert_eq!(patch(&agent, namespace, &own, true), None, "its own");
    assert_eq!(release.object("ipamnode", &own).unwrap()["status"]["agentVersion"], "9.9.9");

    for name in [&own, &other] {
        let said = patch(&agent, namespace, name, false).expect("a spec is refused");
        assert!(said.contains(NOTHING_ELSE), "{said}");
    }
    let deletion = ["delete", "ipamnode", &own, "-n", namespace, "--wait=false"];
    let said = refusal(&agent, &deletion, "").expect("its own may not be deleted either");
    assert!(said.contains(NOTHING_ELSE), "{said}");
    let pool = json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool", "metadata": {"name": "p", "namespace": namespace},
        "spec": {"subnet": "10.0.0.0/24", "perNodeBlockSize": 8},
    });
    let said = refusal(&agent, &["create", "-f", "-"], &pool.to_string()).expect("nor a pool made");
    assert!(said.contains(NOTHING_ELSE), "{said}");

    let unbound = plane().kubectl().with(plane().token(namespace, &account, None).unwrap());
    let said = patch(&unbound, namespace, &own, true).expect("a token that is bound to no pod is refused");
    assert!(said.contains("names no node"), "{said}");
}

#[test]
fn the_policy_asks_nothing_of_the_operator_or_of_an_administrator() {
    let (release, [own, other]) = two_nodes();
    let namespace = release.namespace();
    let [operator, agent] = ["operator", "agent"].map(|component| account(&release, component));
    grant_everything(&release, &agent);
    for account in [&operator, &agent] {
        grants::await_all(&release, account).unwrap();
    }
    let refused = plane().kubectl().with(pods::agent_pod(&release, &own).unwrap());
    eventually_blocking("the policy is in force", SOON, || {
        let said = patch(&refused, namespace, &other, true).unwrap_or_default();
        if said.contains("own node alone") { Ok(()) } else { Err(said) }
    })
    .unwrap();
    let operator = plane().kubectl().with(plane().token(namespace, &operator, None).unwrap());
    // kubectl reads before it patches, which the operator may not: it creates and deletes instead.
    operator.run_with(&["create", "-f", "-"], &ipam_node("third", namespace)).unwrap();
    let path = format!("/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/{namespace}/ipamnodes/third");
    operator.run(&["delete", "--raw", &path]).unwrap();
    for name in [&own, &other] {
        for of_status in [false, true] {
            assert_eq!(patch(plane().kubectl(), namespace, name, of_status), None);
        }
    }
}

#[test]
fn blocks_of_ipam_nodes_come_by_patches_of_the_operator_alone() {
    let (release, [own, other]) = two_nodes();
    let namespace = release.namespace();
    let operator = account(&release, "operator");
    grant_everything(&release, &operator);
    grants::await_all(&release, &operator).unwrap();
    let admin = plane().kubectl();
    let change = |name: &str, last: &str| with_block(name, namespace, last)["spec"].to_string();
    let edit = |kubectl: &Kubectl, name: &str, last: &str, try_out: &[&str]| {
        let change = format!(r#"{{"spec": {}}}"#, change(name, last));
        let words = ["patch", "ipamnode", name, "-n", namespace, "--type=merge", "-p", &change];
        refusal(kubectl, &[&words[..], try_out].concat(), "")
    };
    eventually_blocking("the policy is in force", SOON, || {
        let said = edit(admin, &own, "10.0.0.4", &["--dry-run=server"]).unwrap_or_default();
        if said.contains("only the operator changes the spec") { Ok(()) } else { Err(said) }
    })
    .unwrap();
    // A backup tool is refused, and so is a creation of the operator, which may arrive at any later time.
    let operator = admin.with(plane().token(namespace, &operator, None).unwrap());
    let restored = with_block("restored", namespace, "10.0.0.4").to_string();
    for kubectl in [admin, &operator] {
        let said = refusal(kubectl, &["create", "-f", "-"], &restored).expect("a creation with blocks is refused");
        assert!(said.contains("must be created without blocks") && said.contains("out of a restore"), "{said}");
    }
    operator.run_with(&["create", "-f", "-"], &ipam_node("restored", namespace)).unwrap();
    assert_eq!(edit(&operator, "restored", "10.0.0.8", &[]), None);
    let said = edit(admin, "restored", "10.0.0.9", &[]).expect("no other account");
    assert!(said.contains("Edit the pool instead"), "{said}");

    // Changes of metadata are not checked, such as the annotation by which an admin discards a report.
    for words in [["annotate", "nv-ipam.nvidia.com/discard-report=7"], ["label", "a=b"]] {
        admin.run(&[words[0], "ipamnode", "restored", "-n", namespace, words[1]]).unwrap();
    }
    assert_eq!(patch(admin, namespace, "restored", true), None);
    let collector = "--as=system:serviceaccount:kube-system:generic-garbage-collector";
    let owners = r#"{"metadata": {"ownerReferences": null, "finalizers": ["example.com/x"]}}"#;
    for owners in [owners, r#"{"metadata": {"finalizers": null}}"#] {
        admin.run(&["patch", "ipamnode", &own, "-n", namespace, collector, "--type=merge", "-p", owners]).unwrap();
    }
    let namespaces = "--as=system:serviceaccount:kube-system:namespace-controller";
    for (name, who) in [(&*own, collector), (&*other, namespaces)] {
        admin.run(&["delete", "ipamnode", name, "-n", namespace, who]).unwrap();
    }
    admin.run(&["delete", "ipamnode", "restored", "-n", namespace]).unwrap();
    // As in a restore of etcd: an object in which an agent reports, and from which it allocates nothing.
    admin.run_with(&["create", "-f", "-"], &ipam_node(&own, namespace)).unwrap();
    // Another namespace has an operator of its own.
    let elsewhere = plane().namespace("unguarded").unwrap();
    admin.run_with(&["create", "-f", "-"], &with_block("n", &elsewhere, "10.0.0.4").to_string()).unwrap();
}

/// A Secret as the operator would create it.
fn secret(name: &str, namespace: &str, kind: &str) -> String {
    let data = json!({"tls.crt": "", "tls.key": ""});
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": data}).to_string()
}

/// A release that keeps its certificates itself, and kubectl with the token of its operator. No operator runs.
fn self_managed() -> (Release<'static>, Kubectl) {
    let release = release("own", &["webhook.certificates=self-managed"]);
    let operator = account(&release, "operator");
    grants::await_all(&release, &operator).unwrap();
    let kubectl = plane().kubectl().with(plane().token(release.namespace(), &operator, None).unwrap());
    (release, kubectl)
}

#[test]
fn operator_creates_no_secret_but_its_own() {
    let (release, operator) = self_managed();
    let namespace = release.namespace();
    let own = format!("{namespace}-nv-ipam-webhook-server-cert");
    let create = |name: &str, kind: &str| {
        refusal(
            &operator,
            &["create", "--dry-run=server", "--validate=false", "-f", "-"],
            &secret(name, namespace, kind),
        )
    };
    let token = "bootstrap.kubernetes.io/token";
    let said = eventually_blocking("the policy is in force", SOON, || {
        let said = create("bootstrap-token-abcdef", token).unwrap_or_default();
        if said.contains("writes no Secret but") { Ok(said) } else { Err(said) }
    })
    .unwrap();
    assert!(said.contains(&own), "{said}");
    let said = create(&own, "Opaque").expect("another type is refused");
    assert!(said.contains("with the type kubernetes.io/tls"), "{said}");
    assert_eq!(create(&own, "kubernetes.io/tls"), None);
    // Others create what they like.
    plane()
        .kubectl()
        .run_with(&["create", "--dry-run=server", "-f", "-"], &secret("any", namespace, "Opaque"))
        .unwrap();
}

#[test]
fn operator_changes_nothing_of_its_webhooks_but_the_bundle() {
    let (release, operator) = self_managed();
    let [configuration] = &release.objects("validatingwebhookconfigurations").unwrap()[..] else { panic!() };
    let name = configuration["metadata"]["name"].as_str().unwrap();
    let path = format!("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{name}");
    let update = |change: &dyn Fn(&mut Value)| {
        let mut changed = release.object("validatingwebhookconfiguration", name).unwrap();
        change(&mut changed);
        refusal(&operator, &["replace", "--raw", &path, "-f", "-"], &changed.to_string())
    };
    let everything = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]);
    eventually_blocking("the policy is in force", SOON, || {
        let said = update(&|it| it["webhooks"][0]["rules"] = everything.clone()).unwrap_or_default();
        if said.contains("but its caBundle") { Ok(()) } else { Err(said) }
    })
    .unwrap();
    let elsewhere = |it: &mut Value| it["webhooks"][1]["clientConfig"]["service"]["name"] = json!("other");
    let by_url = |it: &mut Value| it["webhooks"][0]["clientConfig"] = json!({"url": "https://example.com"});
    let ignored = |it: &mut Value| it["webhooks"][0]["failurePolicy"] = json!("Ignore");
    let unmatched = |it: &mut Value| it["webhooks"][0]["matchConditions"] = json!([]);
    let fewer = |it: &mut Value| it["webhooks"].as_array_mut().unwrap().truncate(1);
    let annotated = |it: &mut Value| it["metadata"]["annotations"]["a"] = json!("b");
    let changes: [&dyn Fn(&mut Value); 6] = [&elsewhere, &by_url, &ignored, &unmatched, &fewer, &annotated];
    for (at, change) in changes.iter().enumerate() {
        let said = update(change).unwrap_or_else(|| panic!("change {at} was accepted"));
        assert!(said.contains("but its caBundle"), "{at}: {said}");
    }
    let bundle = ServiceCa::new().unwrap().bundle().unwrap();
    let trusted = |it: &mut Value| {
        for webhook in it["webhooks"].as_array_mut().unwrap() {
            webhook["clientConfig"]["caBundle"] = json!(bundle);
        }
    };
    assert_eq!(update(&trusted), None);
    let words = ["annotate", "validatingwebhookconfiguration", name, "a=b"];
    plane().kubectl().run(&words).unwrap();
}

#[test]
fn pools_that_no_operator_serves_are_created_with_a_warning() {
    let (release, _) = two_nodes();
    let elsewhere = plane().namespace("unserved").unwrap();
    let create = |namespace: &str| {
        let pool = json!({
            "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool", "metadata": {"name": "p", "namespace": namespace},
            "spec": {"subnet": "10.0.0.0/24", "perNodeBlockSize": 8},
        });
        let output = plane().kubectl().output(&["create", "--dry-run=server", "-f", "-"], &pool.to_string()).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let warning = format!("the operator serves pools in namespace {} only", release.namespace());
    eventually_blocking("the policy is in force", SOON, || {
        let said = create(&elsewhere);
        if said.contains(&warning) { Ok(()) } else { Err(said) }
    })
    .unwrap();
    assert!(!create(release.namespace()).contains(&warning));
}

#[test]
fn roles_of_the_cluster_read_and_edit_pools() {
    let release = release("roles", &["webhook.certificates=none"]);
    let roles = release.objects("clusterroles").unwrap();
    let verbs = |name: &str, resource: &str| -> Vec<String> {
        let is_it = |role: &&Value| role["metadata"]["name"].as_str().unwrap().ends_with(name);
        let role = roles.iter().find(is_it).unwrap();
        let granted = role["rules"].as_array().unwrap().iter();
        let of = granted.filter(|rule| rule["resources"].as_array().unwrap().iter().any(|it| it == resource));
        of.flat_map(|rule| serde_json::from_value::<Vec<String>>(rule["verbs"].clone()).unwrap()).collect()
    };
    assert_eq!(verbs("-view", "ipamnodes"), ["get", "list", "watch"]);
    assert_eq!(verbs("-edit", "ippools"), ["create", "update", "patch", "delete", "deletecollection"]);
    assert!(verbs("-edit", "ipamnodes").is_empty(), "only the daemons write IPAMNodes");
}
