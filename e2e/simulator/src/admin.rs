//! The admin's actions on the API server. If the server rejects one, it was impossible in the current state.

use ipam_core::overlap::ALLOW_OVERLAP_ANNOTATION;
use ipam_node_agent::standing::DISCARD;
use ipam_reconciler::cluster_cache::CORDON;
use ipam_reconciler::pool::{FORCE_ALL, FORCE_RELEASE};
use serde_json::{Value, json};

use super::action::Action;
use super::catalogue::{POOLS, manifest};
use super::server::{Server, text};
use super::size::node_name;

/// The label values that select a node, and that do not.
const SELECTED: [&str; 2] = ["x", "y"];

/// Applies `action` to the objects of the server. Returns whether the server accepted it.
pub(super) fn act(server: &mut Server, action: Action) -> bool {
    match action {
        Action::NodeJoins { node } => {
            let object = json!({"metadata": {"name": node_name(node), "labels": {"group": SELECTED[0]}}});
            server.create("nodes", object).is_ok()
        }
        Action::NodeLeaves { node } => leave(server, &node_name(node)),
        Action::NodeTerminates { node } => terminate(server, &node_name(node)),
        Action::Relabel { node } => relabel(server, &node_name(node)),
        Action::Cordon { node } => cordon(server, &node_name(node)),
        Action::Apply { pool, spec } => apply(server, pool, spec),
        Action::Remove { pool } => {
            let (plural, name) = pool_at(pool);
            server.delete(plural, name, &json!({})).is_ok()
        }
        Action::RemoveIpamNode { node } => remove_ipam_node(server, &node_name(node)),
        Action::DiscardReport { node } => discard_report(server, &node_name(node)),
        Action::WipeStatus { pool } => merge(server, pool, true, &json!({ "status": null })),
        Action::Strip { pool } => merge(server, pool, false, &json!({"metadata": {"finalizers": null}})),
        Action::ForceRelease { pool, node } => annotate(server, pool, FORCE_RELEASE, &json!(node_name(node))),
        Action::ForceAll { pool } => annotate(server, pool, FORCE_RELEASE, &json!(FORCE_ALL)),
        Action::Share { pool } => {
            let (plural, name) = pool_at(pool);
            let shares = server.get(plural, name).is_some_and(|object| may_share(object));
            annotate(server, pool, ALLOW_OVERLAP_ANNOTATION, &if shares { Value::Null } else { json!("true") })
        }
        _ => false,
    }
}

/// Whether the action is one of an admin on single objects.
pub(super) const fn is_of_admin(action: Action) -> bool {
    matches!(
        action,
        Action::NodeJoins { .. }
            | Action::NodeLeaves { .. }
            | Action::NodeTerminates { .. }
            | Action::Relabel { .. }
            | Action::Cordon { .. }
            | Action::Apply { .. }
            | Action::Remove { .. }
            | Action::RemoveIpamNode { .. }
            | Action::DiscardReport { .. }
            | Action::WipeStatus { .. }
            | Action::Strip { .. }
            | Action::ForceRelease { .. }
            | Action::ForceAll { .. }
            | Action::Share { .. }
    )
}

/// The name by which the action is counted if it changes an object. Records are lost only where there are some.
pub(super) fn counted(server: &Server, action: Action) -> Option<&'static str> {
    match action {
        Action::ForceRelease { .. } | Action::ForceAll { .. } => Some("force-releases"),
        Action::WipeStatus { pool } => {
            let (plural, name) = pool_at(pool);
            let has_records = server.get(plural, name).is_some_and(|object| !object.claims().is_empty());
            has_records.then_some("records lost: status wiped")
        }
        Action::RemoveIpamNode { node } => {
            let object = server.get("ipamnodes", &node_name(node))?;
            let has_blocks = object["spec"]["pools"].as_array().is_some_and(|pools| !pools.is_empty());
            has_blocks.then_some("records lost: IPAMNode deleted")
        }
        Action::DiscardReport { .. } => Some("reports discarded"),
        Action::Strip { .. } => Some("finalizers removed by hand"),
        Action::NodeJoins { .. } => Some("Nodes created"),
        Action::NodeLeaves { .. } => Some("Nodes deleted"),
        Action::NodeTerminates { .. } => Some("Nodes terminating"),
        Action::Apply { .. } => Some("pools applied"),
        Action::Remove { .. } => Some("pools deleted"),
        _ => None,
    }
}

