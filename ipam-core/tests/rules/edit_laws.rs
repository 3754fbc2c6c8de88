//! What holds of every edit: who is not displaced keeps its block under the new spec, and whom the plan must serve by a
//! block that the spec no longer has was displaced.

use ipam_core::spec::{CidrPoolSpec, CommonSpec, ExclusionSpec, IpPoolSpec, PoolSpec, StaticAllocationSpec};
use ipam_core::{BlockPhase, Claim, ClaimSource, Held, NodeRef, Pool, Usage, addr, displaced, plan};
use proptest::prelude::*;

use crate::support::{labels, recorded};

const NODES: [&str; 4] = ["a", "b", "c", "d"];

fn subnets() -> impl Strategy<Value = String> {
    (0..3_u8, 22..29_u8).prop_map(|(third, len)| format!("10.0.{third}.0/{len}"))
}

fn common() -> impl Strategy<Value = CommonSpec> {
    let exclusion = (0..3_u8, 0..32_u8, 0..8_u8).prop_map(|(third, first, more)| ExclusionSpec {
        start_ip: format!("10.0.{third}.{first}"),
        end_ip: format!("10.0.{third}.{}", first + more),
    });
    proptest::collection::vec(exclusion, 0..3).prop_map(|exclusions| CommonSpec { exclusions, ..CommonSpec::default() })
}

fn ip_specs() -> impl Strategy<Value = PoolSpec> {
    let gateway = proptest::option::of((0..3_u8, 0..32_u8).prop_map(|(third, last)| format!("10.0.{third}.{last}")));
    (subnets(), 1..6_i64, gateway, common()).prop_map(|(subnet, per_node_block_size, gateway, common)| {
        PoolSpec::Ip(IpPoolSpec { subnet, per_node_block_size, gateway, common })
    })
}

fn cidr_specs() -> impl Strategy<Value = PoolSpec> {
    let entry =
        (proptest::option::of(0..4_usize), 0..3_u8, 0..16_u8, 26..30_u8).prop_map(|(node, third, place, len)| {
            let prefix = format!("10.0.{third}.{}/{len}", place << (32 - len).min(4));
            StaticAllocationSpec { node_name: node.map(|node| NODES[node].to_owned()), gateway: None, prefix }
        });
    let index = proptest::option::of(1..3_i64);
    (subnets(), 26..30_i64, index, proptest::collection::vec(entry, 0..3), common()).prop_map(
        |(cidr, per_node_network_prefix, gateway_index, static_allocations, common)| {
            PoolSpec::Cidr(CidrPoolSpec { cidr, per_node_network_prefix, gateway_index, static_allocations, common })
        },
    )
}

/// The spec with those parts left out that do not fit the rest; `None` if not even its cut does.
fn repaired(mut spec: PoolSpec) -> Option<PoolSpec> {
    let is_valid = |spec: &PoolSpec| Pool::parse("p", spec).is_ok();
    let exclusions = match &mut spec {
        PoolSpec::Ip(spec) => std::mem::take(&mut spec.common.exclusions),
        PoolSpec::Cidr(spec) => std::mem::take(&mut spec.common.exclusions),
    };
    match &mut spec {
        PoolSpec::Ip(ip) => {
            let bare = IpPoolSpec { gateway: None, ..ip.clone() };
            if !is_valid(&PoolSpec::Ip(ip.clone())) {
                *ip = bare;
            }
            ip.common.exclusions = exclusions;
        }
        PoolSpec::Cidr(cidr) => {
            let entries = std::mem::take(&mut cidr.static_allocations);
            for entry in entries {
                cidr.static_allocations.push(entry);
                if !is_valid(&PoolSpec::Cidr(cidr.clone())) {
                    cidr.static_allocations.pop();
                }
            }
            cidr.common.exclusions = exclusions;
        }
    }
    while !is_valid(&spec) {
        let common = match &mut spec {
            PoolSpec::Ip(spec) => &mut spec.common,
            PoolSpec::Cidr(spec) => &mut spec.common,
        };
        common.exclusions.pop()?;
    }
    Some(spec)
}

/// Two valid specs of one kind.
fn edits() -> impl Strategy<Value = (PoolSpec, PoolSpec)> {
    let ip = || ip_specs().prop_filter_map("no block fits", repaired);
    let cidr = || cidr_specs().prop_filter_map("no prefix fits", repaired);
    prop_oneof![(ip(), ip()), (cidr(), cidr())]
}

/// What each node holds: by turns not told, a count, nothing, or the second address of its block.
fn usage<'a>(claims: &'a [Claim], what: &'a [u8; 4]) -> impl Fn(&str) -> Held + 'a {
    move |node| {
        let Some(at) = NODES.iter().position(|name| *name == node) else { return Held::Unknown };
        match what[at] % 4 {
            0 => Held::Unknown,
            1 => Held::Count(1),
            2 => Held::Count(0),
            _ => {
                let claim = claims.iter().find(|claim| claim.node == node).unwrap();
                let (first, last) = claim.range.numbers();
                let second = (first + 1).min(last);
                Held::Addresses([(second, second)].into_iter().collect())
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn who_is_not_displaced_is_served_by_the_same_block((old, new) in edits(), what in any::<[u8; 4]>()) {
        let none = labels(&[]);
        let nodes: Vec<NodeRef<'_>> = NODES.iter().map(|name| NodeRef { name, labels: &none }).collect();
        let before = Pool::parse("p", &old).unwrap();
        let claims = recorded(&plan(&before, &nodes, &[], &|_| Usage::Unknown), ClaimSource::Status);
        let held = usage(&claims, &what);
        let after = Pool::parse("p", &new).unwrap();
        let found = displaced(&after, Some(&old), &new, &claims, &held);
        let use_of = |node: &str| if held(node).is_empty() { Usage::Empty } else { Usage::Unknown };
        let planned = plan(&after, &nodes, &claims, &use_of);
        for claim in &claims {
            let is_displaced = found.iter().any(|one| one.node == claim.node);
            let now = planned.assignments.iter().find(|assignment| assignment.node == claim.node);
            if held(&claim.node).is_empty() {
                prop_assert!(!is_displaced, "{} holds nothing", claim.node);
                continue;
            }
            let kept = now.is_some_and(|now| now.block.range == claim.range && now.phase == BlockPhase::Active);
            prop_assert!(kept || is_displaced, "{} loses {} by {new:?}", claim.node, claim.range);
            if let (true, Held::Addresses(held)) = (is_displaced && kept, held(&claim.node)) {
                let now = after.node_pool(&now.unwrap().block);
                let barred = held.runs().any(|(first, _)| {
                    now.exclusions.contains(first) || now.gateway.map(addr::number) == Some(first)
                });
                prop_assert!(barred, "{} keeps all that it holds, but is called displaced", claim.node);
            }
        }
        for one in &found {
            prop_assert!(!one.fields.is_empty());
        }
    }

    #[test]
    fn a_spec_as_it_was_displaces_nobody(spec in ip_specs().prop_filter_map("no block fits", repaired)) {
        let pool = Pool::parse("p", &spec).unwrap();
        let claims = [Claim::from_ip_range("a", "10.0.0.1", "10.0.0.9", ClaimSource::Status).unwrap()];
        prop_assert_eq!(displaced(&pool, Some(&spec), &spec, &claims, &|_| Held::Unknown), vec![]);
    }
}
