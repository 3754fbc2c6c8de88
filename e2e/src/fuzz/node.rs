//! An IPAMNode as the agent reads it: the agent allocates by its spec; its status is the report of an earlier agent.

#![expect(clippy::panic, reason = "a target panics where something does not hold")]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipam_core::addr::number;
use ipam_core::ledger::{Attachment, Ledger, Owner, Pick, Request, Reservation};
use ipam_core::node_pool::PoolState;
use ipam_core::{NodePool, PoolKey, PoolKind};
use ipam_crds::IPAMNode;
use ipam_node_agent::blocks::usable;
use ipam_node_agent::identity::Identity;
use ipam_node_agent::lost::{Found, Lost};
use ipam_node_agent::note::Noted;
use ipam_node_agent::spec::NodeSpec;
use ipam_node_agent::standing::Standing;
use ipam_node_store::Position;
use kube::core::DeserializeGuard;
use serde_json::json;

/// ADDs that are tried of each pool.
const ADDS: usize = 4;

pub(super) fn attachment(name: &str) -> Attachment {
    Attachment { pod_name: name.to_owned(), pod_namespace: "default".to_owned(), ..Attachment::default() }
}

/// An address that is held in pool "p"; the container and the address follow from the name.
pub(super) fn reservation(name: &str) -> Reservation {
    let last = name.bytes().next().unwrap_or_default();
    Reservation {
        pool: PoolKey::new(PoolKind::IpPool, "p"),
        owner: Owner::new(name, "net1"),
        addr: IpAddr::V4(Ipv4Addr::new(10, 200, 0, last)),
        attachment: attachment(name),
        created: 5,
    }
}

pub(super) fn run(data: &[u8]) {
    let Ok(DeserializeGuard(Ok(object))) = serde_json::from_slice::<DeserializeGuard<IPAMNode>>(data) else { return };
    let spec = NodeSpec::from(&object);
    let standing = Standing { arrival: 1, ..Standing::from(&object) };
    let position = Position { epoch: 1, sequence: 1 };
    let lost = Lost::find(&standing, &Found { position, identity: Identity::default(), grace: None });
    let noted = Noted::first(spec.clone()).compared(lost.clone());
    assert_eq!(noted.followed_by(spec), noted, "the same spec again changes something");
    allocates_soundly(&noted);
    // The agent allocates no address that the report has as in use and the store does not.
    let Some(lost) = lost else { return };
    let (pools, _) = usable(&noted, None);
    for holding in lost.join(Vec::new()) {
        let own = pools.iter().filter(|pool| pool.key == holding.key);
        for (pool, run) in own.flat_map(|pool| holding.runs.iter().map(move |run| (pool, run))) {
            let is_unavailable = pool.is_held_elsewhere(run.first()) && pool.is_held_elsewhere(run.last());
            assert!(is_unavailable || pool.range.family() != run.family(), "{run} of {pool:?} may be allocated");
        }
    }
}

/// Pools by this spec, and the addresses allocated from them, are sound. Returns the number of these addresses.
pub(super) fn allocates_soundly(noted: &Noted) -> usize {
    let (pools, problems) = usable(noted, None);
    assert!(problems.iter().all(|problem| !problem.reason.is_empty() && !problem.sentence.is_empty()));
    let keys: BTreeSet<&PoolKey> = pools.iter().map(|pool| &pool.key).collect();
    assert_eq!(keys.len(), pools.len(), "a pool stands twice");
    let mut ledger = Ledger::new(0);
    ledger.configure(pools.clone());
    let grants: Vec<_> = pools.iter().filter_map(|pool| Some((pool.key.clone(), pool.grant?))).collect();
    ledger.grant_steps().iter().for_each(|step| ledger.apply(step));
    ledger.confirm(&grants).iter().for_each(|step| ledger.apply(step));
    let mut allocated = BTreeSet::new();
    for pool in &pools {
        assert!(pool.subnet.range().contains_range(&pool.range), "{pool:?} reaches beyond its subnet");
        for number in 0..ADDS {
            allocate(&mut ledger, pool, number, &mut allocated);
        }
    }
    allocated.len()
}

fn allocate(ledger: &mut Ledger, pool: &NodePool, number_of_pod: usize, allocated: &mut BTreeSet<IpAddr>) {
    let request = Request {
        pools: vec![pool.key.clone()],
        owner: Owner::new(format!("c{number_of_pod}"), "net1"),
        attachment: attachment("p"),
        requested: Vec::new(),
        pick: Pick::Next,
    };
    let Ok(allocation) = ledger.allocate(&request, 0) else { return };
    let [grant] = &allocation.grants[..] else { panic!("one address was asked for") };
    let addr = grant.addr;
    assert_eq!(pool.state, PoolState::Active, "{addr} is allocated from a block that is not Active");
    assert!(pool.range.contains(addr) && pool.gateway != Some(addr), "{addr} is none of {pool:?}");
    assert!(!pool.exclusions.contains(number(addr)) && !pool.is_held_elsewhere(addr), "{addr} of {pool:?}");
    assert!(grant.routes.is_empty() || grant.gateway.is_some(), "routes without a gateway: {grant:?}");
    assert!(allocated.insert(addr), "{addr} is allocated twice");
    for change in &allocation.changes {
        ledger.apply(change);
    }
}

/// IPAMNodes as the operator and the agents write them.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let flat = json!({"name": "p", "poolType": "IPPool", "grant": "6500000000000001", "state": "Active", "startIP": "10.0.0.1", "endIP": "10.0.0.4",
        "subnet": "10.0.0.0/24", "gateway": "10.0.0.1", "defaultGateway": true,
        "exclusions": [{"startIP": "10.0.0.2", "endIP": "10.0.0.2"}], "routes": [{"dst": "5.5.0.0/16"}]});
    let routed = json!({"name": "q", "poolType": "CIDRPool", "grant": "6500000000000002", "state": "Active", "startIP": "fd00::1",
        "endIP": "fd00::ffff:ffff:ffff:ffff", "subnet": "fd00::/64", "gateway": "fd00::1"});
    let mut releasing = flat.clone();
    releasing["state"] = json!("Releasing");
    let report = json!({"name": "p", "poolType": "IPPool", "startIP": "10.0.0.1", "endIP": "10.0.0.4", "used": 1, "capacity": 3,
        "held": [{"startIP": "10.0.0.3", "endIP": "10.0.0.3"}]});
    let status = json!({"observedGeneration": 3, "ledger": {"epoch": 4, "sequence": 7}, "pools": [report]});
    let metadata =
        json!({"name": "n1", "namespace": "kube-system", "uid": "u", "generation": 3, "resourceVersion": "9"});
    let object = |pools: &serde_json::Value, status: &serde_json::Value| {
        json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNode", "metadata": metadata,
            "spec": {"pools": pools}, "status": status})
        .to_string()
        .into_bytes()
    };
    vec![
        object(&json!([flat, routed]), &status),
        object(&json!([releasing]), &status),
        object(&json!([flat]), &json!({})),
        object(&json!([]), &status),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_allocate_where_they_may() {
        let allocated = |bytes: &Vec<u8>| {
            let object: IPAMNode = serde_json::from_slice(bytes).unwrap();
            allocates_soundly(&Noted::first(NodeSpec::from(&object)))
        };
        assert_eq!(seeds().iter().map(allocated).collect::<Vec<_>>(), [2 + ADDS, 0, 2, 0]);
    }
}
