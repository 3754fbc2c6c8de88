//! Which mistakes are found, and where.

use ipam_validate::{Options, validate};

use crate::{cidr_pool, has, ip_pool, judged, mistakes, strictly, words};

const GOOD: &str = "{subnet: 192.168.0.0/16, perNodeBlockSize: 4}";

#[test]
fn the_examples_are_fine() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../crds/examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let options = Options { strict: true, ..Options::default() };
        let report = validate([(path.to_str().unwrap(), bytes.as_slice())], &options);
        assert!(report.is_valid() && report.pools.len() == 1, "{}", words(&report));
        seen += 1;
    }
    assert!(seen >= 10, "only {seen} examples");
}

#[test]
fn a_wrong_type_does_not_hide_what_else_is_wrong_and_makes_nothing_wrong_that_is_right() {
    let spec = "{subnet: 192.168.0.0/16, perNodeBlockSize: four, gateway: 7, defaultGateway: true, routes: [{dst: x}],
        exclusions: [{startIP: 192.168.0.9, endIP: 192.168.0.1}, 5, {startIP: 10.0.0.1, endIP: 192.168.0.4}]}";
    has(
        &judged(&ip_pool("p", spec)),
        &[
            ("spec.perNodeBlockSize", "Malformed"),
            ("spec.gateway", "Malformed"),
            ("spec.routes[0].dst", "Malformed"),
            ("spec.exclusions[0].endIP", "Inverted"),
            ("spec.exclusions[1]", "Malformed"),
            ("spec.exclusions[2].startIP", "OutsidePool"),
        ],
    );
}

#[test]
fn an_absent_gateway_index_is_missed_but_a_wrong_one_is_not_missed_too() {
    let absent = "{cidr: 10.0.0.0/16, perNodeNetworkPrefix: 24, defaultGateway: true}";
    has(&judged(&cidr_pool("p", absent)), &[("spec.defaultGateway", "Conflict")]);
    let wrong = "{cidr: 10.0.0.0/16, perNodeNetworkPrefix: 24, defaultGateway: true, gatewayIndex: first}";
    has(&judged(&cidr_pool("p", wrong)), &[("spec.gatewayIndex", "Malformed")]);
}

#[test]
fn a_field_without_a_value_is_absent_as_for_the_api_server_and_missed_only_where_it_must_be_there() {
    let rendered = "{cidr: 10.0.0.0/16, perNodeNetworkPrefix: 24, gatewayIndex: null, routes: null, exclusions: ,
        nodeSelector: ~}";
    has(&judged(&cidr_pool("p", rendered)), &[]);
    has(
        &judged(&ip_pool("p", "{subnet: 10.0.0.0/16, perNodeBlockSize: null}")),
        &[("spec.perNodeBlockSize", "Required")],
    );
}

#[test]
fn a_mistake_that_schema_and_rules_both_see_is_told_once_in_the_words_that_say_more() {
    let report = judged(&ip_pool("p", "{subnet: 10.0.0.0/24, perNodeBlockSize: 0}"));
    has(&report, &[("spec.perNodeBlockSize", "OutOfRange")]);
    assert!(report.pools[0].problems[0].message.contains("254"), "{}", words(&report));
    has(&judged(&ip_pool("p", "{perNodeBlockSize: 4}")), &[("spec.subnet", "Required")]);
    let long = format!("{{subnet: '{}', perNodeBlockSize: 4}}", "1".repeat(60));
    has(&judged(&ip_pool("p", &long)), &[("spec.subnet", "Malformed")]);
}

#[test]
fn a_pool_without_spec_or_name_is_told_so_and_nothing_else() {
    let text = "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\n";
    has(&judged(text), &[("metadata.name", "Required"), ("spec", "Required")]);
    let text = ip_pool("p", "none");
    has(&judged(&text), &[("spec", "Malformed")]);
}

#[test]
fn numbers_beyond_the_type_are_out_of_range_and_fractions_no_numbers_of_nodes() {
    let spec = "{cidr: 10.0.0.0/16, perNodeNetworkPrefix: 4294967296, gatewayIndex: 1.5}";
    has(
        &judged(&cidr_pool("p", spec)),
        &[("spec.perNodeNetworkPrefix", "OutOfRange"), ("spec.gatewayIndex", "Malformed")],
    );
    // JSON has one kind of numbers: the API server takes these for 100 and 24.
    assert!(judged(&ip_pool("p", "{subnet: 10.0.0.0/16, perNodeBlockSize: 1e2}")).is_valid());
    assert!(judged(&cidr_pool("p", "{cidr: 10.0.0.0/16, perNodeNetworkPrefix: 24.0}")).is_valid());
}

