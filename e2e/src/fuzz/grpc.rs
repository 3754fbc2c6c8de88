//! Messages at the agent's socket, one call after the other, as the service hears them behind gRPC's own framing.

#![expect(clippy::panic, reason = "a target panics where something does not hold")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipam_core::ledger::{Change, Ledger};
use ipam_core::{Cidr, NodePool, PoolKey, PoolKind};
use ipam_node_agent::allocator::{Allocator, Source};
use ipam_node_agent::blocks::node_pools;
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::ready::Readiness;
use ipam_node_agent::rpc::Rpc;
use ipam_node_api::v1::ipam_garbage_service_server::IpamGarbageService as _;
use ipam_node_api::v1::ipam_service_server::IpamService as _;
use ipam_node_api::v1::{
    AllocateRequest, AllocateResponse, Attachment, DeallocateRequest, IpamFeatures, IpamMetadata, IpamParameters,
    IsAllocatedRequest, PoolType, ReleaseUnlistedRequest,
};
use ipam_node_store::{Position, Room, Store, StoreError};
use prost::Message;
use tonic::{Code, Request, Status};

use super::store::{held, replayed};

/// Calls of one input at most.
const MOST_CALLS: usize = 16;
/// Longest message of a refusal.
const LONGEST: usize = 2_100;
/// Which call a message is for: the byte before its length.
const ALLOCATE: u8 = 0;
const CHECK: u8 = 1;
const RELEASE: u8 = 2;

/// A store in memory, for the journal has a target of its own.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Change>>>);

impl Kept {
    fn changes(&self) -> MutexGuard<'_, Vec<Change>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Kept {
    fn make_room(&mut self, _: usize, _: Room) -> Result<(), StoreError> {
        Ok(())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.changes().extend_from_slice(changes);
        Ok(())
    }

    fn position(&self) -> Position {
        Position::default()
    }

    fn wants_compaction(&self) -> bool {
        false
    }

    fn compact(&mut self, _: &mut dyn Iterator<Item = Change>) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The container and interface of each address, as the answers say.
type Held = BTreeMap<(PoolKey, String), (String, String)>;

pub(super) fn run(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    assert!(runtime.is_ok());
    if let Ok(runtime) = runtime {
        let _ = runtime.block_on(calls(data));
    }
}

/// How many addresses are held in the end.
async fn calls(data: &[u8]) -> usize {
    let kept = Kept::default();
    let pools = pools();
    let (metrics, _registry) = Metrics::registered();
    let started = Allocator::start(Ledger::new(0), Box::new(kept.clone()), Arc::new(|| 1), Arc::clone(&metrics));
    assert!(started.is_ok(), "no thread for the allocator");
    let Ok((allocator, ended)) = started else { return 0 };
    let grants = pools.iter().filter_map(|pool| Some((pool.key.clone(), pool.grant?))).collect();
    assert!(allocator.configure(pools.clone(), Source::ApiServer(None), None).await.is_ok());
    assert!(allocator.confirm(grants).await.is_ok());
    let readiness = Readiness::default();
    readiness.set_serving(true);
    readiness.blocks_are_known();
    let rpc = Rpc::new(allocator.clone(), readiness, metrics);
    let mut holders = Held::new();
    for (call, message) in messages(data) {
        match call % 4 {
            ALLOCATE => allocate(&rpc, &pools, message, &mut holders).await,
            CHECK => check(&rpc, message).await,
            RELEASE => release(&rpc, message, &mut holders).await,
            _ => release_unlisted(&rpc, message).await,
        }
    }
    let reservations = allocator.reservations().await.unwrap_or_default();
    drop(rpc);
    allocator.close().await;
    assert!(ended.await.is_ok_and(|end| end.is_ok()), "the allocator's thread died");
    let in_use: BTreeSet<String> = reservations.iter().map(|one| format!("{one:?}")).collect();
    assert_eq!(held(&replayed(&kept.changes())), in_use, "the next start knows of something else");
    in_use.len()
}

/// Each message behind its call and its length in two bytes.
fn messages(data: &[u8]) -> Vec<(u8, &[u8])> {
    let (mut calls, mut rest) = (Vec::new(), data);
    while let [call, low, high, tail @ ..] = rest {
        let (message, behind) = tail.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(tail.len()));
        calls.push((*call, message));
        rest = behind;
    }
    calls.truncate(MOST_CALLS);
    calls
}

