//! What a pod requests, and whether its node's entry of the pool allows the answer.

use std::net::IpAddr;

use ipam_core::ledger::{Attachment, Grant, Owner, Pick, Request};
use ipam_core::{AddrRange, Family};
use ipam_crds::{AddressRange, BlockState, NodeBlock};

use super::process::pool_of;

/// The network of every pod.
pub(super) const NETWORK: &str = "net";
/// The interface of every pod.
pub(super) const IF_NAME: &str = "net1";

/// What a pod requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// Any address.
    Any,
    /// Any address, and the agent dies after the record is durable and before it answers: the runtime then deletes the pod.
    AnyAndCrash,
    /// Any address, and after this many steps of the disk the agent is killed, or with `power` the node's power is cut.
    AnyAndCut { after: u8, power: bool },
    /// The address this far into the node's block, by its index or by its value.
    Named { offset: u128, by_index: bool },
    /// Any address, and one of another pool, by its number.
    Two(u8),
}

/// The request of the `number`-th pod for an address of each block. No pod requests the gateway.
pub(super) fn request(container: String, number: u32, blocks: &[NodeBlock], wish: Wish) -> Option<Request> {
    let attachment = Attachment {
        pod_name: container.clone(),
        pod_namespace: "default".to_owned(),
        pod_uid: format!("{number:08x}-0000-4000-8000-000000000000"),
        network: NETWORK.to_owned(),
        ..Attachment::default()
    };
    let (owner, pools) = (Owner::new(container, IF_NAME), blocks.iter().map(pool_of).collect());
    let plain = Request { pools, owner, attachment, requested: Vec::new(), pick: Pick::Next };
    let (Wish::Named { offset, by_index }, [block]) = (wish, blocks) else { return Some(plain) };
    let (first, last) = range(&block.start_ip, &block.end_ip)?.numbers();
    let offset = offset % (last - first).saturating_add(1);
    let addr = Family::of(block.start_ip.parse().ok()?).addr(first + offset);
    let is_gateway = gateway(block) == Some(addr);
    let index = i32::try_from(offset).ok().filter(|_| by_index);
    let asked = match index {
        Some(index) => Request { pick: Pick::Index(index), ..plain },
        None => Request { requested: vec![addr], ..plain },
    };
    (!is_gateway).then_some(asked)
}

/// The error of an answer, by the agent's entry of the pool. `cools` is whether the address was freed just now.
pub(super) fn told_address(block: &NodeBlock, grant: &Grant, wish: Wish, cools: bool) -> Option<String> {
    let addr = grant.addr;
    let is_in = |run: &AddressRange| range(&run.start_ip, &run.end_ip).is_some_and(|range| range.contains(addr));
    let is_in_block = range(&block.start_ip, &block.end_ip).is_some_and(|range| range.contains(addr));
    let is_named = matches!(wish, Wish::Named { .. });
    let what = if !is_in_block {
        "is outside its block"
    } else if block.state != BlockState::Active {
        "is of a block that is being released"
    } else if gateway(block) == Some(addr) {
        "is the gateway"
    } else if block.held_elsewhere.iter().any(is_in) {
        "is unavailable on this node"
    } else if !is_named && block.exclusions.iter().any(is_in) {
        "is excluded"
    } else if !is_named && cools {
        "was freed just now"
    } else {
        return wrong_answer(block, grant);
    };
    Some(format!("allocates {addr} of {:?}, which {what}", block.name))
}

/// The error if mask, gateway or routes of the answer differ from the entry.
fn wrong_answer(block: &NodeBlock, grant: &Grant) -> Option<String> {
    let prefix_len = block.subnet.rsplit_once('/').and_then(|(_, length)| length.parse().ok());
    let mut routes: Vec<String> = block.routes.iter().map(|route| route.dst.clone()).collect();
    if block.default_gateway == Some(true) {
        let default = if grant.addr.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
        routes.push(default.to_owned());
    }
    if gateway(block).is_none() {
        routes.clear();
    }
    let mut answered: Vec<String> = grant.routes.iter().map(ToString::to_string).collect();
    answered.sort_unstable();
    routes.sort_unstable();
    routes.dedup();
    let is_right = prefix_len == Some(grant.prefix_len) && gateway(block) == grant.gateway && routes == answered;
    (!is_right).then(|| format!("answers {grant:?}, though its entry says {block:?}"))
}

fn gateway(block: &NodeBlock) -> Option<IpAddr> {
    block.gateway.as_deref().and_then(|text| text.parse().ok())
}

fn range(first: &str, last: &str) -> Option<AddrRange> {
    AddrRange::new(first.parse().ok()?, last.parse().ok()?)
}