#[test]
fn lists_longer_than_the_schema_allows_are_judged_all_the_same() {
    let routes = vec!["{dst: 10.0.0.0/8}"; 1_024].join(", ") + ", {dst: nonsense}";
    let spec = format!("{{subnet: 192.168.0.0/16, perNodeBlockSize: 4, gateway: 192.168.0.1, routes: [{routes}]}}");
    has(&judged(&ip_pool("p", &spec)), &[("spec.routes", "OutOfRange"), ("spec.routes[1024].dst", "Malformed")]);
}

#[test]
fn names_are_those_that_the_api_server_and_cni_take() {
    for good in ["a", "a-b.c", "0", &"a".repeat(253)] {
        assert!(judged(&ip_pool(&format!("'{good}'"), GOOD)).is_valid(), "{good}");
    }
    for bad in ["A", "a_b", "-a", "a-", "a..b", "a b", "ä", &"a".repeat(254)] {
        has(&judged(&ip_pool(&format!("'{bad}'"), GOOD)), &[("metadata.name", "Malformed")]);
    }
    has(&judged(&ip_pool("", GOOD)), &[("metadata.name", "Required")]);
    has(&judged(&ip_pool("7", GOOD)), &[("metadata.name", "Malformed")]);
}

#[test]
fn metadata_is_judged_as_the_api_server_does() {
    let with = |metadata: &str| {
        format!("apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IPPool\nmetadata: {metadata}\nspec: {GOOD}\n")
    };
    has(&judged(&with("{name: p, namespace: A}")), &[("metadata.namespace", "Malformed")]);
    has(&judged(&with("{name: p, annotations: {a: true}}")), &[("metadata.annotations.a", "Malformed")]);
    has(&judged(&with("{name: p, annotations: [a]}")), &[("metadata.annotations", "Malformed")]);
    has(
        &judged(&with("{name: p, labels: {'a b': c, d: 'e f'}}")),
        &[("metadata.labels.a b", "Malformed"), ("metadata.labels.d", "Malformed")],
    );
    has(&judged(&with("{generateName: 'P-'}")), &[("metadata.name", "Malformed")]);
    assert!(judged(&with("{generateName: 'p-'}")).is_valid());
    has(&judged(&with("text")), &[("metadata", "Malformed")]);
}

#[test]
fn a_field_that_nobody_knows_is_a_warning_and_strictly_a_mistake() {
    let text = ip_pool("p", "{subnet: 10.0.0.0/24, perNodeBlockSize: 4, gatway: 10.0.0.1}") + "Spec: {}\n";
    let report = judged(&text);
    assert!(report.is_valid());
    let codes: Vec<_> = report.pools[0].warnings.iter().map(|w| (w.field.as_str(), w.code.as_str())).collect();
    assert_eq!(codes, [("spec.gatway", "UnknownField"), ("Spec", "UnknownField")]);
    assert!(report.pools[0].warnings[0].message.ends_with("did you mean gateway?"));
    has(&strictly(&text), &[("spec.gatway", "Unsupported"), ("Spec", "Unsupported")]);
}

#[test]
fn a_name_that_stands_twice_in_an_object_is_a_mistake_in_yaml_and_in_json() {
    let text = ip_pool("p", "{subnet: 10.0.0.0/24, perNodeBlockSize: 4, subnet: 10.1.0.0/24}");
    has(&judged(&text), &[("spec.subnet", "Duplicate")]);
    let text = r#"{"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool", "metadata": {"name": "p"},
        "spec": {"subnet": "10.0.0.0/24", "perNodeBlockSize": 4, "perNodeBlockSize": 8}}"#;
    let report = judged(text);
    has(&report, &[("spec.perNodeBlockSize", "Duplicate")]);
    assert_eq!(report.pools[0].problems[0].place.line, 2);
}

#[test]
fn booleans_are_those_that_kubectl_reads() {
    let spec = |flag: &str| format!("{{subnet: 10.0.0.0/24, perNodeBlockSize: 4, defaultGateway: {flag}}}");
    for on in ["y", "on", "Yes", "true"] {
        has(&judged(&ip_pool("p", &spec(on))), &[("spec.defaultGateway", "Conflict")]);
    }
    assert!(judged(&ip_pool("p", &spec("off"))).is_valid());
    has(&judged(&ip_pool("p", &spec("'true'"))), &[("spec.defaultGateway", "Malformed")]);
    let selector = "{subnet: 10.0.0.0/24, perNodeBlockSize: 4, nodeSelector: {nodeSelectorTerms: [{matchExpressions:
        [{key: a, operator: In, values: [on, 5]}]}]}}";
    let report = judged(&ip_pool("p", selector));
    let field = "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values";
    has(&report, &[(&format!("{field}[0]"), "Malformed"), (&format!("{field}[1]"), "Malformed")]);
    assert!(report.pools[0].problems[0].message.contains("\"on\""), "{}", words(&report));
}

