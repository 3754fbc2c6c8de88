//! Violations that the laws allow, because an admin has accepted them. Each names an assignment: pool, node, block, and
//! which assignment of this block to this node. It ends when the assignment is recorded again.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipam_core::{PoolKey, PoolKind};
use ipam_reconciler::pool::{FINALIZER, FORCE_ALL, FORCE_RELEASE};
use serde_json::Value;

use super::activity::Activity;
use super::agent::{Held, Node};
use super::clock::Clock;
use super::records::{Assignment, AssignmentId, POOL_KINDS, Records, plural_of, pool_of_entry};
use super::replica::Replica;
use super::server::{Change, Server, text};
use super::unreported::{Unreported, has_reported};

/// The block was force-released.
const FORCED: &str = "force-release";
/// The grace was over, and a leader had seen the Node missing for long enough.
const EXPIRED: &str = "grace";
/// No report has it: an admin destroyed the record, and then the Node left.
const UNREPORTED: &str = "no report can show it";
/// The agent's store was deleted or restored, and the report that had the address is gone, too.
const NO_RECORD: &str = "store and report lost";

/// What an operator decided because of an annotation takes effect within this time.
const DECIDED: Duration = Duration::from_secs(15);

/// Whether the pool with this state must serve the node, and no report of the node can be awaited.
pub(super) type Serves<'a> = &'a dyn Fn(&Value, &PoolKey, &str) -> bool;

/// The violations that are allowed at the moment.
#[derive(Default)]
pub(super) struct Allowed {
    /// The grace of replicas that start: how long a Node must be gone before its block is released; `None` is never.
    pub(super) grace: Option<Duration>,
    /// Nodes that are gone, or that a status records as gone, and since when.
    gone: BTreeMap<String, Duration>,
    /// By how much the wall clocks of replicas were set, all together. By so much a grace can be shorter than it seems.
    pub(super) clocks_set_by: Duration,
    /// Assignments that were released even if addresses are in use, and why.
    waived: BTreeMap<AssignmentId, &'static str>,
    /// Assignments among these that are recorded again, and since when.
    recorded_since: BTreeMap<AssignmentId, Duration>,
    /// Assignments whose Node was gone for the grace, whatever else waives them.
    expired: BTreeSet<AssignmentId>,
    /// Assignments of which no leader knows, or no report, and since when their agents report all addresses in use.
    reported_since: BTreeMap<AssignmentId, Duration>,
    /// Addresses of such an assignment that were in use when its waiver ended. They are allowed until their pods end.
    waived_addresses: BTreeMap<(AssignmentId, IpAddr), &'static str>,
    /// Addresses in use, by pool and node, that the model could not attribute to an assignment, and why they are waived.
    unattributed: BTreeMap<(PoolKey, String, IpAddr), &'static str>,
    /// The nodes that each pool's annotation names.
    named: BTreeMap<PoolKey, BTreeSet<String>>,
    /// Names in annotations that have no effect yet, because their nodes are served, and the assignments of the nodes when they came.
    kept: BTreeMap<(PoolKey, String), BTreeSet<AssignmentId>>,
    /// Assignments that were force-released, and that the last backup records.
    forced: BTreeMap<AssignmentId, Assignment>,
    /// Pools whose finalizer an admin removed, and that have none yet.
    unguarded: BTreeSet<PoolKey>,
    /// Assignments whose record was lost with a wiped status, and that no status records again.
    wiped: BTreeSet<AssignmentId>,
    pub(super) unreported: Unreported,
    activity: RefCell<Activity>,
}

impl Allowed {
    /// Counts a check of the law, and an allowed violation if there is a reason. Returns whether there is one.
    pub(super) fn judge(&self, law: &'static str, reason: Option<&'static str>) -> bool {
        let mut activity = self.activity.borrow_mut();
        activity.check(law, 1);
        if let Some(reason) = reason {
            activity.allow(law, reason, 1);
        }
        reason.is_some()
    }

    /// Counts that an address really is assigned to two, which is allowed for this reason.
    pub(super) fn happens(&self, reason: &'static str) {
        self.activity.borrow_mut().happens(reason, 1);
    }

    /// Adds the counts of checks and of allowed violations.
    pub(super) fn count(&self, activity: &mut Activity) {
        activity.join(&self.activity.borrow());
    }

    /// Assignments whose Node a leader has seen missing for the grace.
    pub(super) fn expired(&self) -> BTreeSet<AssignmentId> {
        self.expired.clone()
    }

