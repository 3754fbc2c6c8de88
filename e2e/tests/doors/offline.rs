//! The second door: `ipam-controller validate`. It sees manifests, so of a case it sees what stands in a file: the spec that
//! is put and the other pools, but not what is held. It has no verdict on an edit that would take addresses in use. If the file
//! has the status of the pool and the nodes are known, its plan shows which blocks such an edit moves.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use ipam_core::{AdviceCode, Reason};
use ipam_e2e::cases::{Case, Refusal, Warning, load};
use ipam_e2e::{binaries, child};
use ipam_validate::{Live, Nodes, Options, PoolReport, validate};
use serde_json::{Value, json};

use crate::objects;
use crate::server::edited;
use crate::verdict::{Verdict, assert_none, disagreement, expected};

/// The others first, the case's pool last: in files the later one is the newcomer.
fn manifests(case: &Case) -> Vec<Value> {
    case.others.iter().map(objects::other).chain([objects::new(case)]).collect()
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn offline(case: &Case) -> Verdict {
    let nodes = case.fleet.then(|| Nodes::from_file("fleet", list(&objects::nodes()).as_bytes()).unwrap());
    let report = validate([(&*case.name, list(&manifests(case)).as_bytes())], &Options { nodes, ..Options::default() });
    assert_eq!((report.strays.len(), report.skipped), (0, 0), "{}", case.title());
    let pool: &PoolReport = report.pools.last().unwrap();
    assert_eq!((pool.kind, &pool.name), (case.kind(), &case.pool));
    let refused = pool
        .problems
        .iter()
        .map(|problem| Refusal { field: problem.field.clone(), reason: problem.reason.to_string() });
    let warned = pool.warnings.iter().map(|one| Warning { field: one.field.clone(), code: one.code.clone() });
    Verdict { refused: refused.collect(), warned: warned.collect() }
}

/// What can be seen in files.
fn in_files(case: &Case) -> Verdict {
    let mut verdict = expected(case);
    verdict.refused.retain(|refusal| refusal.reason != Reason::InUse.as_str());
    verdict.warned.retain(|warning| warning.code != AdviceCode::NodesLeftOut.as_str());
    verdict
}

/// Whether files show the case: whether an edit made an overlap or found it there does not stand in a file.
fn is_shown(case: &Case) -> bool {
    case.old.is_none() || case.others.is_empty()
}

#[test]
fn validate_gives_every_case_the_verdict_that_files_show() {
    let cases = load().unwrap().into_iter().filter(is_shown);
    let wrong: Vec<String> = cases.filter_map(|case| disagreement(&case, in_files(&case), offline(&case))).collect();
    assert_none(&wrong);
}

/// With `--against` the command sees the cluster, too: the pools as they are, and the reports of agents.
fn against(case: &Case) -> Verdict {
    let nodes = Nodes::from_file("fleet", list(&objects::nodes()).as_bytes()).unwrap();
    let ipam_nodes = objects::told(case).into_iter().map(|(name, told)| objects::ipam_node(&name, &[told]));
    let pools = case.others.iter().map(objects::other).chain(objects::old(case));
    let mut live: Vec<Value> = pools.chain(ipam_nodes).collect();
    for object in &mut live {
        object["metadata"]["namespace"] = "kube-system".into();
    }
    let live = Live::read("live", list(&live).as_bytes(), Some(&nodes)).unwrap();
    // The other cases have no verdict on the nodes.
    let nodes = case.fleet.then_some(nodes);
    let options = Options { nodes, against: Some(Arc::new(live)), ..Options::default() };
    let report = validate([(&*case.name, objects::new(case).to_string().as_bytes())], &options);
    let pool = report.pools.last().unwrap();
    let refused = pool.problems.iter().map(|one| Refusal { field: one.field.clone(), reason: one.reason.to_string() });
    let warned = pool.warnings.iter().map(|one| Warning { field: one.field.clone(), code: one.code.clone() });
    Verdict { refused: refused.collect(), warned: warned.collect() }
}

#[test]
fn validate_against_the_cluster_gives_every_case_its_verdict() {
    let cases = load().unwrap().into_iter();
    let wrong: Vec<String> = cases.filter_map(|case| disagreement(&case, expected(&case), against(&case))).collect();
    assert_none(&wrong);
}

/// An edit that moves no block, but takes an address in use that lies outside of its node's block. No plan shows that.
const OUTSIDE_ITS_BLOCK: &str = "shrink of the subnet away from an address asked for by name";

/// Whether an edit of the field moves blocks. A gateway or an exclusion takes single addresses of blocks that stay.
fn moves(refusal: &Refusal) -> bool {
    let stays = ["spec.exclusions", "spec.perNodeExclusions", "spec.gateway"];
    !stays.iter().any(|field| refusal.field.starts_with(field)) && !refusal.field.ends_with(".gateway")
}

/// The blocks of nodes in the plan for the pool of `case` as `kubectl get -o yaml` prints it after the edit.
fn planned(case: &Case) -> (PoolReport, BTreeMap<String, String>) {
    let nodes = Some(Nodes::from_file("fleet", list(&objects::nodes()).as_bytes()).unwrap());
    let pool = edited(&objects::old(case).unwrap(), &objects::new(case));
    let options = Options { nodes, explain: true, ..Options::default() };
    let mut report = validate([(&*case.name, list(&[pool]).as_bytes())], &options);
    let pool = report.pools.remove(0);
    let plan = serde_json::to_value(&pool).unwrap()["nodes"]["plan"].take();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let shares = plan.as_array().unwrap().iter().map(|share| {
        let block = match &share["prefix"] {
            Value::Null => format!("{}-{}", text(&share["startIP"]), text(&share["endIP"])),
            prefix => text(prefix),
        };
        (text(&share["node"]), block)
    });
    (pool, shares.collect())
}

#[test]
fn the_plan_shows_which_blocks_an_edit_of_addresses_in_use_moves() {
    let (mut moving, mut staying, mut wrong) = (0, 0, Vec::new());
    for case in load().unwrap() {
        let in_use: Vec<&Refusal> =
            case.refused.iter().filter(|refusal| refusal.reason == Reason::InUse.as_str()).collect();
        let leaves_out = case.warned.iter().any(|warning| warning.code == AdviceCode::NodesLeftOut.as_str());
        if in_use.is_empty() && !leaves_out {
            continue;
        }
        let (pool, plan) = planned(&case);
        assert!(pool.is_valid(), "{}: files show no use: {:?}", case.title(), pool.problems);
        let has_moved = |(node, block): (&String, &String)| {
            let block = block.split_once(" via ").map_or(block.as_str(), |(prefix, _)| prefix);
            plan.get(node).is_none_or(|share| share != block)
        };
        let shown = case.blocks.iter().any(has_moved);
        let moves = leaves_out || in_use.iter().any(|refusal| moves(refusal));
        let expected = moves && case.name != OUTSIDE_ITS_BLOCK;
        *(if expected { &mut moving } else { &mut staying }) += 1;
        if shown != expected {
            wrong.push(format!("{}: blocks move is {expected}, shown is {plan:?}", case.title()));
        }
    }
    assert_none(&wrong);
    assert!(moving + staying >= 49, "as many as there are: {moving} {staying}");
    assert!(moving >= 20 && staying >= 10, "{moving} {staying}");
}

/// What the program prints about `cases`, each of which has a namespace of its own: the verdicts by namespace.
fn printed(cases: &[(String, &Case)], node_list: Option<&Path>) -> BTreeMap<String, Verdict> {
    let items = cases.iter().flat_map(|(namespace, case)| {
        manifests(case).into_iter().map(move |mut pool| {
            pool["metadata"]["namespace"] = namespace.as_str().into();
            pool
        })
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cases.json");
    fs::write(&file, list(&items.collect::<Vec<_>>())).unwrap();
    let mut command = Command::new(&binaries::build().unwrap().controller);
    command.args(["validate", "-o", "json"]).arg(&file);
    if let Some(nodes) = node_list {
        command.arg("--node-list").arg(nodes);
    }
    let output = child::output(&mut command).unwrap();
    let is_refused = |(_, case): &(String, &Case)| !in_files(case).refused.is_empty();
    let wanted = i32::from(cases.iter().any(is_refused));
    assert_eq!(output.status.code(), Some(wanted), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["unrecognized"], &report["skipped"]), (&json!([]), &json!(0)));
    let pools = report["pools"].as_array().unwrap().iter();
    // Of a namespace the last pool counts.
    pools.map(|pool| (pool["namespace"].as_str().unwrap().to_owned(), told(pool))).collect()
}

fn told(pool: &Value) -> Verdict {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let each = |list: &str| pool[list].as_array().unwrap().clone().into_iter();
    let refused = each("errors").map(|one| Refusal { field: text(&one["field"]), reason: text(&one["reason"]) });
    let warned = each("warnings").map(|one| Warning { field: text(&one["field"]), code: text(&one["code"]) });
    Verdict { refused: refused.collect(), warned: warned.collect() }
}

#[test]
fn the_program_prints_for_every_case_the_verdict_that_files_show() {
    let nodes = tempfile::NamedTempFile::new().unwrap();
    fs::write(nodes.path(), list(&objects::nodes())).unwrap();
    let cases = load().unwrap();
    let shown = cases.iter().filter(|case| is_shown(case)).enumerate();
    let named = shown.map(|(number, case)| (format!("case-{number}"), case));
    let (fleet, alone): (Vec<_>, Vec<_>) = named.partition(|(_, case)| case.fleet);
    let mut wrong = Vec::new();
    for (cases, node_list) in [(fleet, Some(nodes.path())), (alone, None)] {
        let mut printed = printed(&cases, node_list);
        for (namespace, case) in &cases {
            wrong.extend(disagreement(case, in_files(case), printed.remove(namespace).unwrap_or_default()));
        }
    }
    assert_none(&wrong);
}
