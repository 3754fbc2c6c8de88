//! From the entries of `IPAMNode.spec` to the pools that the ledger gives from.
//!
//! Decides which entries can be used, and from which of them the agent gives. One that cannot be used is named and left
//! out; it never stops the others, and what pods hold of it stays held.

use ipam_core::addr::{number, parse_addr};
use ipam_core::node_pool::{Pause, PoolState};
use ipam_core::{AddrRange, Cidr, GrantId, NodePool, PoolKey, RangeSet};
use ipam_crds::{AddressRange, BlockState, NodeBlock};

use crate::lost::Lost;
use crate::note::Noted;
use crate::problem::Problem;

/// The pools of `noted`, and what is wrong with them. With `pause`, no new address is allocated from any of them.
pub fn usable(noted: &Noted, pause: Option<Pause>) -> (Vec<NodePool>, Vec<Problem>) {
    let (mut pools, sentences) = node_pools(&noted.spec.blocks);
    let invalid = |sentence| Problem { reason: "InvalidBlocks", sentence };
    let mut problems: Vec<_> = noted.lost.iter().map(Lost::problem).collect();
    problems.extend(sentences.into_iter().map(invalid));
    noted.lost.iter().for_each(|lost| lost.bar(&mut pools));
    for pool in pools.iter_mut().filter(|pool| pool.state == PoolState::Active) {
        let Some(pause) = pause else { break };
        pool.state = PoolState::Paused(pause);
        if pause != Pause::Starting {
            // The start is over before anybody reads the report.
            let sentence = format!("{} gives no new addresses for now: {pause}", pool.key);
            problems.push(Problem { reason: pause.as_str(), sentence });
        }
    }
    (pools, problems)
}

/// That the journal has only `durable` of `noted`, if that is so.
pub fn unsaved(noted: &Noted, durable: &Noted) -> Option<Problem> {
    let sentence = format!(
        "the agent cannot save generation {} of the IPAMNode to its disk, and tries again; its report is about an earlier one",
        noted.spec.generation.unwrap_or_default()
    );
    (noted != durable).then_some(Problem { reason: "Unsaved", sentence })
}

/// The usable blocks, and one sentence for each entry that is none.
pub fn node_pools(blocks: &[NodeBlock]) -> (Vec<NodePool>, Vec<String>) {
    let (mut pools, mut problems) = (Vec::<NodePool>::new(), Vec::new());
    // A revoked block is not the node's any more, as if the entry were not there.
    for block in blocks.iter().filter(|block| block.state != BlockState::Revoked) {
        let key = PoolKey::new(block.pool_type.into(), block.name.clone());
        if pools.iter().any(|pool| pool.key == key) {
            problems.push(format!("{key} stands twice; the first entry is used"));
            continue;
        }
        match node_pool(key.clone(), block) {
            Ok(pool) => pools.push(pool),
            Err(wrong) => problems.push(format!("{key} is not used: {}", wrong.join("; "))),
        }
    }
    (pools, problems)
}

/// One entry, or all that is wrong with it.
fn node_pool(key: PoolKey, block: &NodeBlock) -> Result<NodePool, Vec<String>> {
    let mut wrong = Vec::new();
    if key.name.is_empty() {
        wrong.push("name is empty".to_owned());
    }
    let grant = block.grant.parse::<GrantId>().map_err(|why| wrong.push(format!("grant {:?} {why}", block.grant))).ok();
    let range = range(&block.start_ip, &block.end_ip).map_err(|why| wrong.push(why)).ok();
    let subnet = cidr("subnet", &block.subnet).map_err(|why| wrong.push(why)).ok();
    if let (Some(range), Some(subnet)) = (range, subnet)
        && !subnet.range().contains_range(&range)
    {
        wrong.push(format!("{range} is not inside subnet {subnet}"));
    }
    let family = range.map(|range| range.family());
    let gateway = match block.gateway.as_deref().filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => match parse_addr(text) {
            Ok(addr) if family.is_none_or(|family| ipam_core::Family::of(addr) == family) => Some(addr),
            Ok(addr) => {
                wrong.push(format!("gateway {addr} is of another family than the range"));
                None
            }
            Err(why) => {
                wrong.push(format!("gateway {text:?} {why}"));
                None
            }
        },
    };
    let exclusions = within("exclusions", &block.exclusions, range, &mut wrong);
    let elsewhere = within("heldElsewhere", &block.held_elsewhere, range, &mut wrong);
    let routes = routes(block, family, &mut wrong);
    let (Some(range), Some(subnet), true) = (range, subnet, wrong.is_empty()) else { return Err(wrong) };
    let state = match block.state {
        BlockState::Active => PoolState::Active,
        BlockState::Releasing | BlockState::Revoked => PoolState::Releasing,
    };
    let default_gateway = block.default_gateway.unwrap_or(false);
    Ok(NodePool { key, state, grant, range, subnet, gateway, exclusions, elsewhere, routes, default_gateway })
}