    /// Why the address may be assigned to others.
    pub(super) fn released(&self, node: &Node, pod: &str, held: &Held) -> Option<&'static str> {
        if !node.is_known(pod) {
            return Some(NO_RECORD);
        }
        let unattributed = || self.unattributed.get(&(held.pool.clone(), node.name.clone(), held.addr)).copied();
        let waived = |id| self.waived.get(&id).or_else(|| self.waived_addresses.get(&(id, held.addr))).copied();
        held.assignment.map_or_else(unattributed, waived)
    }

    /// Why the pool may be deleted while the pod has the address.
    pub(super) fn gone(&self, records: &Records, node: &Node, pod: &str, held: &Held) -> Option<&'static str> {
        let unguarded = || self.is_unguarded(&held.pool).then_some("finalizer removed by hand");
        // To delete the pool destroys no record: the finalizer keeps it.
        let is_by_this = held.assignment.is_some_and(|id| records.is_lost_last(id));
        let lost = || (!is_by_this && is_destroyed(records, held)).then_some("record destroyed by hand");
        self.released(node, pod, held).or_else(unguarded).or_else(lost)
    }

    /// Why the address need not be recorded for the node.
    pub(super) fn unrecorded(&self, node: &Node, pod: &str, held: &Held, is_invalid: bool) -> Option<&'static str> {
        // While a spec is invalid, a wiped status is not repaired.
        let is_wiped = || held.assignment.is_some_and(|id| self.wiped.contains(&id));
        let wiped = || (is_invalid && is_wiped()).then_some("wiped while invalid");
        self.released(node, pod, held).or_else(wiped)
    }

    /// An admin wipes the pool's status. `records` are those from before.
    pub(super) fn wipe(&mut self, records: &Records, pool: &PoolKey) {
        self.wiped.extend(records.recorded().iter().filter(|it| it.pool == *pool).map(|it| it.id));
    }

    /// A backup is made. It does not record what was released before.
    pub(super) fn back_up(&mut self, records: &Records) {
        self.forced.retain(|id, _| records.recorded().iter().any(|it| it.id == *id));
    }

    /// Whether an admin removed the pool's finalizer, and it has none yet.
    pub(super) fn is_unguarded(&self, pool: &PoolKey) -> bool {
        self.unguarded.contains(pool)
    }

    /// An admin removes the pool's finalizer.
    pub(super) fn unguard(&mut self, pool: PoolKey) {
        self.unguarded.insert(pool);
    }

    /// An admin deletes the CRDs.
    pub(super) fn undefine(&mut self, nodes: &[Node]) {
        self.unreported.add_all(nodes, false);
    }

    /// A backup was restored: pools that had no finalizer then have none now.
    pub(super) fn restore(&mut self, server: &Server, nodes: &[Node]) {
        self.unreported.add_all(nodes, true);
        for (plural, kind) in POOL_KINDS {
            for object in server.list(plural).filter(|object| !is_guarded(object)) {
                self.unguarded.insert(PoolKey::new(kind, text(object, "/metadata/name")));
            }
        }
    }

    /// A Node has left, and its IPAMNode is gone or is now deleted by hand. No report can have its addresses any more: the records
    /// in statuses were destroyed before, and no IPAMNode is created for it.
    pub(super) fn leaves_unreported(&mut self, server: &Server, records: &Records, node: &Node) {
        if ["nodes", "ipamnodes"].iter().all(|plural| server.get(plural, &node.name).is_none()) {
            self.waive(records, node, |it| records.lost_by(it.id).is_some(), UNREPORTED);
        }
    }

    /// Waives the node's assignments that `which` accepts.
    fn waive(&mut self, records: &Records, node: &Node, which: impl Fn(&Assignment) -> bool, cause: &'static str) {
        let of_node = records.all().filter(|it| it.node == node.name && which(it));
        for it in of_node {
            let known = self.waived.entry(it.id).or_insert(cause);
            // A report ends what no record had, and not what an admin or the grace has released.
            if *known == UNREPORTED {
                *known = cause;
            }
        }
    }

    /// Waives the node's addresses in use of pools that `which` accepts, where the model knows no assignment.
    fn waive_unattributed(&mut self, node: &Node, which: impl Fn(&PoolKey) -> bool, cause: &'static str) {
        let held = node.held().map(|(_, held)| held).filter(|held| held.assignment.is_none() && which(&held.pool));
        for held in held {
            self.unattributed.entry((held.pool.clone(), node.name.clone(), held.addr)).or_insert(cause);
        }
    }

    /// Reads the current state, and the changes since the version `since`. `is_served` returns whether a pool must serve a node.
    pub(super) fn renew(
        &mut self,
        (server, records, nodes): (&Server, &Records, &[Node]),
        replicas: &[Option<Replica>],
        since: u64,
        (all_decided, clock): (bool, Clock),
        is_served: Serves<'_>,
    ) {
        // A leader that has not decided since the last annotation may still act on the previous one.
        if !all_decided {
            self.recorded_since.clear();
        }
        self.unreported.renew((server, nodes), since, (all_decided, clock.elapsed, DECIDED));
        if server.version() != since {
            self.read_pools((server, records, nodes), since, is_served);
            self.note_those_recorded_again(server, records, clock.elapsed);
            self.wiped.retain(|id| !records.recorded().iter().any(|it| it.id == *id));
        }
        self.end_those_recorded_again(nodes, clock.elapsed);
        self.end_those_reported((server, records, nodes), all_decided, clock.elapsed);
        self.unattributed.retain(|(pool, name, addr), _| {
            let is_it = |held: &Held| held.pool == *pool && held.addr == *addr && held.assignment.is_none();
            let mut there = nodes.iter().filter(|node| node.name == *name);
            there.any(|node| node.held().any(|(_, held)| is_it(held)))
        });
        self.note_gone(server, nodes, clock.elapsed);
        for replica in replicas.iter().flatten() {
            let gone = |node: &Node| self.gone.get(&node.name).copied();
            let expire: Vec<&Node> = nodes
                .iter()
                .filter(|node| replica.may_expire(&node.name, gone(node), self.clocks_set_by, clock))
                .collect();
            for node in expire {
                self.waive(records, node, |_| true, EXPIRED);
                self.expired.extend(records.all().filter(|it| it.node == node.name).map(|it| it.id));
                self.waive_unattributed(node, |_| true, EXPIRED);
            }
        }
    }

    fn note_gone(&mut self, server: &Server, nodes: &[Node], now: Duration) {
        for node in nodes {
            if server.get("nodes", &node.name).is_none() {
                self.gone.entry(node.name.clone()).or_insert(now);
            } else if self.gone.contains_key(&node.name) && !is_recorded_as_gone(server, &node.name) {
                self.gone.remove(&node.name);
            }
        }
    }

    /// Reads what admins have written on pools since: the nodes to force-release (for `*` the operator writes their names).
    fn read_pools(
        &mut self,
        (server, records, nodes): (&Server, &Records, &[Node]),
        since: u64,
        is_served: Serves<'_>,
    ) {
        for (plural, kind) in POOL_KINDS {
            let now = server.list(plural).map(|object| &***object);
            // The last state of a deleted pool has no meaning: its finalizer is gone, too.
            let events = server.since(plural, since).iter().filter(|event| event.change == Change::Applied);
            let events = events.map(|event| &**event.object);
            for object in events.chain(now) {
                let pool = PoolKey::new(kind, text(object, "/metadata/name"));
                if is_guarded(object) {
                    self.unguarded.remove(&pool);
                }
                let words = object["metadata"]["annotations"][FORCE_RELEASE].as_str().unwrap_or_default().split(',');
                let named: BTreeSet<String> =
                    words.filter(|name| !name.is_empty() && *name != FORCE_ALL).map(str::to_owned).collect();
                let before = self.named.insert(pool.clone(), named.clone()).unwrap_or_default();
                for node in nodes.iter().filter(|node| named.contains(&node.name) && !before.contains(&node.name)) {
                    // A name that comes while the report of its node is awaited ends that wait.
                    if is_served(object, &pool, &node.name) && !self.unreported.contains(&node.name) {
                        let of_node = records.all().filter(|it| it.node == node.name && it.pool == pool);
                        self.kept.insert((pool.clone(), node.name.clone()), of_node.map(|it| it.id).collect());
                    } else {
                        self.force(server, records, node, &pool);
                    }
                }
                self.kept.retain(|(of, node), _| *of != pool || named.contains(node));
            }
        }
        self.force_kept((server, records, nodes), is_served);
    }

    /// Waives the blocks of nodes whose names had no effect until now.
    fn force_kept(&mut self, (server, records, nodes): (&Server, &Records, &[Node]), is_served: Serves<'_>) {
        let is_served = |pool: &PoolKey, node: &str| {
            server.get(plural_of(pool), &pool.name).is_some_and(|object| is_served(object, pool, node))
        };
        let acting: Vec<_> = self.kept.extract_if(.., |(pool, node), _| !is_served(pool, node)).collect();
        for ((pool, name), before) in acting {
            for node in nodes.iter().filter(|node| node.name == name) {
                self.waive(records, node, |it| before.contains(&it.id), FORCED);
                self.force(server, records, node, &pool);
            }
        }
    }

    /// Waives the blocks that the node has of the pool at this moment. If the node's report was lost, too, the force-release also ends the
    /// wait for it, for its lost blocks of all pools. Nor does it wait for lost blocks of pools that do not exist.
    fn force(&mut self, server: &Server, records: &Records, node: &Node, pool: &PoolKey) {
        let is_gone = |of: &PoolKey| server.get(plural_of(of), &of.name).is_none();
        let is_awaited = self.unreported.contains(&node.name);
        let is_lost = |it: &Assignment| records.lost_by(it.id).is_some() && (is_awaited || is_gone(&it.pool));
        self.waive(records, node, |it| it.pool == *pool || is_lost(it), FORCED);
        self.waive_unattributed(node, |of| of == pool, FORCED);
        let blocks = records.recorded().iter().filter(|it| it.node == node.name && it.pool == *pool);
        self.forced.extend(blocks.map(|it| (it.id, it.clone())));
    }

    /// Waives what a restore records again and an admin had force-released after the backup: the agent may not know of
    /// that. `kept` is the last assignment that was made before the backup.
    pub(super) fn force_again(&mut self, records: &Records, kept: AssignmentId) {
        let forced: Vec<&Assignment> = self.forced.range(..=kept).map(|(_, it)| it).collect();
        let is_it = |it: &Assignment, of: &Assignment| (&it.pool, &it.node, it.range) == (&of.pool, &of.node, of.range);
        let is_forced = |it: &&Assignment| forced.iter().any(|of| is_it(it, of));
        let again: Vec<Assignment> = records.recorded().iter().filter(is_forced).cloned().collect();
        for it in again {
            self.waived.entry(it.id).or_insert(FORCED);
            self.forced.insert(it.id, it);
        }
    }

    /// Records which waived assignments are normal again: the annotation does not name the node, and status and IPAMNode
    /// have the block.
    fn note_those_recorded_again(&mut self, server: &Server, records: &Records, now: Duration) {
        let is_allocated = |it: &Assignment| {
            let object = server.get(plural_of(&it.pool), &it.pool.name);
            let allocations = object.and_then(|object| object["status"]["allocations"].as_array());
            let told = server.get("ipamnodes", &it.node).and_then(|object| object["spec"]["pools"].as_array());
            let is_told = |entry: &Value| pool_of_entry(entry) == it.pool && entry["state"] == "Active";
            allocations.is_some_and(|all| all.iter().any(|entry| entry["nodeName"] == *it.node))
                && told.is_some_and(|all| all.iter().any(is_told))
        };
        let named = &self.named;
        let is_over = |it: &Assignment| {
            !named.get(&it.pool).is_some_and(|nodes| nodes.contains(&it.node))
                && server.get("nodes", &it.node).is_some()
                && is_allocated(it)
        };
        let waived = records.recorded().iter().filter(|it| self.waived.contains_key(&it.id));
        let over: BTreeSet<AssignmentId> = waived.filter(|it| is_over(it)).map(|it| it.id).collect();
        self.recorded_since.retain(|id, _| over.contains(id));
        for id in over {
            self.recorded_since.entry(id).or_insert(now);
        }
    }

    /// Ends the waivers of assignments of which nothing was known, once the agent has reported all addresses in use and no earlier
    /// decision is under way. Addresses that are also assigned elsewhere by then are allowed until their pods end.
    fn end_those_reported(
        &mut self,
        (server, records, nodes): (&Server, &Records, &[Node]),
        all_decided: bool,
        now: Duration,
    ) {
        if !self.waived.values().any(|cause| *cause == UNREPORTED) {
            self.reported_since.clear();
            return;
        }
        let unknown = self.waived.iter().filter(|(_, cause)| **cause == UNREPORTED).map(|(id, _)| *id);
        let is_reported = |it: &Assignment| {
            let mut there = nodes.iter().filter(|node| node.name == it.node);
            server.get("ipamnodes", &it.node).is_some()
                && there.all(|node| node.has_agent() && has_reported(server, node))
        };
        let reported: Vec<AssignmentId> =
            unknown.filter(|id| all_decided && records.get(*id).is_some_and(is_reported)).collect();
        self.reported_since.retain(|id, _| reported.contains(id));
        for id in reported {
            if *self.reported_since.entry(id).or_insert(now) + DECIDED > now {
                continue;
            }
            let (Some(it), Some(cause)) = (records.get(id), self.waived.remove(&id)) else { continue };
            let there = nodes.iter().filter(|node| node.name == it.node).flat_map(Node::held).map(|(_, held)| held);
            let kept = there.filter(|held| held.assignment == Some(id) && is_elsewhere(records, nodes, &it.node, held));
            self.waived_addresses.extend(kept.map(|held| ((id, held.addr), cause)));
        }
    }

    /// Ends the waivers of assignments that are recorded again, once no earlier decision is under way. The pods that run
    /// then keep their addresses.
    fn end_those_recorded_again(&mut self, nodes: &[Node], now: Duration) {
        if self.waived.is_empty() && self.waived_addresses.is_empty() {
            return;
        }
        let is_over = |id: &AssignmentId| self.recorded_since.get(id).is_some_and(|since| *since + DECIDED <= now);
        let held: BTreeSet<(AssignmentId, IpAddr)> =
            nodes.iter().flat_map(Node::held).filter_map(|(_, held)| Some((held.assignment?, held.addr))).collect();
        self.waived_addresses.retain(|of, _| held.contains(of));
        let over: Vec<AssignmentId> = self.waived.keys().filter(|id| is_over(id)).copied().collect();
        for id in over {
            let Some(cause) = self.waived.remove(&id) else { continue };
            self.expired.remove(&id);
            let kept = held.iter().filter(|(of, _)| *of == id).map(|of| (*of, cause));
            self.waived_addresses.extend(kept);
            self.forced.remove(&id);
        }
    }
}

