//! Pods with interfaces in secondary networks, and which addresses they have: by Multus, by the interface, and by the agents.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use ipam_core::Cidr;
use ipam_e2e::eventually_blocking;
use ipam_e2e::kubernetes::images::BUSYBOX;
use ipam_e2e::kubernetes::{Kubernetes, SECONDARY, is_ready};
use serde_json::{Value, json};

use crate::stage::{NAMESPACE, SOON, apply, ip_pool, items};

/// Where the pods run.
pub(crate) const PODS: &str = "default";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// A macvlan network with addresses of a pool.
pub(crate) fn network(name: &str, pool: &str, kind: &str) -> Value {
    let config = json!({
        "cniVersion": "1.0.0", "name": name, "type": "macvlan", "master": SECONDARY, "mode": "bridge",
        "ipam": {"type": "nv-ipam", "poolName": pool, "poolType": kind},
    });
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": PODS}, "spec": {"config": config.to_string()},
    })
}

/// A Deployment whose pods are attached to these networks.
pub(crate) fn deployment(name: &str, replicas: usize, networks: &[&str]) -> Value {
    let labels = json!({"app": name});
    let annotations = json!({"k8s.v1.cni.cncf.io/networks": networks.join(",")});
    // One half of the pods for each node.
    let spread = json!({
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    });
    let container = json!({"name": "app", "image": BUSYBOX, "command": ["/busybox", "sleep", "1000000"]});
    let pod = json!({
        "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
        "topologySpreadConstraints": [spread], "containers": [container],
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": PODS},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    })
}

/// An interface of a pod, as all who know of it say.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Attached {
    pub(crate) pod: String,
    pub(crate) interface: String,
    pub(crate) address: IpAddr,
}

/// A pod that runs.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) node: String,
    /// By the name of the interface.
    pub(crate) addresses: BTreeMap<String, IpAddr>,
}

/// Waits until a Deployment has all its pods ready and none that ends, and answers them with what Multus wrote.
pub(crate) fn ready(cluster: &Kubernetes, name: &str, replicas: usize) -> Vec<Pod> {
    ready_within(cluster, name, replicas, SOON)
}

/// The same with a deadline.
pub(crate) fn ready_within(cluster: &Kubernetes, name: &str, replicas: usize, patience: Duration) -> Vec<Pod> {
    let selector = format!("app={name}");
    let answer = eventually_blocking(&format!("all pods of {name} are ready"), patience, || {
        let pods = items(&cluster.get(&["pods", "-n", PODS, "-l", &selector])?);
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        let ending = pods.iter().filter(|pod| !pod["metadata"]["deletionTimestamp"].is_null()).count();
        anyhow::ensure!(
            ready == replicas && pods.len() == replicas && ending == 0,
            "{ready} of {} are ready",
            pods.len()
        );
        pods.iter().map(read).collect::<anyhow::Result<Vec<Pod>>>()
    });
    // What a user would look at next.
    answer.with_context(|| look(cluster)).unwrap()
}