/// What of the ranges in `field` is in the block. An unreadable one refuses the entry: to ignore it would give what must not
/// be given.
fn within(field: &str, barred: &[AddressRange], block: Option<AddrRange>, wrong: &mut Vec<String>) -> RangeSet {
    let mut set = RangeSet::new();
    for (index, barred) in barred.iter().enumerate() {
        match range(&barred.start_ip, &barred.end_ip) {
            Ok(barred) => {
                let inside = block.and_then(|range| range.intersection(&barred));
                set.extend(inside.map(|inside| (number(inside.first()), number(inside.last()))));
            }
            Err(why) => wrong.push(format!("{field}[{index}] {why}")),
        }
    }
    set
}

fn routes(block: &NodeBlock, family: Option<ipam_core::Family>, wrong: &mut Vec<String>) -> Vec<Cidr> {
    let mut routes = Vec::new();
    for (index, route) in block.routes.iter().enumerate() {
        match cidr(&format!("routes[{index}].dst"), &route.dst) {
            Ok(dst) if family.is_none_or(|family| dst.family() == family) => routes.push(dst),
            Ok(dst) => wrong.push(format!("routes[{index}].dst {dst} is of another family than the range")),
            Err(why) => wrong.push(why),
        }
    }
    routes
}

fn range(start: &str, end: &str) -> Result<AddrRange, String> {
    let first = parse_addr(start).map_err(|why| format!("startIP {start:?} {why}"))?;
    let last = parse_addr(end).map_err(|why| format!("endIP {end:?} {why}"))?;
    AddrRange::new(first, last).ok_or_else(|| format!("endIP {end} is before startIP {start}, or of another family"))
}