#[test]
fn other_kinds_are_skipped_and_a_slip_in_ours_is_not() {
    let text = "apiVersion: v1\nkind: Pod\n---\napiVersion: crd.projectcalico.org/v1\nkind: IPPool\n---\n\
        apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IPAMNode\n";
    let report = judged(text);
    assert!(report.is_valid() && report.pools.is_empty());
    assert_eq!(report.skipped, 3);
    for (text, field, reason) in [
        ("apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IpPool\n", "kind", "Unsupported"),
        ("apiVersion: nv-ipam.nvidia.com/v1alpha2\nkind: IPPool\n", "apiVersion", "Unsupported"),
        ("apiVersion: nv-ipam.nvidia.com\nkind: IPPool\n", "apiVersion", "Unsupported"),
        ("apiVersion: nvipam.nvidia.com/v1alpha1\nkind: CIDRPool\n", "apiVersion", "Unsupported"),
        ("apiVersion: v1alpha1\nkind: CIDRPool\n", "apiVersion", "Unsupported"),
        ("Kind: IPPool\napiVersion: nv-ipam.nvidia.com/v1alpha1\n", "kind", "Required"),
        ("kind: IPPool\n", "apiVersion", "Required"),
        ("kind: [IPPool]\napiVersion: v1\n", "kind", "Malformed"),
        ("- a\n", "", "Malformed"),
        ("text\n", "", "Malformed"),
    ] {
        has(&judged(text), &[(field, reason)]);
    }
}

#[test]
fn lists_are_opened_and_lend_their_kind_to_items_without_one() {
    let item = |name: &str, extra: &str| {
        format!("- {extra}metadata: {{name: {name}}}\n  spec: {{subnet: x, perNodeBlockSize: 4}}\n")
    };
    let whole = "apiVersion: nv-ipam.nvidia.com/v1alpha1\n  kind: IPPool\n  ";
    let list = format!("apiVersion: v1\nkind: List\nitems:\n{}{}", item("a", whole), item("b", whole));
    let typed = format!("apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IPPoolList\nitems:\n{}", item("c", ""));
    let report = judged(&format!("{list}---\n{typed}"));
    has(&report, &[("spec.subnet", "Malformed"); 3]);
    let places: Vec<_> =
        report.pools.iter().map(|pool| (pool.origin.document, pool.origin.item, pool.problems[0].place.line)).collect();
    assert_eq!(places, [(1, Some(0), 7), (1, Some(1), 11), (2, Some(0), 17)]);
    let nested =
        "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List, items: [{kind: Pod, apiVersion: v1}]}, 5]\n";
    let report = judged(nested);
    assert_eq!(report.skipped, 1);
    has(&report, &[("", "Malformed")]);
    has(&judged("apiVersion: v1\nkind: List\nitems: {a: b}\n"), &[("items", "Malformed")]);
}

#[test]
fn a_document_that_does_not_read_hides_none_of_the_others() {
    let text = format!(
        "{}---\na: [1, 2\n---\n{}---\n'open\n---\n{}",
        ip_pool("a", GOOD),
        ip_pool("b", "{}"),
        cidr_pool("c", "{}")
    );
    let report = judged(&text);
    let found = mistakes(&report);
    assert_eq!(
        report.strays.iter().map(|stray| (stray.origin.document, stray.problem.place.line)).collect::<Vec<_>>(),
        [(2, 6), (4, 13)]
    );
    assert_eq!(report.pools.iter().map(|pool| pool.origin.document).collect::<Vec<_>>(), [1, 3, 5]);
    assert_eq!(found.len(), 2 + 2 + 2, "{}", words(&report));
}

#[test]
fn one_name_in_two_places_is_a_mistake_unless_kind_or_namespace_differ() {
    let other = "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IPPool\nmetadata: {name: p, namespace: other}\n";
    let text = [
        ip_pool("p", "{subnet: 10.0.0.0/24, perNodeBlockSize: 4}"),
        cidr_pool("p", "{cidr: 10.1.0.0/24, perNodeNetworkPrefix: 28}"),
        format!("{other}spec: {{subnet: 10.0.0.0/24, perNodeBlockSize: 4}}\n"),
    ];
    assert!(judged(&text.join("---\n")).is_valid());
    let again = ip_pool("p", "{subnet: 10.2.0.0/24, perNodeBlockSize: 4}");
    let report = validate([("a.yaml", text[0].as_bytes()), ("b.yaml", again.as_bytes())], &Options::default());
    has(&report, &[("metadata.name", "Duplicate")]);
    assert!(report.pools[1].problems[0].message.contains("a.yaml:1:1"), "{}", words(&report));
}

