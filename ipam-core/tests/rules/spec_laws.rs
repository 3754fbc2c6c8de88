//! `Pool::parse` on specs that nobody would write.

use ipam_core::spec::{
    CidrPoolSpec, CommonSpec, ExclusionSpec, IndexRangeSpec, IpPoolSpec, NodeSelectorSpec, NodeSelectorTermSpec,
    PoolSpec, RequirementSpec, StaticAllocationSpec,
};
use ipam_core::{Pool, Usage};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::support::{fresh, plan_for, recorded};

fn addr() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => any::<u8>().prop_map(|low| format!("10.0.0.{low}")),
        2 => any::<u16>().prop_map(|low| format!("fd00::{low:x}")),
        1 => any::<[u16; 8]>().prop_map(|parts| std::net::Ipv6Addr::from(parts).to_string()),
        1 => any::<[u8; 4]>().prop_map(|parts| std::net::Ipv4Addr::from(parts).to_string()),
        1 => "[0-9a-f:. /%]{0,20}",
        1 => "\\PC{0,8}",
    ]
}

fn network() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => (0_u8..=32).prop_map(|len| format!("10.0.0.0/{len}")),
        3 => (0_u8..=128).prop_map(|len| format!("fd00::/{len}")),
        1 => Just("0.0.0.0/0".to_owned()),
        1 => Just("::/0".to_owned()),
        2 => (addr(), any::<i16>()).prop_map(|(addr, len)| format!("{addr}/{len}")),
        1 => addr(),
    ]
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![6 => 0_i64..140, 1 => any::<i64>(), 1 => any::<i32>().prop_map(i64::from)]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c./_-]{0,4}", "\\PC{0,6}", Just("metadata.name".to_owned())]
}

fn requirement() -> impl Strategy<Value = RequirementSpec> {
    let operators = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "in", ""];
    (text(), prop::sample::select(operators.to_vec()), vec(prop_oneof![text(), Just("7".to_owned())], 0..3))
        .prop_map(|(key, operator, values)| RequirementSpec { key, operator: operator.to_owned(), values })
}

fn node_selector() -> impl Strategy<Value = NodeSelectorSpec> {
    let term = (vec(requirement(), 0..3), vec(requirement(), 0..2))
        .prop_map(|(match_expressions, match_fields)| NodeSelectorTermSpec { match_expressions, match_fields });
    vec(term, 0..3).prop_map(|terms| NodeSelectorSpec { terms })
}

fn common() -> impl Strategy<Value = CommonSpec> {
    let exclusion = (addr(), addr()).prop_map(|(start_ip, end_ip)| ExclusionSpec { start_ip, end_ip });
    let places = (number(), number()).prop_map(|(start_index, end_index)| IndexRangeSpec { start_index, end_index });
    let selector = prop_oneof![3 => Just(None), 1 => node_selector().prop_map(Some)];
    (vec(exclusion, 0..3), vec(places, 0..3), selector, any::<bool>(), vec(network(), 0..2)).prop_map(
        |(exclusions, per_node_exclusions, node_selector, default_gateway, routes)| CommonSpec {
            exclusions,
            per_node_exclusions,
            node_selector,
            default_gateway,
            deprecated_default_gateway: false,
            routes,
        },
    )
}

fn static_allocation() -> impl Strategy<Value = StaticAllocationSpec> {
    (of(text()), of(addr()), network()).prop_map(|(node_name, gateway, prefix)| StaticAllocationSpec {
        node_name,
        gateway,
        prefix,
    })
}

fn spec() -> impl Strategy<Value = PoolSpec> {
    // Half of the specs have nothing but the fields that cut the network, so that many are valid.
    let common = || prop_oneof![Just(CommonSpec::default()), common()];
    let ip = (network(), number(), of(addr()), common()).prop_map(|(subnet, per_node_block_size, gateway, common)| {
        PoolSpec::Ip(IpPoolSpec { subnet, per_node_block_size, gateway, common })
    });
    let cidr = (network(), number(), of(number()), vec(static_allocation(), 0..2), common()).prop_map(
        |(cidr, per_node_network_prefix, gateway_index, static_allocations, common)| {
            PoolSpec::Cidr(CidrPoolSpec { cidr, per_node_network_prefix, gateway_index, static_allocations, common })
        },
    );
    prop_oneof![ip, cidr]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn parse_never_panics_and_what_it_takes_can_be_planned(spec in spec(), name in text(), held: bool) {
        match Pool::parse(&name, &spec) {
            Err(violations) => {
                prop_assert!(!violations.is_empty());
                for violation in violations {
                    prop_assert!(violation.field.starts_with("spec.") || violation.field == "metadata.name");
                    prop_assert!(!violation.message.is_empty());
                }
            }
            Ok(pool) => {
                let plan = fresh(&pool, &["a", "b", "c"]);
                for assignment in &plan.assignments {
                    prop_assert!(pool.network().range().contains_range(&assignment.block.range));
                    prop_assert_eq!(pool.node_pool(&assignment.block).capacity(), pool.capacity(&assignment.block));
                }
                let claims = recorded(&plan, ipam_core::ClaimSource::Status);
                let usage = if held { Usage::Unknown } else { Usage::Empty };
                prop_assert_eq!(plan_for(&pool, &["a", "b", "c"], &claims, &|_| usage).assignments, plan.assignments);
            }
        }
    }

    #[test]
    fn blocks_of_one_spec_survive_as_records_under_another(before in spec(), after in spec(), held: bool) {
        if let (Ok(before), Ok(after)) = (Pool::parse("p", &before), Pool::parse("p", &after)) {
            let claims = recorded(&fresh(&before, &["a", "b", "c"]), ipam_core::ClaimSource::Status);
            let usage = if held { Usage::Held(1) } else { Usage::Empty };
            let plan = plan_for(&after, &["b", "c", "d"], &claims, &|_| usage);
            for (i, one) in plan.assignments.iter().enumerate() {
                let node_pool = after.node_pool(&one.block);
                prop_assert!(one.block.range.contains_range(&node_pool.range));
                prop_assert!(node_pool.subnet.range().contains_range(&node_pool.range));
                prop_assert!(plan.assignments[i + 1..].iter().all(|two| !one.block.range.overlaps(&two.block.range)));
            }
        }
    }
}
