//! The admission policy, with real tokens: what an agent may write, and whom it leaves alone.

use ipam_e2e::chart::{Release, grants, pods};
use ipam_e2e::eventually_blocking;
use ipam_e2e::kubectl::Kubectl;
use serde_json::json;

use crate::stage::{SOON, account, node, plane, release};

const NOTHING_ELSE: &str = "an agent writes nothing of nv-ipam.nvidia.com but the status";
const STATUS: &str = r#"{"status": {"agentVersion": "9.9.9"}}"#;
const SPEC: &str = r#"{"spec": {"pools": []}, "metadata": {"labels": {"a": "b"}}}"#;

fn ipam_node(name: &str, namespace: &str) -> String {
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNode", "metadata": metadata, "spec": {"pools": []}})
        .to_string()
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
