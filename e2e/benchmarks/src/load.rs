//! Nodes as kubelets make and keep them, many at a time: of the size of real ones, and patched as kubelets patch them.

use std::fmt::Debug;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use ipam_crds::{IPAMNode, IPPool};
use ipam_operator::election::LEASE_NAME;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Calls under way at a time: enough to keep the API server busy, few enough for two cores.
pub(super) const AT_ONCE: usize = 16;
/// Images that a kubelet reports of its node.
const IMAGES: u32 = 30;

/// The name of a node by its number.
pub(super) fn name(number: u32) -> String {
    format!("node-{number:05}.example.org")
}

/// Creates nodes by number.
pub(super) async fn create(client: &Client, numbers: impl Iterator<Item = u32>) -> Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    let create = |number| {
        let api = api.clone();
        async move { create_one(&api, &name(number)).await }
    };
    stream::iter(numbers).map(create).buffer_unordered(AT_ONCE).try_collect::<()>().await
}

/// Creates one node.
pub(super) async fn create_one(api: &Api<Node>, name: &str) -> Result<()> {
    let node: Node = serde_json::from_value(node(name))?;
    api.create(&PostParams::default(), &node).await.with_context(|| format!("cannot create node {name}"))?;
    Ok(())
}

/// One heartbeat of each of these nodes, with one annotation that moves, as device plugins and the like write them.
pub(super) async fn beat(client: &Client, numbers: impl Iterator<Item = u32>, beat: u32) -> Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    let patch = |number| {
        let api = api.clone();
        async move {
            let patch = Patch::Strategic(json!({
                "metadata": {"annotations": {"example.org/last-seen": format!("beat-{beat}")}},
                "status": {"conditions": conditions(beat)},
            }));
            let done = api.patch_status(&name(number), &PatchParams::default(), &patch).await;
            done.map(drop).with_context(|| format!("no heartbeat of {}", name(number)))
        }
    };
    stream::iter(numbers).map(patch).buffer_unordered(AT_ONCE).try_collect::<()>().await
}

fn conditions(beat: u32) -> Value {
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": format!("kubelet reports {reason}"),
            "lastHeartbeatTime": format!("2026-01-01T{:02}:{:02}:00Z", beat / 60 % 24, beat % 60),
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    json!([
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID"),
        condition("Ready", "True", "KubeletReady"),
    ])
}

fn node(name: &str) -> Value {
    let images: Vec<Value> = (0..IMAGES)
        .map(|number| {
            let digest = format!("registry.example.org/team/image-{number}@sha256:{number:064x}");
            json!({"names": [digest, format!("registry.example.org/team/image-{number}:v1.2.{number}")], "sizeBytes": 123_456_789})
        })
        .collect();
    let amounts = json!({"cpu": "64", "memory": "263856236Ki", "pods": "250", "ephemeral-storage": "1843269Mi", "hugepages-1Gi": "0"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "node-role.kubernetes.io/worker": "",
                "node.kubernetes.io/instance-type": "metal.large", "topology.kubernetes.io/region": "region-1",
                "topology.kubernetes.io/zone": "zone-b", "example.org/rack": "r17",
            },
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true",
                "csi.volume.kubernetes.io/nodeid": format!("{{\"csi.example.org\":\"{name}\"}}"), "example.org/last-seen": "never",
            },
        },
        "spec": {"providerID": format!("example:///zone-b/{name}")},
        "status": {
            "capacity": amounts, "allocatable": amounts, "conditions": conditions(0), "images": images,
            "addresses": [{"type": "InternalIP", "address": "192.0.2.7"}, {"type": "Hostname", "address": name}],
            "nodeInfo": {
                "architecture": "amd64", "bootID": "8a7e4c2e", "containerRuntimeVersion": "containerd://2.1.0",
                "kernelVersion": "6.8.0", "kubeProxyVersion": "", "kubeletVersion": "v1.33.0", "machineID": "5d1c",
                "operatingSystem": "linux", "osImage": "Linux", "systemUUID": "5d1c",
            },
        },
    })
}

/// Creates these pools.
pub(super) async fn apply_pools(client: &Client, namespace: &str, pools: &[Value]) -> Result<()> {
    let api: Api<IPPool> = Api::namespaced(client.clone(), namespace);
    for pool in pools {
        api.create(&PostParams::default(), &serde_json::from_value(pool.clone())?).await.context("the pool")?;
    }
    Ok(())
}

/// Removes the finalizers of all objects of a kind that are being deleted, if the kind exists.
pub(super) async fn strip<K>(api: &Api<K>) -> Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    let Ok(listed) = api.list_metadata(&ListParams::default()).await else { return Ok(()) };
    let held = listed.items.into_iter().filter(|object| object.metadata.deletion_timestamp.is_some());
    let free = |name: String| {
        let api = api.clone();
        async move {
            let freed = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            match api.patch_metadata(&name, &PatchParams::default(), &freed).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                done => done.map(drop).with_context(|| format!("cannot free {name}")),
            }
        }
    };
    stream::iter(held.filter_map(|object| object.metadata.name)).map(free).buffer_unordered(AT_ONCE).try_collect().await
}

/// Removes pools, all IPAMNodes and the operators' Lease, which records that blocks were assigned. No operator may run.
pub(super) async fn forget(client: &Client, namespace: &str, pools: &[String]) -> Result<()> {
    let api: Api<IPPool> = Api::namespaced(client.clone(), namespace);
    for pool in pools {
        let freed = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        api.patch(pool, &PatchParams::default(), &freed).await.with_context(|| format!("cannot free pool {pool}"))?;
        api.delete(pool, &DeleteParams::default()).await.with_context(|| format!("cannot delete pool {pool}"))?;
    }
    let nodes: Api<IPAMNode> = Api::namespaced(client.clone(), namespace);
    let names = nodes.list_metadata(&ListParams::default()).await?.items;
    let delete = |name: String| {
        let nodes = nodes.clone();
        async move {
            let freed = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            nodes.patch(&name, &PatchParams::default(), &freed).await.context("cannot free an IPAMNode")?;
            nodes.delete(&name, &DeleteParams::default()).await.map(drop).context("cannot delete an IPAMNode")
        }
    };
    let names = names.into_iter().filter_map(|node| node.metadata.name);
    stream::iter(names).map(delete).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    leases.delete(LEASE_NAME, &DeleteParams::default()).await.context("cannot delete the Lease")?;
    Ok(())
}