fn pools() -> Vec<NodePool> {
    let flat = serde_json::json!({"name": "p", "poolType": "IPPool", "grant": "6500000000000001", "state": "Active", "startIP": "10.0.0.1",
        "endIP": "10.0.0.6", "subnet": "10.0.0.0/24", "gateway": "10.0.0.1",
        "exclusions": [{"startIP": "10.0.0.3", "endIP": "10.0.0.3"}]});
    let routed = serde_json::json!({"name": "q", "poolType": "CIDRPool", "grant": "6500000000000002", "state": "Active", "startIP": "fd00::1",
        "endIP": "fd00::ff", "subnet": "fd00::/120", "gateway": "fd00::1"});
    let blocks = [flat, routed].map(|block| serde_json::from_value(block).unwrap_or_default());
    let (pools, problems) = node_pools(&blocks);
    assert_eq!(problems, [""; 0]);
    pools
}

fn refused(status: &Status) {
    let known = [Code::InvalidArgument, Code::NotFound, Code::AlreadyExists, Code::ResourceExhausted];
    assert!(known.contains(&status.code()), "{status:?}");
    assert!(!status.message().is_empty() && status.message().len() < LONGEST, "{status:?}");
}

async fn allocate(rpc: &Rpc, pools: &[NodePool], message: &[u8], holders: &mut Held) {
    let Ok(request) = AllocateRequest::decode(message) else { return };
    let answer = rpc.allocate(Request::new(request.clone())).await.map(tonic::Response::into_inner);
    match &answer {
        Err(status) => refused(status),
        Ok(given) => granted(pools, &request.parameters.clone().unwrap_or_default(), given, holders),
    }
    let again = rpc.allocate(Request::new(request)).await.map(tonic::Response::into_inner);
    if let Ok(given) = answer {
        assert_eq!(again.ok(), Some(given), "a repeated ADD gets something else");
    }
}

/// The answer has one sound address of each pool, which no other interface has.
fn granted(pools: &[NodePool], asked: &IpamParameters, given: &AllocateResponse, holders: &mut Held) {
    assert_eq!(given.allocations.len(), asked.pools.len());
    let owner = (asked.cni_containerid.clone(), asked.cni_ifname.clone());
    let features = asked.features.unwrap_or_default();
    let plain = asked.requested_ips.is_empty() && features == IpamFeatures::default();
    for (info, name) in given.allocations.iter().zip(&asked.pools) {
        let kind = if info.pool_type == i32::from(PoolType::Cidrpool) { PoolKind::CidrPool } else { PoolKind::IpPool };
        let key = PoolKey::new(kind, name.as_str());
        let pool = pools.iter().find(|pool| pool.key == key);
        let parsed = Cidr::parse(&info.ip).ok().zip(info.ip.split('/').next().and_then(|text| text.parse().ok()));
        let (Some(pool), Some((subnet, addr))) = (pool, parsed) else { panic!("{info:?} is of no pool here") };
        assert_eq!(subnet.0, pool.subnet, "{info:?}");
        if plain {
            let excluded = pool.exclusions.contains(ipam_core::addr::number(addr));
            assert!(pool.range.contains(addr) && pool.gateway != Some(addr) && !excluded, "{info:?}");
        }
        let before = holders.insert((key, info.ip.clone()), owner.clone());
        assert!(before.is_none_or(|before| before == owner), "{info:?} is held by another, too");
    }
}

async fn check(rpc: &Rpc, message: &[u8]) {
    let Ok(request) = IsAllocatedRequest::decode(message) else { return };
    if let Err(status) = rpc.is_allocated(Request::new(request)).await {
        refused(&status);
    }
}