/// Whether an address of the node is also recorded for another node, or used by a pod there. The other one may have it from
/// another pool: a pool that is gone, or has moved, does not keep the address from the others.
pub(super) fn is_elsewhere(records: &Records, nodes: &[Node], node: &str, held: &Held) -> bool {
    let is_recorded = |it: &Assignment| it.node != node && it.range.contains(held.addr);
    let mut others = nodes.iter().filter(|it| it.name != node).flat_map(Node::held);
    records.recorded().iter().any(is_recorded) || others.any(|(_, other)| other.addr == held.addr)
}

/// Why a status may record the address for another node: a restore took back the record of this one.
pub(super) fn taken_back(records: &Records, held: &Held) -> Option<&'static str> {
    let lost = held.assignment.and_then(|id| records.lost_by(id)).filter(|cause| *cause == super::RESTORE);
    lost.map(|_| "a restore took the record back")
}

/// Why two pools may both have an address: the later of the two assignments was made while they could share.
pub(super) fn shared(records: &Records, pair: [(&PoolKey, Option<AssignmentId>); 2]) -> Option<&'static str> {
    let [(one, first), (other, second)] = pair;
    let (first, second) = (records.get(first?)?, records.get(second?)?);
    // The later of the two was recorded, or recorded again, while both pools might have the address.
    let knew = |it: &Assignment, than: &Assignment| it.shared_with.get(&than.pool).is_some_and(|at| *at > than.first);
    (one != other && (knew(first, second) || knew(second, first))).then_some("pools share addresses")
}

/// Whether an admin destroyed the records of the assignment. A wiped status does not count, since the IPAMNode is a copy.
pub(super) fn is_destroyed(records: &Records, held: &Held) -> bool {
    let cause = held.assignment.and_then(|id| records.lost_by(id));
    cause.is_some_and(|cause| cause != super::WIPE)
}

/// Whether the status of a pool records since when the Node is gone.
fn is_recorded_as_gone(server: &Server, node: &str) -> bool {
    let pools = POOL_KINDS.into_iter().flat_map(|(plural, _)| server.list(plural));
    let mut releasing = pools.flat_map(|pool| pool["status"]["releasing"].as_array().into_iter().flatten());
    releasing.any(|entry| entry["nodeName"] == *node && entry["nodeGoneSince"].is_string())
}

/// Whether the pool has the finalizer.
pub(super) fn is_guarded(pool: &Value) -> bool {
    pool["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|finalizer| finalizer == FINALIZER))
}

/// The key of a pool by its plural.
pub(super) fn key_of(plural: &str, name: &str) -> PoolKey {
    let kind = if plural == "ippools" { PoolKind::IpPool } else { PoolKind::CidrPool };
    PoolKey::new(kind, name)
}