/// Plural and name of the `pool`-th pool.
pub(super) fn pool_at(pool: u8) -> (&'static str, &'static str) {
    POOLS[usize::from(pool) % POOLS.len()]
}

/// Whether a pool may share addresses with others that allow it, too.
pub(super) fn may_share(pool: &Value) -> bool {
    pool["metadata"]["annotations"][ALLOW_OVERLAP_ANNOTATION] == "true"
}

/// Runs the command in the Ready condition of the IPAMNode. Returns whether there is one and the server accepted it.
fn discard_report(server: &mut Server, name: &str) -> bool {
    let Some(value) = server.get("ipamnodes", name).and_then(|object| value_to_discard(object)) else { return false };
    server.merge("ipamnodes", name, false, &json!({"metadata": {"annotations": {DISCARD: value}}})).is_ok()
}

/// The value that discards the report, as in the Ready condition of the IPAMNode.
pub(super) fn value_to_discard(object: &Value) -> Option<String> {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let message = conditions.find(|condition| condition["type"] == "Ready")?["message"].as_str()?;
    let (_, value) = message.split_once(&format!("{DISCARD}="))?;
    value.split(|c: char| !c.is_ascii_digit()).next().map(str::to_owned)
}

fn annotate(server: &mut Server, pool: u8, key: &str, value: &Value) -> bool {
    merge(server, pool, false, &json!({"metadata": {"annotations": {key: value}}}))
}

fn merge(server: &mut Server, pool: u8, status: bool, patch: &Value) -> bool {
    let (plural, name) = pool_at(pool);
    server.merge(plural, name, status, patch).is_ok()
}

fn relabel(server: &mut Server, name: &str) -> bool {
    let Some(object) = server.get("nodes", name) else { return false };
    let next = if text(object, "/metadata/labels/group") == SELECTED[0] { SELECTED[1] } else { SELECTED[0] };
    server.merge("nodes", name, false, &json!({"metadata": {"labels": {"group": next}}})).is_ok()
}

/// Deletes the Node. A Node that is Terminating counts as drained: its finalizer is removed.
fn leave(server: &mut Server, name: &str) -> bool {
    if server.merge("nodes", name, false, &json!({"metadata": {"finalizers": null}})).is_err() {
        return false;
    }
    server.get("nodes", name).is_none() || server.delete("nodes", name, &json!({})).is_ok()
}

/// Deletes the IPAMNode by force: without its finalizers.
fn remove_ipam_node(server: &mut Server, name: &str) -> bool {
    if server.merge("ipamnodes", name, false, &json!({"metadata": {"finalizers": null}})).is_err() {
        return false;
    }
    server.get("ipamnodes", name).is_none() || server.delete("ipamnodes", name, &json!({})).is_ok()
}

fn terminate(server: &mut Server, name: &str) -> bool {
    let held = json!({"metadata": {"finalizers": ["example.com/drain"]}});
    server.merge("nodes", name, false, &held).is_ok() && server.delete("nodes", name, &json!({})).is_ok()
}

fn cordon(server: &mut Server, name: &str) -> bool {
    let Some(object) = server.get("nodes", name) else { return false };
    let next = if object["metadata"]["annotations"][CORDON].is_null() { json!("true") } else { Value::Null };
    server.merge("nodes", name, false, &json!({"metadata": {"annotations": {CORDON: next}}})).is_ok()
}

/// `kubectl apply`: creates the pool if it does not exist, else replaces its spec.
fn apply(server: &mut Server, pool: u8, spec: u8) -> bool {
    let (plural, name, object) = manifest(pool, spec);
    match server.get(plural, name) {
        None => server.create(plural, object).is_ok(),
        Some(old) => {
            let mut new = (***old).clone();
            new["spec"] = object["spec"].clone();
            server.replace(plural, false, &new).is_ok()
        }
    }
}