/// Pools, pods and warnings.
fn look(cluster: &Kubernetes) -> String {
    let looks: [&[&str]; 3] = [
        &["get", "ippools,cidrpools,ipamnodes,pods", "-A", "-o", "wide"],
        &["get", "events", "-A", "--field-selector=type=Warning", "--sort-by=.lastTimestamp"],
        &["logs", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=nv-ipam", "--tail=40", "--prefix"],
    ];
    looks.map(|words| cluster.kubectl().run(words).unwrap_or_else(|error| format!("{error:#}"))).join("\n")
}

/// A pod by its object.
pub(crate) fn read(pod: &Value) -> anyhow::Result<Pod> {
    let text = |place: &str| pod.pointer(place).and_then(Value::as_str).unwrap_or_default().to_owned();
    let status: Value = serde_json::from_str(pod["metadata"]["annotations"][STATUS].as_str().unwrap_or("[]"))?;
    let mut addresses = BTreeMap::new();
    for network in status.as_array().into_iter().flatten().filter(|network| network["default"] != true) {
        let interface = network["interface"].as_str().unwrap_or_default().to_owned();
        addresses.insert(interface, network["ips"][0].as_str().unwrap_or_default().parse()?);
    }
    Ok(Pod { name: text("/metadata/name"), node: text("/spec/nodeName"), addresses })
}

/// All interfaces of pods, sorted.
pub(crate) fn attached(pods: &[Pod]) -> Vec<Attached> {
    let of = |pod: &Pod| {
        let pod = pod.clone();
        pod.addresses.into_iter().map(move |(interface, address)| Attached {
            pod: pod.name.clone(),
            interface,
            address,
        })
    };
    let mut all: Vec<Attached> = pods.iter().flat_map(of).collect();
    all.sort();
    all
}

/// What the stores of all agents show.
pub(crate) fn shown(cluster: &Kubernetes) -> anyhow::Result<Vec<Value>> {
    let agents = items(&cluster.get(&["pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent"])?);
    let mut all = Vec::new();
    for agent in agents {
        let name = agent["metadata"]["name"].as_str().unwrap_or_default();
        let words = ["exec", "-n", NAMESPACE, name, "--", "/ipam-node", "store", "show", "-o", "json"];
        let mut shown: Value = serde_json::from_str(&cluster.kubectl().run(&words)?)?;
        all.append(shown["addresses"].as_array_mut().context("no addresses are shown")?);
    }
    Ok(all)
}

/// All addresses in use by the stores of the agents, sorted.
fn in_stores(cluster: &Kubernetes) -> anyhow::Result<Vec<Attached>> {
    let read = |entry: &Value| {
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        Ok(Attached { pod: text("pod"), interface: text("interface"), address: text("address").parse()? })
    };
    let mut all = shown(cluster)?.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    all.sort();
    Ok(all)
}

/// Waits until the stores have exactly these addresses.
pub(crate) fn stores_have(cluster: &Kubernetes, wanted: &[Attached]) {
    eventually_blocking("the stores have what pods have", SOON, || {
        let all = in_stores(cluster)?;
        let more: Vec<&Attached> = all.iter().filter(|it| !wanted.contains(it)).collect();
        let less: Vec<&Attached> = wanted.iter().filter(|it| !all.contains(it)).collect();
        anyhow::ensure!(all == wanted, "too many: {more:?}, missing: {less:?}");
        Ok(())
    })
    .unwrap();
}

/// Fails if two interfaces have one address.
pub(crate) fn assert_unique(pods: &[Pod]) {
    let mut owners: BTreeMap<IpAddr, Attached> = BTreeMap::new();
    for it in attached(pods) {
        let earlier = owners.insert(it.address, it.clone());
        assert_eq!(earlier, None, "{it:?} has the address of another");
    }
}

/// The addresses that a pool has assigned to a node, as its status says: from the first to the last.
fn block(pool: &Value, node: &str) -> (IpAddr, IpAddr) {
    let allocations = pool["status"]["allocations"].as_array().unwrap();
    let own = allocations.iter().find(|allocation| allocation["nodeName"] == node).unwrap();
    if let Some(prefix) = own["prefix"].as_str() {
        let range = Cidr::parse(prefix).unwrap().0.range();
        return (range.first(), range.last());
    }
    let address = |field: &str| own[field].as_str().unwrap().parse().unwrap();
    (address("startIP"), address("endIP"))
}

/// Fails if an interface of a pod has an address outside the block that the pool has assigned to the pod's node.
pub(crate) fn assert_within_block(pool: &Value, pod: &Pod, interface: &str) {
    let (first, last) = block(pool, &pod.node);
    let address = pod.addresses[interface];
    assert!((first..=last).contains(&address), "{interface} of {pod:?} is not in {first}-{last}");
}

/// Runs busybox in a pod; answers what it prints.
pub(crate) fn exec(cluster: &Kubernetes, pod: &Pod, words: &[&str]) -> anyhow::Result<String> {
    cluster.kubectl().run(&[&["exec", "-n", PODS, &pod.name, "--", "/busybox"], words].concat())
}

/// Deletes a Deployment, and waits until its pods are gone.
pub(crate) fn delete(cluster: &Kubernetes, name: &str) {
    let words = ["delete", "deployment", name, "-n", PODS, "--cascade=foreground", "--timeout=2m"];
    cluster.kubectl().run(&words).unwrap();
}

/// Deletes some pods at once, without waiting for their end.
pub(crate) fn delete_pods(cluster: &Kubernetes, pods: &[Pod]) {
    let mut words = vec!["delete", "pods", "-n", PODS, "--wait=false"];
    words.extend(pods.iter().map(|pod| pod.name.as_str()));
    cluster.kubectl().run(&words).unwrap();
}

/// Applies an IPPool, a network and a Deployment of this name, and waits for its pods. Each node has `block` addresses.
pub(crate) fn start(cluster: &Kubernetes, name: &str, block: u32, replicas: usize) -> Vec<Pod> {
    let net = format!("{name}-net");
    apply(cluster, &[ip_pool(name, block), network(&net, name, "ippool"), deployment(name, replicas, &[&net])]);
    ready(cluster, name, replicas)
}

/// Fails if a pod does not have one address, two have the same, or the stores disagree.
pub(crate) fn assert_served(cluster: &Kubernetes, pods: &[Pod]) {
    assert_unique(pods);
    assert!(pods.iter().all(|pod| pod.addresses.len() == 1), "{pods:?}");
    stores_have(cluster, &attached(pods));
}

/// Deletes what [`start`] applied, and waits until no address is in use.
pub(crate) fn end(cluster: &Kubernetes, name: &str) {
    delete(cluster, name);
    stores_have(cluster, &[]);
    cluster.kubectl().run(&["delete", "ippool", name, "-n", NAMESPACE, "--timeout=2m"]).unwrap();
}