fn cidr(field: &str, text: &str) -> Result<Cidr, String> {
    Cidr::parse(text).map(|(cidr, _)| cidr).map_err(|why| format!("{field} {text:?} {why}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use ipam_crds::PoolType;
    use proptest::prelude::*;

    use super::*;
    use crate::spec::NodeSpec;

    pub(crate) fn block(name: &str, start: &str, end: &str, subnet: &str, gateway: &str) -> NodeBlock {
        NodeBlock {
            name: name.to_owned(),
            pool_type: PoolType::IPPool,
            grant: "0123456789abcdef".to_owned(),
            state: BlockState::Active,
            start_ip: start.to_owned(),
            end_ip: end.to_owned(),
            subnet: subnet.to_owned(),
            gateway: Some(gateway.to_owned()),
            ..NodeBlock::default()
        }
    }

    fn good() -> NodeBlock {
        block("blue", "192.168.0.1", "192.168.0.4", "192.168.0.0/16", "192.168.0.1")
    }

    #[test]
    fn an_entry_becomes_a_pool() {
        let exclusions = vec![AddressRange { start_ip: "192.168.0.3".into(), end_ip: "192.168.9.9".into() }];
        let (pools, problems) = node_pools(&[NodeBlock { exclusions, ..good() }]);
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(
            (pools[0].range.to_string().as_str(), pools[0].subnet.prefix_len()),
            ("192.168.0.1-192.168.0.4", 16)
        );
        assert_eq!(pools[0].capacity(), 1, "two are excluded and one is the gateway");
    }

    #[test]
    fn a_bad_entry_is_named_with_all_that_is_wrong_and_leaves_the_others() {
        let bad = block("red", "10.0.0.9", "10.0.0.1", "10.0.0.0/99", "fd00::x");
        let (pools, problems) = node_pools(&[bad, good(), good()]);
        assert_eq!(pools.len(), 1);
        for part in ["IPPool \"red\"", "endIP 10.0.0.1 is before", "subnet \"10.0.0.0/99\"", "gateway \"fd00::x\""] {
            assert!(problems[0].contains(part), "{problems:?} lacks {part}");
        }
        assert!(problems[1].contains("stands twice"));
    }

    #[test]
    fn an_unreadable_exclusion_or_a_foreign_family_refuses_the_entry() {
        let exclusions = vec![AddressRange { start_ip: "x".into(), end_ip: "y".into() }];
        let outside = block("far", "10.0.0.1", "10.0.0.2", "10.1.0.0/16", "10.1.0.1");
        let (pools, problems) = node_pools(&[
            NodeBlock { exclusions, ..good() },
            outside,
            NodeBlock { gateway: Some("fd00::1".into()), name: "v6".into(), ..good() },
        ]);
        assert!(pools.is_empty());
        assert!(
            problems[0].contains("exclusions[0]")
                && problems[1].contains("not inside")
                && problems[2].contains("family")
        );
    }

    fn states(noted: &Noted, pause: Option<Pause>) -> Vec<PoolState> {
        usable(noted, pause).0.iter().map(|pool| pool.state).collect()
    }

    fn noted(generation: i64, blocks: &[NodeBlock]) -> Noted {
        Noted::first(NodeSpec {
            uid: "u".into(),
            created: 0,
            generation: Some(generation),
            blocks: blocks.to_vec(),
            ..NodeSpec::default()
        })
    }

    #[test]
    fn a_block_whose_copy_is_not_on_disk_is_used_and_the_problem_is_reported() {
        let both = [good(), block("red", "10.0.0.1", "10.0.0.2", "10.0.0.0/24", "10.0.0.1")];
        assert_eq!(states(&noted(2, &both), None), [PoolState::Active, PoolState::Active]);
        let problem = unsaved(&noted(2, &both), &noted(1, &[good()])).unwrap();
        assert!(problem.reason == "Unsaved" && problem.sentence.contains("generation 2"), "{problem:?}");
        assert_eq!(unsaved(&noted(1, &[good()]), &noted(1, &[good()])), None);
    }

    #[test]
    fn a_revoked_entry_is_no_pool_and_no_problem() {
        let revoked = NodeBlock { state: BlockState::Revoked, ..good() };
        assert_eq!(node_pools(&[revoked]), (Vec::new(), Vec::new()));
    }

    #[test]
    fn an_entry_without_a_readable_grant_is_refused() {
        for grant in ["", "0123", "0123456789ABCDEF"] {
            let (pools, problems) = node_pools(&[NodeBlock { grant: grant.into(), ..good() }]);
            assert!(pools.is_empty() && problems[0].contains("grant"), "{problems:?}");
        }
    }

    #[test]
    fn a_block_that_is_being_released_stays_so_and_an_active_one_pauses_offline() {
        let releasing = NodeBlock { state: BlockState::Releasing, name: "old".into(), ..good() };
        let noted = noted(1, &[good(), releasing]);
        assert_eq!(states(&noted, Some(Pause::Offline)), [PoolState::Paused(Pause::Offline), PoolState::Releasing]);
        assert_eq!(states(&noted, None), [PoolState::Active, PoolState::Releasing]);
    }

    proptest! {
        #[test]
        fn no_entry_makes_it_panic(texts in any::<[String; 6]>(), ends in any::<[std::net::IpAddr; 4]>()) {
            let [name, start, end, subnet, gateway, excluded] = texts;
            let exclusions = vec![AddressRange { start_ip: excluded.clone(), end_ip: excluded }];
            let _ = node_pools(&[NodeBlock { exclusions, ..block(&name, &start, &end, &subnet, &gateway) }]);
            let [a, b, c, d] = ends.map(|addr| addr.to_string());
            let exclusions = vec![AddressRange { start_ip: c.clone(), end_ip: d }];
            let _ = node_pools(&[NodeBlock { exclusions, ..block("x", &a, &b, &format!("{c}/8"), &a) }]);
        }
    }
}
