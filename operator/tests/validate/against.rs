//! `--against`: manifests as edits of the pools of a cluster.

use std::sync::Arc;

use ipam_validate::{Live, Nodes, Options, Report, validate};
use serde_json::{Value, json};

use crate::command::run;
use crate::{has, ip_pool, network, words};

/// A pool of the cluster, in which node `n` has the first block.
fn pool(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool",
        "metadata": {"name": name, "namespace": "kube-system", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": spec,
        "status": {"allocations": [{"nodeName": "n", "startIP": "10.0.0.1", "endIP": "10.0.0.4"}]},
    })
}

fn small() -> Value {
    json!({"subnet": "10.0.0.0/24", "perNodeBlockSize": 4})
}

/// The IPAMNode of `n`, whose agent reports this many addresses in use.
fn ipam_node(used: u64) -> Value {
    json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNode",
        "metadata": {"name": "n", "namespace": "kube-system"},
        "spec": {"pools": [{
            "name": "p", "poolType": "IPPool", "grant": "6955b90000000001", "state": "Active",
            "startIP": "10.0.0.1", "endIP": "10.0.0.4", "subnet": "10.0.0.0/24",
        }]},
        "status": {"pools": [{
            "name": "p", "poolType": "IPPool", "grant": "6955b90000000001", "startIP": "10.0.0.1", "endIP": "10.0.0.4",
            "used": used, "capacity": 4, "held": [],
        }]},
    })
}

fn live(items: &[Value], nodes: Option<&Nodes>) -> Live {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    Live::read("live.json", list.as_bytes(), nodes).unwrap()
}

fn against(items: &[Value], manifest: &str) -> Report {
    let options = Options { against: Some(Arc::new(live(items, None))), ..Options::default() };
    validate([("pools.yaml", manifest.as_bytes())], &options)
}

const RESIZED: &str = "{subnet: 10.0.0.0/24, perNodeBlockSize: 8}";
const SMALL: &str = "{subnet: 10.0.0.0/24, perNodeBlockSize: 4}";

#[test]
fn an_edit_that_takes_addresses_in_use_is_an_error() {
    let report = against(&[pool("p", &small()), ipam_node(1)], &ip_pool("p", RESIZED));
    has(&report, &[("spec.perNodeBlockSize", "InUse")]);
    let said = words(&report);
    assert!(said.contains("\"n\" (10.0.0.1-10.0.0.4 has 1 held)") && said.contains("pools.yaml:4:"), "{said}");
    // The agent has reported an empty block, so it can be resized.
    has(&against(&[pool("p", &small()), ipam_node(0)], &ip_pool("p", RESIZED)), &[]);
    // Without IPAMNodes the use of a block is not known, and counts as in use.
    let report = against(&[pool("p", &small())], &ip_pool("p", RESIZED));
    has(&report, &[("spec.perNodeBlockSize", "InUse")]);
    has(&against(&[pool("p", &small()), ipam_node(1)], &ip_pool("p", SMALL)), &[]);
}

#[test]
fn overlaps_with_pools_of_the_cluster_are_errors_unless_the_manifests_move_them() {
    let other = pool("other", &json!({"subnet": "10.0.0.0/16", "perNodeBlockSize": 4}));
    let new = ip_pool("new", "{subnet: 10.0.1.0/24, perNodeBlockSize: 4}");
    let report = against(std::slice::from_ref(&other), &new);
    has(&report, &[("spec.subnet", "Overlap")]);
    assert!(
        words(&report).contains("IPPool \"other\"") && words(&report).contains("(in the cluster)"),
        "{}",
        words(&report)
    );
    // Whatever the order of the manifests, the other pool moves away.
    let mut moved = other.clone();
    moved["status"] = json!({});
    let away = ip_pool("other", "{subnet: 10.9.0.0/16, perNodeBlockSize: 4}");
    for manifest in [[new.clone(), away.clone()], [away, new.clone()]] {
        has(&against(std::slice::from_ref(&moved), &manifest.join("---\n")), &[]);
    }
    // An overlap that exists already is not an error of an edit, and other namespaces are apart.
    let overlapping = pool("new", &json!({"subnet": "10.0.1.0/24", "perNodeBlockSize": 4}));
    has(
        &against(
            &[other.clone(), overlapping],
            &new.replace("perNodeBlockSize: 4", "perNodeBlockSize: 4, gateway: 10.0.1.254"),
        ),
        &[],
    );
    let mut apart = other;
    apart["metadata"]["namespace"] = "elsewhere".into();
    has(&against(&[apart], &new), &[]);
}

