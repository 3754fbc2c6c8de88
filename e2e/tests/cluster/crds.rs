//! The definitions on a real API server: strict validation, and the columns that people see. What is refused: `doors`.

use ipam_e2e::binaries::workspace;
use ipam_e2e::eventually_blocking;
use serde_json::json;

use crate::api::{Api, CIDRPOOLS, IPPOOLS, SOON};
use crate::stage::{Stage, plane};

#[test]
fn every_example_of_the_documents_passes_strict_validation() {
    let plane = plane();
    ipam_e2e::cluster::await_namespace(plane, "kube-system").unwrap();
    let folder = workspace().join("crds/examples");
    let examples = std::fs::read_dir(&folder).unwrap().count();
    assert!(examples >= 12, "{examples}");
    let folder = folder.display().to_string();
    plane.kubectl().run(&["apply", "--validate=strict", "--dry-run=server", "-f", &folder]).unwrap();
}

#[test]
fn a_field_that_the_schema_does_not_know_is_refused_under_strict_validation() {
    let plane = plane();
    let api = Api::new(plane, &plane.namespace("strict").unwrap());
    let object = json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool", "metadata": {"name": "slip"},
        "spec": {"subnet": "10.0.0.0/24", "perNodeBlockSize": 4, "gatway": "10.0.0.1"},
    });
    let path = format!("{}?dryRun=All&fieldValidation=Strict", api.path(IPPOOLS));
    let status = api.send("POST", &path, "application/json", &object).unwrap_err();
    assert!(status.message.contains("spec.gatway"), "{status:?}");
}

/// The table's head and its one row, cut at the columns.
fn table(stage: &Stage, kind: &str) -> Vec<(String, String)> {
    let printed = stage.plane.kubectl().run(&["get", kind, "-n", &stage.namespace]).unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    let (head, row) = (lines[0], lines[1]);
    let starts: Vec<usize> = (0..head.len())
        .filter(|&at| head.as_bytes()[at] != b' ' && (at == 0 || head[..at].ends_with("  ")))
        .chain([head.len().max(row.len())])
        .collect();
    let cut =
        |line: &str, from: usize, to: usize| line.get(from..to.min(line.len())).unwrap_or_default().trim().to_owned();
    starts.windows(2).map(|pair| (cut(head, pair[0], pair[1]), cut(row, pair[0], pair[1]))).collect()
}

#[test]
fn kubectl_shows_the_columns_of_both_kinds_of_pools() {
    let stage = Stage::set("columns");
    stage.join("a");
    let flat = stage.for_us(json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1", "perNodeBlockSize": 8}));
    stage.api.create(IPPOOLS, "flat", &flat);
    stage.api.await_count(IPPOOLS, "flat", 1);
    let routed = stage.for_us(json!({"cidr": "10.2.0.0/16", "gatewayIndex": 1, "perNodeNetworkPrefix": 24}));
    stage.api.create(CIDRPOOLS, "routed", &routed);
    stage.api.await_count(CIDRPOOLS, "routed", 1);
    let expect = |kind: &str, wanted: &[(&str, &str)]| {
        eventually_blocking(&format!("the table of {kind}"), SOON, || {
            let shown = table(&stage, kind);
            let columns: Vec<(&str, &str)> = shown
                .iter()
                .map(|(head, cell)| (head.as_str(), cell.as_str()))
                .filter(|(head, _)| *head != "AGE")
                .collect();
            let aged = shown.iter().any(|(head, cell)| head == "AGE" && !cell.is_empty());
            if aged && columns == wanted { Ok(()) } else { Err(format!("{shown:?}")) }
        })
        .unwrap();
    };
    let flat = [("NAME", "flat"), ("SUBNET", "10.1.0.0/24"), ("GATEWAY", "10.1.0.1"), ("BLOCK SIZE", "8")];
    expect(
        IPPOOLS,
        &[&flat[..], &[("NODES", "1"), ("FREE BLOCKS", "30"), ("USED", "0"), ("CAPACITY", "7"), ("READY", "True")]]
            .concat(),
    );
    let routed =
        [("NAME", "routed"), ("CIDR", "10.2.0.0/16"), ("GATEWAY INDEX", "1"), ("PER NODE NETWORK PREFIX", "24")];
    expect(
        CIDRPOOLS,
        &[
            &routed[..],
            &[("NODES", "1"), ("FREE BLOCKS", "255"), ("USED", "0"), ("CAPACITY", "253"), ("READY", "True")],
        ]
        .concat(),
    );
}
