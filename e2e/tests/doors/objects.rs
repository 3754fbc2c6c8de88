//! A case as objects of the API.

use std::collections::BTreeMap;

use ipam_core::overlap::ALLOW_OVERLAP_ANNOTATION;
use ipam_core::plan::{Assignment, BlockPhase};
use ipam_core::{Block, Claim, Family, Held, PoolKey};
use ipam_crds::read::judge;
use ipam_crds::{AddressRange, BlockState, BlockUse, NodeBlock};
use ipam_e2e::cases::{Case, Other, fleet};
use ipam_reconciler::ipam_node::entry;
use serde_json::{Value, json};

pub(crate) const API_VERSION: &str = "nv-ipam.nvidia.com/v1alpha1";

/// The grant of each block that a node has from the start.
const GRANT: &str = "6955b90000000001";

/// The pool of a case with the spec that is put.
pub(crate) fn new(case: &Case) -> Value {
    pool(case.kind().kind(), &case.pool, case.allow_overlap.as_deref(), &case.spec)
}

/// The pool as it was before, with what the operator would have written into its status.
pub(crate) fn old(case: &Case) -> Option<Value> {
    let spec = case.old.as_ref()?;
    let mut pool = pool(case.kind().kind(), &case.pool, case.old_allow_overlap.as_deref(), spec);
    pool["status"] = status(case);
    Some(pool)
}

/// Another pool of the namespace.
pub(crate) fn other(other: &Other) -> Value {
    pool(&other.kind, &other.name, other.allow_overlap.as_deref(), &other.spec)
}

pub(crate) fn pool(kind: &str, name: &str, allow_overlap: Option<&str>, spec: &Value) -> Value {
    let annotations: BTreeMap<&str, &str> =
        allow_overlap.map(|value| (ALLOW_OVERLAP_ANNOTATION, value)).into_iter().collect();
    json!({
        "apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "annotations": annotations}, "spec": spec,
    })
}

fn status(case: &Case) -> Value {
    let record = |(node, block): (&String, &String)| match block.split_once('-') {
        Some((first, last)) if case.kind().kind() == "IPPool" => {
            json!({"nodeName": node, "startIP": first, "endIP": last})
        }
        _ => match block.split_once(" via ") {
            Some((prefix, gateway)) => json!({"nodeName": node, "prefix": prefix, "gateway": gateway}),
            None => json!({"nodeName": node, "prefix": block}),
        },
    };
    let (leaving, staying): (Vec<_>, Vec<_>) =
        case.blocks.iter().partition(|(node, _)| case.leaving.contains(node.as_str()));
    let mut releasing: Vec<Value> = leaving.into_iter().map(record).collect();
    for release in &mut releasing {
        release["since"] = "2026-01-01T00:00:00Z".into();
    }
    let used = case.held.values().fold(0_u64, |sum, held| sum.saturating_add(held.count()));
    json!({
        "observedGeneration": 1, "allocations": staying.into_iter().map(record).collect::<Vec<_>>(),
        "releasing": releasing, "addresses": {"capacity": 1000, "used": used},
        "conditions": [ready(case.old.as_ref().is_some_and(|old| judge(case.kind(), &case.pool, old).is_ok()))],
    })
}

/// The condition Ready.
pub(crate) fn ready(is_valid: bool) -> Value {
    let (status, reason) = if is_valid { ("True", "Valid") } else { ("False", "InvalidSpec") };
    let since = "2026-01-01T00:00:00Z";
    json!({"type": "Ready", "status": status, "reason": reason, "message": "", "lastTransitionTime": since})
}

/// What the operator would have told a node of its block, and what the node's agent says about it; by node. Of a node whose
/// agent has told nothing there is the block alone.
pub(crate) fn told(case: &Case) -> BTreeMap<String, (NodeBlock, Option<BlockUse>)> {
    let key = PoolKey::new(case.kind(), &case.pool);
    let pool = case.old.as_ref().and_then(|old| judge(case.kind(), &case.pool, old).ok()).map(|(_, pool)| pool);
    let told = |claim: Claim| {
        let phase = if case.leaving.contains(&claim.node) { BlockPhase::Releasing } else { BlockPhase::Active };
        let block = Block { range: claim.range, gateway: claim.gateway };
        let assignment = Assignment { node: claim.node.clone(), block, phase };
        let told = NodeBlock { grant: GRANT.to_owned(), ..entry(&key, pool.as_ref(), &assignment, None) };
        let said = report(&told, &case.held_by(&claim.node).unwrap());
        (claim.node, (told, said))
    };
    case.claims().unwrap().into_iter().map(told).collect()
}

/// What an agent says that has `block` and holds this.
pub(crate) fn report(block: &NodeBlock, held: &Held) -> Option<BlockUse> {
    let family = if block.start_ip.contains(':') { Family::V6 } else { Family::V4 };
    let text = |number: u128| family.addr(number).to_string();
    let runs = match held {
        Held::Addresses(held) => {
            held.runs().map(|(first, last)| AddressRange { start_ip: text(first), end_ip: text(last) }).collect()
        }
        Held::Unknown | Held::Count(_) => Vec::new(),
    };
    let used = held.count()?.try_into().unwrap();
    Some(BlockUse {
        name: block.name.clone(),
        pool_type: block.pool_type,
        start_ip: block.start_ip.clone(),
        end_ip: block.end_ip.clone(),
        grant: Some(block.grant.clone()),
        ended: block.state == BlockState::Releasing && used == 0,
        idle: false,
        used,
        capacity: 1000,
        held: runs,
    })
}

/// An IPAMNode with what the operator and the agent have written into it.
pub(crate) fn ipam_node(name: &str, told: &[(NodeBlock, Option<BlockUse>)]) -> Value {
    let blocks: Vec<_> = told.iter().map(|(block, _)| block).collect();
    let said: Vec<_> = told.iter().filter_map(|(_, said)| said.as_ref()).collect();
    json!({
        "apiVersion": API_VERSION, "kind": "IPAMNode", "metadata": {"name": name}, "spec": {"pools": blocks},
        "status": {"observedGeneration": 1, "pools": said},
    })
}

/// The Nodes among which every case plays.
pub(crate) fn nodes() -> Vec<Value> {
    let node =
        |(name, labels)| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    fleet().into_iter().map(node).collect()
}

/// A review of the change from `old` to `new`, as the API server sends it.
pub(crate) fn review(namespace: &str, old: Option<&Value>, new: &Value) -> Value {
    let kind = &new["kind"];
    let resource = format!("{}s", kind.as_str().unwrap().to_lowercase());
    let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "operation": operation, "namespace": namespace, "name": new["metadata"]["name"], "dryRun": true,
            "kind": {"group": "nv-ipam.nvidia.com", "version": "v1alpha1", "kind": kind},
            "resource": {"group": "nv-ipam.nvidia.com", "version": "v1alpha1", "resource": resource},
            "userInfo": {"username": "admin", "groups": ["system:masters", "system:authenticated"]},
            "object": new, "oldObject": old,
        },
    })
}