#[test]
fn a_pool_where_no_operator_looks_is_a_warning() {
    let text = "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IPPool\nmetadata: {name: p, namespace: a}\n\
        spec: {subnet: 10.0.0.0/24, perNodeBlockSize: 4}\n";
    let codes = |namespace: Option<&str>| {
        let options = Options { namespace: namespace.map(str::to_owned), ..Options::default() };
        let report = validate([("p.yaml", text.as_bytes())], &options);
        report.pools[0].warnings.iter().filter(|warning| warning.code == "OtherNamespace").count()
    };
    assert_eq!([codes(None), codes(Some("a")), codes(Some("b"))], [0, 0, 1]);
}

#[test]
fn pools_that_share_addresses_are_told_of_unless_both_allow_it_or_live_apart() {
    let annotated = |text: String| {
        text.replace("metadata: {", "metadata: {annotations: {nv-ipam.nvidia.com/allow-overlap: 'true'}, ")
    };
    let first = ip_pool("a", "{subnet: 10.0.0.0/8, perNodeBlockSize: 4}");
    let second = cidr_pool("b", "{cidr: 10.1.0.0/16, perNodeNetworkPrefix: 24}");
    let found =
        |one: &str, two: &str| validate([("a.yaml", one.as_bytes()), ("b.yaml", two.as_bytes())], &Options::default());
    let report = found(&first, &second);
    has(&report, &[("spec.cidr", "Overlap")]);
    let told = &report.pools[1].problems[0];
    assert!(told.message.contains("a.yaml:1:1") && told.place.line == 4, "{}", words(&report));
    has(&found(&annotated(first.clone()), &second), &[("spec.cidr", "Overlap")]);
    has(&found(&first, &annotated(second.clone())), &[("spec.cidr", "Overlap")]);
    assert!(found(&annotated(first.clone()), &annotated(second.clone())).is_valid());
    let apart = second.replace("name: b", "name: b, namespace: other");
    assert!(found(&first, &apart).is_valid());
    // The namespace that a manifest leaves out is the pools' namespace.
    let named = second.replace("name: b", "name: b, namespace: kube-system");
    has(&found(&first, &named), &[("spec.cidr", "Overlap")]);
}

#[test]
fn an_overlap_is_seen_also_when_the_rest_of_the_pool_is_wrong() {
    let text =
        ip_pool("a", "{subnet: 10.0.0.0/8}") + "---\n" + &ip_pool("b", "{subnet: 10.0.0.0/8, perNodeBlockSize: 0}");
    let report = judged(&text);
    let mut found = mistakes(&report);
    found.sort();
    let expected =
        [("spec.perNodeBlockSize", "OutOfRange"), ("spec.perNodeBlockSize", "Required"), ("spec.subnet", "Overlap")];
    assert_eq!(found, expected.map(|(field, reason)| (field.to_owned(), reason)));
}

#[test]
fn what_works_but_surprises_is_a_warning_at_its_line() {
    let spec = "\n  subnet: 192.168.3.4/24\n  perNodeBlockSize: 100\n  gateway: 192.168.3.1\n  defautGateway: true";
    let report = judged(&ip_pool("p", spec));
    assert!(report.is_valid(), "{}", words(&report));
    let warnings: Vec<_> =
        report.pools[0].warnings.iter().map(|warning| (warning.code.as_str(), warning.place.line)).collect();
    for expected in [("HostBits", 5), ("GatewayInBlock", 7), ("DeprecatedField", 8)] {
        assert!(warnings.contains(&expected), "{warnings:?} lacks {expected:?}");
    }
}

#[test]
fn labels_under_the_node_selector_are_told_what_to_write() {
    let spec = "{subnet: 10.0.0.0/24, perNodeBlockSize: 4, nodeSelector: {matchLabels: {a: b}}}";
    let report = strictly(&ip_pool("p", spec));
    has(
        &report,
        &[("spec.nodeSelector.nodeSelectorTerms", "Required"), ("spec.nodeSelector.matchLabels", "Unsupported")],
    );
    assert!(words(&report).contains("matchExpressions"), "{}", words(&report));
}
