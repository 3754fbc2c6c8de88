//! The text of `validate`, written once more from its JSON alone.

use serde_json::Value;

/// Most lines about one pool in the text.
const MOST: usize = 50;

/// All lines of the text.
pub(crate) fn lines(report: &Value) -> Vec<String> {
    let mut lines: Vec<String> = list(&report["unrecognized"]).iter().map(stray).collect();
    lines.extend(list(&report["pools"]).iter().flat_map(pool));
    lines.extend(list(&report["networks"]).iter().flat_map(network));
    lines.push(summary(report));
    lines
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn count(value: &Value) -> usize {
    value.as_u64().map_or(0, |number| usize::try_from(number).unwrap())
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn place(value: &Value) -> String {
    format!("{}:{}", value["line"], value["column"])
}

fn document(origin: &Value) -> String {
    let item = origin["item"].as_u64().map_or_else(String::new, |item| format!(" item {item}"));
    format!("document {}{item}", origin["document"])
}

fn stray(stray: &Value) -> String {
    let problem = &stray["error"];
    let field = if text(&problem["field"]).is_empty() { "" } else { &format!("{}: ", text(&problem["field"])) };
    let (file, message) = (text(&stray["file"]), text(&problem["message"]));
    format!("{file}:{}: {}: {field}{message}", place(problem), document(stray))
}

fn network(network: &Value) -> Vec<String> {
    let name = format!("NetworkAttachmentDefinition {}/{}", text(&network["namespace"]), text(&network["name"]));
    let said = |one: &Value, marker: &str| {
        let (file, document) = (text(&network["file"]), document(network));
        format!("{file}:{}: {document}, {name}: {marker}{}: {}", place(one), text(&one["field"]), text(&one["message"]))
    };
    let errors = list(&network["errors"]).iter().map(|error| said(error, ""));
    errors.chain(list(&network["warnings"]).iter().map(|warning| said(warning, "warning: "))).collect()
}

fn pool(pool: &Value) -> Vec<String> {
    let file = text(&pool["file"]);
    let name = format!("{} {}/{}", text(&pool["kind"]), text(&pool["namespace"]), text(&pool["name"]));
    let whose = format!("{}, {name}", document(pool));
    let said = |one: &Value, marker: &str| {
        assert!(!text(&one["reason"]).is_empty() || !text(&one["code"]).is_empty(), "no word for it: {one}");
        format!("{file}:{}: {whose}: {marker}{}: {}", place(one), text(&one["field"]), text(&one["message"]))
    };
    let problems = list(&pool["errors"]);
    let mut lines: Vec<String> = problems.iter().take(MOST).map(|problem| said(problem, "")).collect();
    let untold = count(&pool["moreErrors"]) + problems.len().saturating_sub(MOST);
    if untold > 0 {
        let more = counted(untold, "more error", "more errors");
        lines.push(format!("{file}:{}: {whose}: and {more}", place(pool)));
    }
    lines.extend(list(&pool["warnings"]).iter().map(|warning| said(warning, "warning: ")));
    lines.extend(fit(&pool["nodes"], &format!("{file}:{}: {whose}", place(pool))));
    lines
}

fn fit(fit: &Value, whose: &str) -> Vec<String> {
    let Some(plan) = fit["plan"].as_array() else { return Vec::new() };
    let selected = counted(count(&fit["selected"]), "node", "nodes");
    let mut lines = vec![format!(
        "{whose}: {} of {selected} fit, {} at most; their pods have {} addresses",
        fit["served"], fit["room"], fit["addresses"]
    )];
    let width = plan.iter().map(|share| text(&share["node"]).len()).max().unwrap_or_default();
    for share in plan {
        let run = format!("{}-{}", text(&share["startIP"]), text(&share["endIP"]));
        let block = share["prefix"].as_str().unwrap_or(&run);
        let gateway = share["gateway"].as_str().map_or_else(String::new, |gateway| format!(", gateway {gateway}"));
        let node = text(&share["node"]);
        lines.push(format!("  {node:width$}  {block}{gateway}, {} for pods", share["addresses"]));
    }
    lines.extend(list(&fit["unserved"]).iter().map(|node| format!("  {:width$}  no block is left", text(node))));
    lines
}

fn summary(report: &Value) -> String {
    let pools = list(&report["pools"]);
    let refused = pools.iter().filter(|pool| !list(&pool["errors"]).is_empty()).count();
    let problems: usize = pools.iter().map(|pool| list(&pool["errors"]).len() + count(&pool["moreErrors"])).sum();
    let warnings: usize = pools.iter().map(|pool| list(&pool["warnings"]).len()).sum();
    let networks = list(&report["networks"]);
    let sum = |list_of: &str| networks.iter().map(|network| list(&network[list_of]).len()).sum::<usize>();
    let wrong = networks.iter().filter(|network| !list(&network["errors"]).is_empty()).count();
    let networks = format!(
        "; {}: {} valid, {wrong} invalid ({}, {})",
        counted(networks.len(), "network", "networks"),
        networks.len() - wrong,
        counted(sum("errors"), "error", "errors"),
        counted(sum("warnings"), "warning", "warnings"),
    );
    format!(
        "{}: {} valid, {refused} invalid ({}, {}){networks}; {} not recognized; {} of other kinds skipped",
        counted(pools.len(), "pool", "pools"),
        pools.len() - refused,
        counted(problems, "error", "errors"),
        counted(warnings, "warning", "warnings"),
        counted(list(&report["unrecognized"]).len(), "document", "documents"),
        counted(count(&report["skipped"]), "object", "objects"),
    )
}