#[test]
fn nodes_that_an_edit_deselects_are_a_warning() {
    let nodes = Nodes::from_file("nodes", b"n Ready <none> 1d v1 role=gpu\n").unwrap();
    let live = live(&[pool("p", &small()), ipam_node(2)], Some(&nodes));
    let selector =
        "nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: role, operator: In, values: [cpu]}]}]}";
    let manifest = ip_pool("p", &format!("{{subnet: 10.0.0.0/24, perNodeBlockSize: 4, {selector}}}"));
    let options = Options { against: Some(Arc::new(live)), nodes: Some(nodes), ..Options::default() };
    let report = validate([("pools.yaml", manifest.as_bytes())], &options);
    has(&report, &[]);
    let codes: Vec<&str> = report.pools[0].warnings.iter().map(|warning| warning.code.as_str()).collect();
    assert!(codes.contains(&"NodesLeftOut"), "{codes:?}");
}

#[test]
fn a_plan_keeps_the_blocks_of_the_cluster() {
    let nodes = Nodes::named("a,n").unwrap();
    let live = live(&[pool("p", &small())], None);
    let options = Options { against: Some(Arc::new(live)), nodes: Some(nodes), explain: true, ..Options::default() };
    let report = validate([("pools.yaml", ip_pool("p", SMALL).as_bytes())], &options);
    assert!(words(&report).contains("  n  10.0.0.1-10.0.0.4"), "{}", words(&report));
}

#[test]
fn networks_may_name_pools_of_the_cluster() {
    let nad = |pool: &str| network("net", &format!(r#"{{"ipam": {{"type": "nv-ipam", "poolName": "{pool}"}}}}"#));
    let warnings = |pool: &str| against(&[self::pool("p", &small())], &nad(pool)).networks[0].warnings.len();
    assert_eq!((warnings("p"), warnings("q")), (0, 1));
}

#[test]
fn what_is_no_output_of_kubectl_is_refused_with_all_reasons() {
    let read = |text: &str| Live::read("live", text.as_bytes(), None).unwrap_err();
    assert!(read("").contains("has no document"), "{}", read(""));
    let text = ip_pool("p", SMALL) + "---\n" + &ip_pool("", SMALL) + "---\nkind: IPPool\n---\n[\n";
    let said = read(&text);
    for part in [
        "1:1: metadata.namespace: is required",
        "metadata.name: is required",
        "apiVersion: is required",
        "does not read as YAML",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(Live::read("live", b"{apiVersion: v1, kind: List, items: []}", None).is_ok());
}

#[test]
fn the_cluster_may_come_by_a_pipe() {
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("pools.yaml"), ip_pool("p", RESIZED)).unwrap();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [pool("p", &small()), ipam_node(3)]}).to_string();
    let ran = run(folder.path(), &["--against", "-", "pools.yaml"], &list);
    assert_eq!(ran.code, Some(1));
    assert!(ran.out.contains("has 3 held"), "{}", ran.out);
    let ran = run(folder.path(), &["--against", "-", "-"], &list);
    assert!(ran.code == Some(2) && ran.err.contains("- is given 2 times"), "{}", ran.err);
    let ran = run(folder.path(), &["--against", "none.json", "--ignore", "x", "pools.yaml"], "");
    let both = ran.err.contains("--against none.json: cannot be read: ") && ran.err.contains("--ignore");
    assert!(ran.code == Some(2) && both, "{}", ran.err);
}
