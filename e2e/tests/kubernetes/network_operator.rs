//! Our image under the manifests of NVIDIA's network-operator: what they lack is named, and ours in their place work.

use ipam_e2e::eventually_blocking;
use ipam_e2e::kubernetes::Kubernetes;
use ipam_e2e::kubernetes::images::REPOSITORY;
use ipam_e2e::network_operator::{Policy, render};

use crate::stage::{NAMESPACE as OF_THE_CHART, SOON, apply, ip_pool, items, stage};
use crate::workload::{assert_unique, attached, delete, deployment, network, ready};

const THEIRS: &str = include_str!("network-operator.yaml");
/// The network-operator's account, and what our documentation adds to its permissions.
const ACCOUNT: [&str; 2] =
    [include_str!("network-operator-account.yaml"), include_str!("../../../deploy/network-operator/permissions.yaml")];
const NAMESPACE: &str = "nvidia-network-operator";
const AS_IT: &str = "--as=system:serviceaccount:nvidia-network-operator:network-operator";
const CRDS: [&str; 3] = ["ippools", "cidrpools", "ipamnodes"];
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Waits until a log has all these texts.
fn await_log(cluster: &Kubernetes, object: &str, texts: &[&str]) {
    eventually_blocking(&format!("{object} says what is missing"), SOON, || {
        let log = cluster.kubectl().run(&["logs", "-n", NAMESPACE, object, "--tail=-1"])?;
        let missing: Vec<&&str> = texts.iter().filter(|text| !log.contains(**text)).collect();
        anyhow::ensure!(missing.is_empty(), "no {missing:?} in {log}");
        Ok(())
    })
    .unwrap();
}

/// Deletes the CRDs of our group with all their objects.
fn delete_crds(cluster: &Kubernetes) -> anyhow::Result<()> {
    let names = CRDS.map(|plural| format!("{plural}.nv-ipam.nvidia.com"));
    let mut words = vec!["delete", "crd", "--ignore-not-found", "--timeout=1m"];
    words.extend(names.iter().map(String::as_str));
    cluster.kubectl().run(&words).map(drop)
}

/// What the network-operator deletes when nvIpam is removed from its NicClusterPolicy, in its order.
fn disable(cluster: &Kubernetes) -> anyhow::Result<()> {
    let delete = |kind: &&str| {
        let words = ["delete", kind, "nv-ipam-controller", "nv-ipam-node", "-n", NAMESPACE];
        cluster.kubectl().run(&[&words[..], &["--ignore-not-found", "--wait=false"]].concat()).map(drop)
    };
    ["serviceaccount", "daemonset", "deployment"].iter().try_for_each(delete)?;
    delete_crds(cluster)?;
    ["clusterrolebinding", "clusterrole", "rolebinding", "role"].iter().try_for_each(delete)?;
    let kinds = "clusterrolebindings,clusterroles,rolebindings,roles,validatingwebhookconfigurations";
    cluster.kubectl().run(&["delete", kinds, "-A", "-l", "app.kubernetes.io/name=nv-ipam"])?;
    cluster.kubectl().run(&["delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=1m"])?;
    let own = ["network-operator", "network-operator-nv-ipam"];
    let words = [&["delete", "clusterrolebindings,clusterroles", "--ignore-not-found"], &own[..]].concat();
    cluster.kubectl().run(&words).map(drop)
}

/// Disables nv-ipam when dropped, so that other tests find a cluster without it.
struct Enabled<'a>(&'a Kubernetes);

impl Drop for Enabled<'_> {
    fn drop(&mut self) {
        let ended = disable(self.0);
        assert!(ended.is_ok() || std::thread::panicking(), "{ended:?}");
    }
}

/// Creates objects, and puts them in the place of those that exist, as the network-operator does.
fn put(cluster: &Kubernetes, manifests: &str) {
    for (verb, accepted) in [("replace", "(NotFound)"), ("create", "(AlreadyExists)")] {
        let output = cluster.kubectl().output(&[verb, "-f", "-", AS_IT], manifests).unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let refused: Vec<&str> = said.lines().filter(|line| !line.contains(accepted)).collect();
        assert!(refused.is_empty(), "{verb}: {refused:#?}");
    }
}

#[test]
fn network_operator_manifests_name_what_they_lack_and_ours_in_their_place_work() {
    let cluster = stage();
    // Another test may have left the chart.
    let _ = cluster.helm(&["uninstall", "nv-ipam", "--namespace", OF_THE_CHART, "--wait", "--timeout=3m"]);
    delete_crds(&cluster).unwrap();
    let enabled = Enabled(&cluster);

    let image = format!("{REPOSITORY}:{VERSION}");
    let theirs = THEIRS.replace("IMAGE", &image);
    let [account, permissions] = ACCOUNT;
    cluster.kubectl().apply(account).unwrap();
    cluster.kubectl().apply(&theirs).unwrap();
    let mut pool = ip_pool("theirs", 12);
    pool["metadata"]["namespace"] = NAMESPACE.into();
    apply(&cluster, &[pool]);
    await_log(
        &cluster,
        "deployment/nv-ipam-controller",
        &["cidrpools lacks status.", "ippools lacks status.", "ipamnodes does not exist"],
    );
    await_log(&cluster, "daemonset/nv-ipam-node", &["ipamnodes"]);
    let operators = items(&cluster.get(&["pods", "-n", NAMESPACE, "-l", "name=nv-ipam-controller"]).unwrap());
    assert!(!operators.is_empty() && !operators.iter().any(ipam_e2e::kubernetes::is_ready), "{operators:#?}");

    // Ours, as the network-operator applies them: in the place of its own, with the same names.
    cluster.kubectl().apply(permissions).unwrap();
    let ours =
        render(NAMESPACE, "localhost", "nv-ipam", VERSION, &Policy { webhook: true, ..Policy::default() }).unwrap();
    put(&cluster, &ours);
    apply(&cluster, &[network("theirs-net", "theirs", "ippool"), deployment("theirs", 6, &["theirs-net"])]);
    let pods = ready(&cluster, "theirs", 6);
    assert_unique(&pods);
    assert_eq!(attached(&pods).len(), 6);
    // The operator with the earlier flags may have set some before it ended.
    let without_finalizers = eventually_blocking("no object has a finalizer", SOON, || {
        let all = items(&cluster.get(&["ippools,cidrpools,ipamnodes", "-n", NAMESPACE])?);
        anyhow::ensure!(all.iter().all(|object| object["metadata"]["finalizers"].is_null()), "{all:#?}");
        Ok(())
    });
    without_finalizers.unwrap();

    // With pools in use, nothing waits for the operator, which has gone.
    drop(enabled);
    delete(&cluster, "theirs");
}
