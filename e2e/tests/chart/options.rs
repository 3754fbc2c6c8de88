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
