//! Advice about the network, its blocks, the gateway, routes and the node selector.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Advice, AdviceCode, OfAKind};
use crate::addr::{HostBits, number, parse_addr};
use crate::names::is_dns_subdomain;
use crate::quoted::Quoted;
use crate::spec::{CidrPoolSpec, IpPoolSpec, NodeSelectorTermSpec, PoolSpec};
use crate::words::counted;
use crate::{AddrRange, Cidr, Pool, PoolKind};

/// There is advice about unused addresses if they are at least one part in this many of the host addresses.
const WORTH_MENTION: u128 = 10;

/// Networks that hosts do not use as their own (RFC 1122 §3.2.1.3, RFC 5771, RFC 1112 §4; RFC 4291 §2.4).
const SPECIAL: [(&str, &str); 8] = [
    ("0.0.0.0/8", "\"this\" network"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/127", "unspecified and loopback"),
    ("fe80::/10", "link-local"),
    ("ff00::/8", "multicast"),
];

/// Advice about the fields before the exclusions.
pub(super) fn advise(spec: &PoolSpec, pool: &Pool, advice: &mut Vec<Advice>) {
    match spec {
        PoolSpec::Ip(spec) => of_ip_pool(spec, pool, advice),
        PoolSpec::Cidr(spec) => of_cidr_pool(spec, pool, advice),
    }
}

/// Advice about the fields after the exclusions.
pub(super) fn advise_rest(spec: &PoolSpec, pool: &Pool, advice: &mut Vec<Advice>) {
    let common = spec.common();
    let terms = common.node_selector.iter().flat_map(|selector| &selector.terms).enumerate();
    for (i, _) in terms.filter(|(_, term)| **term == NodeSelectorTermSpec::default()) {
        let message = "is empty and matches no node; leave nodeSelector out to select every node";
        let field = format!("spec.nodeSelector.nodeSelectorTerms[{i}]");
        advice.push(Advice::new(field, AdviceCode::EmptyTerm, message));
    }
    if common.deprecated_default_gateway {
        let message = "is an old spelling, kept for old manifests; write defaultGateway";
        advice.push(Advice::new("spec.defautGateway", AdviceCode::DeprecatedField, message));
    }
    routes(&common.routes, pool, advice);
}

fn of_ip_pool(spec: &IpPoolSpec, pool: &Pool, advice: &mut Vec<Advice>) {
    let network = pool.network();
    if let Ok((_, HostBits::Set)) = Cidr::parse(&spec.subnet) {
        let message =
            format!("{} has bits set behind the prefix length and is taken for \"{network}\"", Quoted(&spec.subnet));
        advice.push(Advice::new("spec.subnet", AdviceCode::HostBits, message));
    }
    special_range("spec.subnet", &network, advice);
    block_size(spec, pool, advice);
    let gateway = spec.gateway.as_deref().and_then(|text| parse_addr(text).ok());
    if let Some(gateway) = gateway {
        gateway_place(gateway, spec.per_node_block_size, pool, advice);
    }
}

fn of_cidr_pool(spec: &CidrPoolSpec, pool: &Pool, advice: &mut Vec<Advice>) {
    special_range("spec.cidr", &pool.network(), advice);
    nothing_to_give("spec.perNodeNetworkPrefix", pool, advice);
    let (mut no_host, mut barren, mut no_node) = (
        OfAKind::new(AdviceCode::GatewayIsNoHost),
        OfAKind::new(AdviceCode::BarrenStaticPrefix),
        OfAKind::new(AdviceCode::StaticForNoNode),
    );
    for (i, entry) in spec.static_allocations.iter().enumerate() {
        let Ok((prefix, _)) = Cidr::parse(&entry.prefix) else { continue };
        let gateway = entry.gateway.as_deref().and_then(|text| parse_addr(text).ok());
        if let Some(gateway) = gateway.filter(|gateway| !prefix.hosts().contains(*gateway)) {
            no_host.add(format_args!("spec.staticAllocations[{i}].gateway"), || no_host_message(gateway, &prefix));
        }
        let node = entry.node_name.as_deref().filter(|node| !node.is_empty());
        if let Some(node) = node.filter(|node| !is_dns_subdomain(node)) {
            no_node.add(format_args!("spec.staticAllocations[{i}].nodeName"), || {
                format!("{} is a name that no node can have; the prefix is reserved for nobody", Quoted(node))
            });
        }
        let index = node.and_then(|node| pool.index_for(node, &prefix.range()));
        if let Some((node, block)) = node.zip(index.and_then(|index| pool.block(index)))
            && pool.capacity(&block) == 0
        {
            barren.add(format_args!("spec.staticAllocations[{i}].prefix"), || {
                format!(
                    "\"{prefix}\" leaves no address for pods of node {} beside gateway and exclusions",
                    Quoted(node)
                )
            });
        }
    }
    no_host.finish(advice);
    barren.finish(advice);
    no_node.finish(advice);
}

fn special_range(field: &str, network: &Cidr, advice: &mut Vec<Advice>) {
    let special = SPECIAL
        .iter()
        .find(|(text, _)| Cidr::parse(text).is_ok_and(|(special, _)| special.range().contains_range(&network.range())));
    if let Some((_, called)) = special {
        let message = format!("\"{network}\" is a range of {called} addresses, which pods cannot use as their own");
        advice.push(Advice::new(field, AdviceCode::SpecialRange, message));
    }
}

/// Addresses after the last block are not assigned to any node.
fn block_size(spec: &IpPoolSpec, pool: &Pool, advice: &mut Vec<Advice>) {
    const FIELD: &str = "spec.perNodeBlockSize";
    let (hosts, blocks) = (pool.network().hosts().size(), pool.block_count());
    let size = u128::try_from(spec.per_node_block_size).unwrap_or(u128::MAX);
    let left = hosts.saturating_sub(blocks.saturating_mul(size));
    if left > 0 && left >= hosts / WORTH_MENTION {
        let (better, more) = (hosts / blocks.saturating_add(1), blocks.saturating_add(1));
        let message = format!(
            "{size} makes {} of the {hosts} usable addresses and leaves {left} that no node gets; {better} would make {more} \
             blocks",
            counted(blocks, "block", "blocks")
        );
        advice.push(Advice::new(FIELD, AdviceCode::WastedAddresses, message));
    }
    nothing_to_give(FIELD, pool, advice);
}

/// Blocks in which exclusions and gateway leave no address are skipped. If these are all blocks, no node is served.
fn nothing_to_give(field: &str, pool: &Pool, advice: &mut Vec<Advice>) {
    let last = pool.grid().last_index();
    if pool.not_given().gaps_in(0, last) == 0 && !serves_by_name(pool) {
        let message = "leaves no block with an address that a pod could get, beside gateway, exclusions and reserved \
                       prefixes: no node is served";
        advice.push(Advice::new(field, AdviceCode::NothingToGive, message));
    }
}

/// Whether some node has a static prefix with an address for pods.
fn serves_by_name(pool: &Pool) -> bool {
    let mut blocks = pool.static_nodes().filter_map(|(node, _)| pool.block(pool.static_index(node)?));
    blocks.any(|block| pool.capacity(&block) > 0)
}

fn gateway_place(gateway: IpAddr, block_size: i64, pool: &Pool, advice: &mut Vec<Advice>) {
    let network = pool.network();
    if !network.hosts().contains(gateway) {
        let message = no_host_message(gateway, &network);
        advice.push(Advice::new("spec.gateway", AdviceCode::GatewayIsNoHost, message));
        return;
    }
    let own = AddrRange::new(gateway, gateway).and_then(|own| pool.grid().touched(&own));
    let block = own.and_then(|(index, _)| pool.grid().range(index));
    if let Some(block) = block.filter(|_| block_size > 1 && !pool.excludes(number(gateway))) {
        let message = format!(
            "\"{gateway}\" lies in the block {block}, whose node has one address less; exclude the block or take a \
             gateway behind the last block to give all nodes the same"
        );
        advice.push(Advice::new("spec.gateway", AdviceCode::GatewayInBlock, message));
    }
}

fn no_host_message(gateway: IpAddr, network: &Cidr) -> String {
    let what = if gateway == network.network() { "network" } else { "broadcast" };
    let hosts = network.hosts();
    format!("\"{gateway}\" is the {what} address of {network}, which no router answers from; hosts are {hosts}")
}

fn routes(routes: &[String], pool: &Pool, advice: &mut Vec<Advice>) {
    let mut seen = BTreeSet::new();
    let (mut bits, mut repeated, mut inside) = (
        OfAKind::new(AdviceCode::HostBits),
        OfAKind::new(AdviceCode::RepeatedRoute),
        OfAKind::new(AdviceCode::RouteInsidePool),
    );
    let is_flat = pool.key().kind == PoolKind::IpPool;
    for (i, text) in routes.iter().enumerate() {
        let field = format!("spec.routes[{i}].dst");
        let Ok((dst, host_bits)) = Cidr::parse(text) else { continue };
        if host_bits == HostBits::Set {
            bits.add(field.clone(), || {
                format!("{} has bits set behind the prefix length and is taken for \"{dst}\"", Quoted(text))
            });
        }
        if !seen.insert(dst) {
            repeated.add(field.clone(), || format!("\"{dst}\" stands in an earlier route already"));
        }
        if is_flat && pool.network().range().contains_range(&dst.range()) {
            inside.add(field, || {
                format!("\"{dst}\" is inside subnet {}, which pods reach without the gateway", pool.network())
            });
        }
    }
    bits.finish(advice);
    repeated.finish(advice);
    inside.finish(advice);
}
