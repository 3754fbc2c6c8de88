//! What is said of fields that no pool has.

use ipam_core::PoolKind;
use ipam_core::hint::{refused_field, unknown_field_hint};
use rstest::rstest;

#[rstest]
#[case(
    PoolKind::IpPool,
    "spec.nodeSelector",
    "matchLabels",
    "matchExpressions: [{key: KEY, operator: In, values: [VALUE]}]"
)]
#[case(PoolKind::CidrPool, "spec.nodeSelector.nodeSelectorTerms[3]", "matchLabels", "matchExpressions: [{key: KEY")]
#[case(PoolKind::IpPool, "spec.nodeSelector", "matchExpressions", "nodeSelectorTerms: [{matchExpressions: […]}]")]
#[case(PoolKind::IpPool, "spec", "cidr", "write subnet")]
#[case(PoolKind::CidrPool, "spec", "subnet", "write cidr")]
#[case(PoolKind::CidrPool, "spec", "gateway", "write gatewayIndex, the gateway's place in each node's prefix")]
#[case(PoolKind::IpPool, "spec", "blocksize", "write perNodeBlockSize, a number of addresses")]
#[case(PoolKind::IpPool, "spec", "gatway", "did you mean gateway?")]
#[case(PoolKind::IpPool, "spec", "PerNodeBlockSize", "did you mean perNodeBlockSize?")]
#[case(PoolKind::IpPool, "spec.exclusions[0]", "startIp", "did you mean startIP?")]
#[case(PoolKind::CidrPool, "spec.staticAllocations[9]", "nodename", "did you mean nodeName?")]
#[case(PoolKind::IpPool, "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[1]", "value", "did you mean values?")]
#[case(PoolKind::IpPool, "spec.routes[0]", "gw", "leave it out: every route goes by the pool's gateway")]
fn a_field_known_from_elsewhere_gets_a_hint(
    #[case] kind: PoolKind,
    #[case] path: &str,
    #[case] field: &str,
    #[case] part: &str,
) {
    let hint = unknown_field_hint(kind, path, field).unwrap();
    assert!(hint.contains(part), "{hint}");
}

#[rstest]
#[case("spec.nodeSelector", "matchLabels", true)]
#[case("spec.nodeSelector.nodeSelectorTerms[3]", "matchLabels", true)]
#[case("spec.nodeSelector", "matchExpressions", false)]
#[case("spec.nodeSelector.nodeSelectorTerms[3].matchExpressions[0]", "matchLabels", false)]
#[case("spec", "matchLabels", false)]
fn labels_alone_are_declared_to_be_refused(#[case] path: &str, #[case] field: &str, #[case] refused: bool) {
    assert_eq!(refused_field(path, field).is_some_and(|why| why.contains("matchExpressions: [{key: KEY")), refused);
}

#[rstest]
#[case("spec", "completelyDifferent")]
#[case("spec", "")]
#[case("status", "allocations")]
#[case("", "spec")]
#[case("spec.exclusions", "日本語のフィールド")]
fn a_field_that_is_like_nothing_gets_none(#[case] path: &str, #[case] field: &str) {
    assert_eq!(unknown_field_hint(PoolKind::IpPool, path, field), None);
}

#[test]
fn a_field_of_a_megabyte_is_not_compared() {
    assert_eq!(unknown_field_hint(PoolKind::IpPool, "spec", &"a".repeat(1 << 20)), None);
}
