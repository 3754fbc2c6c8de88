//! What is said about nodes: how many fit, and which gets what.

use ipam_validate::plan::Fit;
use ipam_validate::{MAX_NODES, Nodes, Options, validate};

use crate::{cidr_pool, ip_pool};

fn fit(text: &str, nodes: Nodes) -> Fit {
    let options = Options { nodes: Some(nodes), explain: true, ..Options::default() };
    validate([("p.yaml", text.as_bytes())], &options).pools.remove(0).nodes.unwrap()
}

/// Node, and its block as text.
fn shares(fit: &Fit) -> Vec<String> {
    fit.plan.iter().flatten().map(|share| format!("{} {}", share.node, share.block)).collect()
}

#[test]
fn nodes_beyond_the_last_block_do_not_fit() {
    let pool = ip_pool("p", "{subnet: 10.0.0.0/29, perNodeBlockSize: 2, gateway: 10.0.0.1}");
    let fit = fit(&pool, Nodes::numbered(12).unwrap());
    assert_eq!((fit.selected, fit.served, fit.room, fit.addresses), (12, 3, 3, 5));
    assert_eq!(shares(&fit), ["node-01 10.0.0.1-10.0.0.2", "node-02 10.0.0.3-10.0.0.4", "node-03 10.0.0.5-10.0.0.6"]);
    assert_eq!(fit.unserved.len(), 9);
}

#[test]
fn numbered_nodes_fit_whatever_the_selector_says_and_labelled_ones_are_selected_by_it() {
    let selector = "nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: rdma, operator: Exists}]}]}";
    let pool = ip_pool("p", &format!("{{subnet: 10.0.0.0/24, perNodeBlockSize: 4, {selector}}}"));
    assert_eq!(fit(&pool, Nodes::numbered(3).unwrap()).served, 3);
    assert_eq!(fit(&pool, Nodes::named("a,b").unwrap()).served, 2);
    let shown =
        b"NAME   STATUS  ROLES  AGE  VERSION  LABELS\nb Ready <none> 5d v1.33 rdma=,x=y\na Ready <none> 5d v1.33 x=y\n";
    let labelled = fit(&pool, Nodes::from_file("nodes", shown).unwrap());
    assert_eq!((labelled.selected, shares(&labelled)), (1, vec!["b 10.0.0.1-10.0.0.4".to_owned()]));
    let objects = b"apiVersion: v1\nkind: List\nitems:\n- {kind: Node, metadata: {name: a, labels: {rdma: 'on'}}}\n- {kind: Node, metadata: {name: b}}\n";
    let labelled = fit(&pool, Nodes::from_file("nodes.yaml", objects).unwrap());
    assert_eq!((labelled.selected, shares(&labelled)), (1, vec!["a 10.0.0.1-10.0.0.4".to_owned()]));
}

#[test]
fn blocks_that_the_manifests_own_status_records_stay_with_their_nodes() {
    let pool = cidr_pool("p", "{cidr: 10.0.0.0/22, perNodeNetworkPrefix: 24}")
        + "status: {allocations: [{nodeName: b, prefix: 10.0.0.0/24}, {nodeName: gone, prefix: 10.0.1.0/24}, 7]}\n";
    let fit = fit(&pool, Nodes::named("a, b").unwrap());
    assert_eq!(shares(&fit), ["a 10.0.2.0/24", "b 10.0.0.0/24"]);
    assert_eq!(fit.room, 3);
}

#[test]
fn a_list_that_is_no_list_of_nodes_is_refused_with_all_mistakes() {
    let why = Nodes::named("A,b,b,c_d").unwrap_err();
    for part in ["\"A\"", "\"c_d\"", "b stands twice"] {
        assert!(why.contains(part), "{why}");
    }
    assert!(Nodes::named(" , ").unwrap_err().contains("no node"));
    assert!(Nodes::numbered(MAX_NODES + 1).is_err());
    assert!(Nodes::from_file("x", b"kind: Pod\n").unwrap_err().contains("no Node"));
    assert!(Nodes::from_file("x", b"\xff").is_err());
    assert_eq!(
        Nodes::from_file("x", b"node/a\n# b\n\nc\n").unwrap().refs().map(|node| node.name).collect::<Vec<_>>(),
        ["a", "c"]
    );
}

#[test]
fn no_plan_is_made_for_a_pool_with_a_mistake_even_if_the_rest_of_it_would_do() {
    let options = Options { nodes: Nodes::numbered(3).ok(), ..Options::default() };
    let text = ip_pool("p", "{subnet: 10.0.0.0/24, perNodeBlockSize: 4, nodeSelector: {nodeSelectorTerms: [7]}}");
    let report = validate([("p.yaml", text.as_bytes())], &options);
    assert!(!report.is_valid() && report.pools[0].nodes.is_none() && report.pools[0].warnings.is_empty());
}