async fn release(rpc: &Rpc, message: &[u8], holders: &mut Held) {
    let Ok(request) = DeallocateRequest::decode(message) else { return };
    let asked = request.parameters.clone().unwrap_or_default();
    if let Err(status) = rpc.deallocate(Request::new(request.clone())).await {
        assert_eq!(status.code(), Code::InvalidArgument, "DEL fails: {status:?}");
        return refused(&status);
    }
    let owner = (asked.cni_containerid, asked.cni_ifname);
    holders.retain(|(pool, _), holder| *holder != owner || !asked.pools.contains(&pool.name));
    assert!(rpc.deallocate(Request::new(request)).await.is_ok(), "a repeated DEL fails");
}

async fn release_unlisted(rpc: &Rpc, message: &[u8]) {
    let Ok(request) = ReleaseUnlistedRequest::decode(message) else { return };
    if let Err(status) = rpc.release_unlisted(Request::new(request.clone())).await {
        return refused(&status);
    }
    let again = rpc.release_unlisted(Request::new(request)).await;
    assert_eq!(again.ok().map(|answer| answer.into_inner().released), Some(0), "something comes back");
}

/// A life of two interfaces, and calls with all fields that there are.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let parameters = |pools: &[&str], container: &str, pool_type: PoolType| IpamParameters {
        pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
        cni_containerid: container.to_owned(),
        cni_ifname: "net1".to_owned(),
        metadata: Some(IpamMetadata {
            k8s_pod_name: container.to_owned(),
            k8s_pod_namespace: "default".to_owned(),
            k8s_pod_uid: "uid".to_owned(),
            device_id: "0000:3b:02.1".to_owned(),
            network_name: "net".to_owned(),
        }),
        pool_type: pool_type.into(),
        ..IpamParameters::default()
    };
    let allocate = |parameters: IpamParameters| call(ALLOCATE, &AllocateRequest { parameters: Some(parameters) });
    let (a, b) = (parameters(&["p"], "a", PoolType::Ippool), parameters(&["q"], "b", PoolType::Cidrpool));
    let by_name =
        IpamParameters { requested_ips: vec!["10.0.0.9".to_owned()], ..parameters(&["p"], "c", PoolType::Ippool) };
    let wish = |features: IpamFeatures, name: &str| IpamParameters {
        features: Some(features),
        ..parameters(&["q"], name, PoolType::Cidrpool)
    };
    let index = wish(IpamFeatures { allocate_ip_with_index: Some(3), ..IpamFeatures::default() }, "d");
    let gateway = wish(IpamFeatures { allocate_default_gateway: true, ..IpamFeatures::default() }, "e");
    let attachments = vec![Attachment { container_id: "b".to_owned(), if_name: "net1".to_owned() }];
    let unlisted = ReleaseUnlistedRequest {
        network_name: "net".to_owned(),
        pools: vec!["p".to_owned()],
        pool_type: PoolType::Ippool.into(),
        valid_attachments: attachments,
    };
    vec![
        [
            allocate(a.clone()),
            call(CHECK, &IsAllocatedRequest { parameters: Some(a.clone()) }),
            call(RELEASE, &DeallocateRequest { parameters: Some(a.clone()) }),
            allocate(b.clone()),
        ]
        .concat(),
        [allocate(a.clone()), allocate(by_name), allocate(index), allocate(gateway)].concat(),
        [allocate(a), allocate(b), call(3, &unlisted)].concat(),
        call(CHECK, &IsAllocatedRequest { parameters: None }),
    ]
}

fn call(call: u8, message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    [&[call], &u16::try_from(bytes.len()).unwrap_or_default().to_le_bytes()[..], &bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_seeds_are_served() {
        let mut held = Vec::new();
        for seed in seeds() {
            held.push(calls(&seed).await);
        }
        assert_eq!(held, [1, 4, 1, 0]);
    }
}
