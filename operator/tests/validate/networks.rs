//! NetworkAttachmentDefinitions: which pools they name, and whether these exist.

use crate::{Report, cidr_pool, ip_pool, judged, network, words};

const GOOD: &str = "{subnet: 192.168.0.0/16, perNodeBlockSize: 4}";

/// What is said about a network with this configuration, beside IPPool `rdma` and CIDRPool `storage`.
fn of(config: &str) -> Report {
    let routed = cidr_pool("storage", "{cidr: 10.0.0.0/16, perNodeNetworkPrefix: 24}");
    judged(&[ip_pool("rdma", GOOD), network("net", config), routed].join("---\n"))
}

fn warnings(report: &Report) -> Vec<String> {
    assert!(report.is_valid(), "{}", words(report));
    report.networks.iter().flat_map(|network| &network.warnings).map(|warning| warning.message.clone()).collect()
}

#[test]
fn a_network_that_names_existing_pools_is_valid() {
    for config in [
        r#"{"ipam": {"type": "nv-ipam", "poolName": "rdma"}}"#,
        r#"{"name": "rdma", "ipam": {"type": "nv-ipam"}}"#,
        r#"{"ipam": {"type": "nv-ipam", "poolName": "storage", "poolType": "CIDRPool"}}"#,
        r#"{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "macvlan", "IPAM": {"Type": "nv-ipam", "poolname": "rdma"}}, {"type": "tuning"}]}"#,
        r#"{"args": {"cni": {"poolNames": ["rdma"]}}, "ipam": {"type": "nv-ipam", "poolName": "none"}}"#,
    ] {
        let report = of(config);
        assert_eq!((warnings(&report), report.networks.len(), report.skipped), (vec![], 1, 0), "{config}");
    }
}

#[test]
fn a_pool_that_does_not_exist_is_a_warning_with_a_hint() {
    for (config, said) in [
        (
            r#"{"ipam": {"type": "nv-ipam", "poolName": "rmda"}}"#,
            r#"names IPPool "rmda", which is not among the given pools; did you mean "rdma"?"#,
        ),
        (
            r#"{"ipam": {"type": "nv-ipam", "poolName": "storage"}}"#,
            r#"names IPPool "storage", which is not among the given pools; for the CIDRPool of this name, set poolType to "cidrpool""#,
        ),
        (
            r#"{"ipam": {"type": "nv-ipam", "poolName": "rdma,other-pool"}}"#,
            r#"names IPPool "other-pool", which is not among the given pools"#,
        ),
        // Without poolName the network's name counts, and without that the object's, as with Multus.
        (r#"{"ipam": {"type": "nv-ipam"}}"#, r#"names IPPool "net", which is not among the given pools"#),
    ] {
        assert_eq!(warnings(&of(config)), [said], "{config}");
    }
    let report = of(r#"{"ipam": {"type": "nv-ipam", "poolName": "rmda"}}"#);
    assert!(words(&report).contains(r#"pools.yaml:9:16: document 2, NetworkAttachmentDefinition default/net: warning: spec.config: names IPPool "rmda""#), "{}", words(&report));
    assert!(words(&report).ends_with("; 1 network: 1 valid, 0 invalid (1 warning)\n"), "{}", words(&report));
}

#[test]
fn an_invalid_configuration_is_an_error_of_the_plugin() {
    for (config, said) in [
        (r#"{"ipam": {"type": "nv-ipam", "poolName": 5}}"#, "ipam.poolName: 5 is not what belongs here, want a string"),
        (
            r#"{"ipam": {"type": "nv-ipam", "poolName": "rdma", "poolType": "x"}}"#,
            r#"ipam.poolType: "x" is no kind of pool, want ippool or cidrpool"#,
        ),
        (
            r#"{"ipam": {"type": "nv-ipam", "poolName": "rdma,rdma"}}"#,
            r#"ipam.poolName: "rdma,rdma" names a pool twice, an interface gets one address per pool"#,
        ),
        (r#"{"ipam": {"type": "nv-ipam"}"#, "must be JSON: EOF while parsing an object at line 1 column 28"),
    ] {
        let report = of(config);
        let errors: Vec<&str> = report.networks[0].problems.iter().map(|error| error.message.as_str()).collect();
        assert_eq!(errors, [said], "{config}");
        assert!(!report.is_valid());
    }
}

#[test]
fn networks_of_other_plugins_are_skipped() {
    for config in [r#"{"ipam": {"type": "host-local"}}"#, r#"{"type": "bridge"}"#, "{", "[1]"] {
        let report = of(config);
        assert_eq!((report.networks.len(), report.skipped, report.is_valid()), (0, 1, true), "{config}");
    }
}

#[test]
fn without_any_pool_nothing_is_said_about_names() {
    let report = judged(&network("net", r#"{"ipam": {"type": "nv-ipam", "poolName": "rdma"}}"#));
    assert_eq!((warnings(&report), report.networks.len()), (vec![], 1));
}
