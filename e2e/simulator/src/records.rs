//! What the statuses of pools have recorded over time, as the model reads it from each change. It is which block was
//! assigned to which node, and what happened to that assignment. The same block assigned again is another assignment.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipam_core::plan::Claim;
use ipam_core::{AddrRange, PoolKey, PoolKind};
use ipam_reconciler::pool::FORCE_RELEASE;
use serde_json::Value;

use super::activity::Activity;
use super::admin::may_share;
use super::object::Object;
use super::server::{Change, Event, Server, text};

/// The plurals of pools, with their kinds.
pub(super) const POOL_KINDS: [(&str, PoolKind); 2] = [("ippools", PoolKind::IpPool), ("cidrpools", PoolKind::CidrPool)];

/// A status was wiped, and no IPAMNode repeats what it recorded, or its pool is gone.
const NO_COPY: &str = "a wiped status without a copy";

/// Identifies an assignment. A later assignment has a higher ID.
pub(super) type AssignmentId = u64;

/// A block that a status has assigned to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Assignment {
    pub(super) id: AssignmentId,
    /// Its number, or that of the assignment of a backup that a restore brought back as this one.
    pub(super) first: AssignmentId,
    pub(super) pool: PoolKey,
    pub(super) node: String,
    pub(super) range: AddrRange,
    /// The number of the record. It changes when the assignment is recorded again.
    recorded: AssignmentId,
    /// The pools that might have the same addresses when it was recorded or recorded again, with the number of that record.
    pub(super) shared_with: BTreeMap<PoolKey, AssignmentId>,
}

/// All assignments that matter.
#[derive(Default, Debug)]
pub(super) struct Records {
    last: AssignmentId,
    /// Assignments that statuses record now.
    recorded: Vec<Assignment>,
    /// Assignments whose record an admin destroyed and that no status records any more, with the cause.
    lost: Vec<(Assignment, &'static str)>,
    /// Those of them that were recorded by the pool that the last change has deleted.
    lost_last: BTreeSet<AssignmentId>,
    /// Node and grant → assignment.
    told: HashMap<(String, String), AssignmentId>,
    /// Nodes and grants that the last report names, and whether addresses are in use.
    reported_now: BTreeMap<(String, String), bool>,
    /// Nodes and grants that a report has named.
    reported: BTreeSet<(String, String)>,
    /// Grants that an agent need not know, since its store was lost: node and grant.
    forgotten: BTreeSet<(String, String)>,
    /// Nodes and grants that a report has named as ended.
    ended: BTreeSet<(String, String)>,
    /// Assignments whose Node a leader has seen missing for the grace.
    expired: BTreeSet<AssignmentId>,
    /// The last node of each block.
    holders: BTreeMap<(PoolKey, AddrRange), String>,
    /// Pools that may have the same addresses, as far as every leader knows.
    pub(super) sharing: BTreeSet<(PoolKey, PoolKey)>,
    /// The last assignment before the backup that was restored last.
    kept: AssignmentId,
    /// What statuses recorded at the last backup.
    backup: Vec<Assignment>,
    /// What only IPAMNodes recorded at the last backup, because a status had been wiped.
    wiped_in_backup: Vec<Assignment>,
    /// Node and grant of the last reports in which the grant is idle; empty after a restore.
    idle: BTreeSet<(String, String)>,
    /// The same, also of reports after a restore.
    idle_now: BTreeSet<(String, String)>,
    /// Assignments that an annotation has named to force-release.
    forced: BTreeSet<AssignmentId>,
    /// Assignments that were force-released or expired before a restore, or an entry of an earlier pool, brought them back.
    revoked: BTreeSet<AssignmentId>,
    /// Assignments that a status does not record any more, for no reason that the model knows.
    unexplained: Vec<(Assignment, &'static str)>,
    /// Node and block of what statuses have recorded, and of new grants, since this was read; without what a restore brought back.
    assigned: Vec<(String, AddrRange)>,
    was_restored: bool,
    /// The version up to which all changes were read.
    seen: u64,
}

impl Records {
    /// The last assignment so far.
    pub(super) const fn last(&self) -> AssignmentId {
        self.last
    }

    /// A backup is made.
    pub(super) fn back_up(&mut self) {
        self.backup.clone_from(&self.recorded);
        let wiped = self.lost.iter().filter(|(_, cause)| *cause == super::WIPE);
        self.wiped_in_backup = wiped.map(|(it, _)| it.clone()).collect();
    }

    /// A backup is restored that was made after this assignment.
    pub(super) fn restore(&mut self, kept: AssignmentId) {
        self.kept = kept;
        // What was assigned since the backup is not in it, whatever destroyed its record before.
        let since = self.lost.iter_mut().filter(|(it, _)| it.recorded > kept);
        since.for_each(|(_, cause)| *cause = super::RESTORE);
        // The restored reports are from before what the agents know.
        self.idle.clear();
        self.idle_now.clear();
        self.was_restored = true;
    }

    /// The IPAMNode of the node is deleted by hand. A record that only a status had lost has no copy any more.
    pub(super) fn lose_copies(&mut self, node: &str) {
        self.lose_for_good(|it| it.node == node);
    }

    fn lose_for_good(&mut self, which: impl Fn(&Assignment) -> bool) {
        let wiped = self.lost.iter_mut().filter(|(it, cause)| which(it) && *cause == super::WIPE);
        wiped.for_each(|(_, cause)| *cause = NO_COPY);
    }

    /// Sets the assignments whose Nodes a leader has seen missing for the grace.
    pub(super) fn note_expired(&mut self, expired: BTreeSet<AssignmentId>) {
        self.expired = expired;
    }

    /// Reads the changes. `by_hand` names the admin's action that made them, if it was one, or says that a call arrived late.
    pub(super) fn read(&mut self, server: &Server, by_hand: Option<&'static str>, activity: &mut Activity) {
        self.lost_last.clear();
        if server.news() <= self.seen {
            return;
        }
        let since = std::mem::replace(&mut self.seen, server.version());
        if server.version() - since >= super::server::RESTORE_BUMP {
            self.read_all(server, by_hand, activity);
            return;
        }
        for (plural, kind) in POOL_KINDS {
            for event in server.since(plural, since) {
                let key = PoolKey::new(kind, text(&event.object, "/metadata/name"));
                let is_there = event.change == Change::Applied;
                let claims = if is_there { event.object.claims() } else { &[] };
                if !is_there && by_hand.is_some_and(|cause| cause != super::LATE_CALL) {
                    self.lose_for_good(|it| it.pool == key);
                }
                let lost = self.lost.len();
                self.update(server, &key, claims, &event.object, by_hand, activity);
                if !is_there {
                    self.lost_last.extend(self.lost[lost..].iter().map(|(it, _)| it.id));
                }
            }
        }
        for event in server.since("ipamnodes", since) {
            self.read_ipam_node(event, activity);
        }
    }

    /// Compares every pool, after a restore.
    fn read_all(&mut self, server: &Server, by_hand: Option<&'static str>, activity: &mut Activity) {
        // Of the records that were lost by hand, the restore took back those of assignments made after the backup.
        let kept = self.kept;
        self.lost.iter_mut().filter(|(it, _)| it.id > kept).for_each(|(_, cause)| *cause = super::RESTORE);
        let mut keys: BTreeSet<PoolKey> = self.recorded.iter().map(|it| it.pool.clone()).collect();
        for (plural, kind) in POOL_KINDS {
            keys.extend(server.list(plural).map(|object| PoolKey::new(kind, text(object, "/metadata/name"))));
        }
        for key in keys {
            let plural = plural_of(&key);
            let nothing = std::sync::Arc::new(Object::new(Value::Null));
            let object = server.get(plural, &key.name).unwrap_or(&nothing);
            self.update(server, &key, object.claims(), object, by_hand, activity);
        }
        self.lose_again();
        for object in server.list("ipamnodes") {
            self.note_told(object, true);
        }
    }

    /// The restored IPAMNodes again record what only they recorded at the time of the backup.
    fn lose_again(&mut self) {
        for it in self.wiped_in_backup.clone() {
            let is_it = |of: &&Assignment| (&of.pool, &of.node, of.range) == (&it.pool, &it.node, it.range);
            if self.all().find(is_it).is_none() {
                self.last += 1;
                self.lost.push((Assignment { id: self.last, recorded: self.last, ..it }, super::WIPE));
            }
        }
    }

    fn update(
        &mut self,
        server: &Server,
        key: &PoolKey,
        claims: &[Claim],
        object: &Object,
        by_hand: Option<&'static str>,
        activity: &mut Activity,
    ) {
        let named = text(object, &format!("/metadata/annotations/{}", FORCE_RELEASE.replace('/', "~1")));
        let is_named = |it: &&Assignment| it.pool == *key && named.split(',').any(|name| name == it.node);
        let lost_or_recorded: Vec<AssignmentId> = self.all().filter(is_named).map(|it| it.id).collect();
        self.forced.extend(lost_or_recorded);
        let is_claimed = |it: &Assignment| claims.iter().any(|claim| claim.node == it.node && claim.range == it.range);
        let gone: Vec<Assignment> = self.recorded.extract_if(.., |it| it.pool == *key && !is_claimed(it)).collect();
        for it in gone {
            let by_hand = match by_hand {
                // The IPAMNode still has the block, so it outweighs what this call removes.
                Some(super::LATE_CALL) => is_in_force(server, &it).then_some(super::WIPE),
                by_hand => by_hand,
            };
            match by_hand {
                Some(cause) => {
                    let cause = if cause == super::WIPE && !is_copied(server, &it) { NO_COPY } else { cause };
                    activity.count("blocks lost from the records");
                    self.lost.push((it, cause));
                }
                None => match self.cause_of_release(server, &it) {
                    Ok(cause) => {
                        activity.count(cause);
                        activity.check("release-has-a-cause", 1);
                    }
                    Err(what) => self.unexplained.push((it, what)),
                },
            }
        }
        for claim in claims {
            let is_it = |it: &&Assignment| it.pool == *key && it.node == claim.node && it.range == claim.range;
            let known = self.recorded.iter().find(is_it).map(|it| it.id);
            let is_restored = by_hand == Some(super::RESTORE);
            match known {
                None => self.assign(server, key, claim, is_restored, activity),
                // It may have been assigned again after the backup.
                Some(id) if is_restored && self.backup.iter().find(is_it).is_some_and(|it| self.was_ended(it.id)) => {
                    self.revoked.insert(id);
                }
                Some(_) => {}
            }
        }
        // This change may have recorded others.
        self.forced.extend(self.recorded.iter().filter(is_named).map(|it| it.id));
    }

    fn assign(&mut self, server: &Server, key: &PoolKey, claim: &Claim, is_restored: bool, activity: &mut Activity) {
        if !is_restored {
            self.assigned.push((claim.node.clone(), claim.range));
        }
        let is_it = |it: &Assignment| it.pool == *key && it.node == claim.node && it.range == claim.range;
        self.last += 1;
        let (last, pairs) = (self.last, self.sharing.iter());
        let shared_with = pairs.filter_map(|(one, other)| match key {
            key if key == one => Some((other.clone(), last)),
            key if key == other => Some((one.clone(), last)),
            _ => None,
        });
        let shared_with: BTreeMap<PoolKey, AssignmentId> = shared_with.collect();
        if let Some(place) = self.lost.iter().rposition(|(it, _)| is_it(it)) {
            activity.count("blocks recorded again");
            let (mut again, _) = self.lost.remove(place);
            again.recorded = last;
            again.shared_with.extend(shared_with);
            self.recorded.push(again);
            return;
        }
        activity.count("blocks assigned");
        let mut overlapping =
            self.holders.iter().filter(|((pool, range), _)| pool == key && range.overlaps(&claim.range));
        if overlapping.any(|(_, node)| *node != claim.node) {
            activity.count("blocks reassigned");
        }
        self.holders.retain(|(pool, range), _| pool != key || !range.overlaps(&claim.range));
        self.holders.insert((key.clone(), claim.range), claim.node.clone());
        let mut assigned = Assignment {
            id: last,
            first: last,
            pool: key.clone(),
            node: claim.node.clone(),
            range: claim.range,
            recorded: last,
            shared_with,
        };
        if let Some(earlier) = self.backup.iter().find(|it| is_restored && is_it(it)) {
            // At that time it may have shared its addresses.
            assigned.first = earlier.first;
            assigned.shared_with.extend(earlier.shared_with.clone());
            if self.was_ended(earlier.id) {
                self.revoked.insert(last);
            }
        }
        // The pool was deleted and created again, and the entry is still to go.
        let grants: Vec<String> = entries(server, &assigned).map(|entry| text(entry, "/grant")).collect();
        let mut earlier = grants.iter().filter_map(|grant| self.told(&assigned.node, grant));
        if earlier.any(|id| self.was_ended(id)) {
            self.revoked.insert(last);
        }
        self.recorded.push(assigned);
    }

    /// Whether an admin or the grace has ended the assignment.
    fn was_ended(&self, id: AssignmentId) -> bool {
        [&self.forced, &self.revoked, &self.expired].iter().any(|all| all.contains(&id))
    }

    /// Why the block is released. An error is what the model knows about its node instead.
    fn cause_of_release(&self, server: &Server, it: &Assignment) -> Result<&'static str, &'static str> {
        let is_there = server.get("nodes", &it.node).is_some();
        let grants: Vec<_> = self.told.iter().filter(|(_, told)| **told == it.id).map(|(grant, _)| grant).collect();
        let has_ended = |grant: &&(String, String)| {
            self.ended.contains(*grant) && !self.reported_now.get(*grant).is_some_and(|is_used| *is_used)
        };
        let is_idle = |grant: &&(String, String)| self.idle_now.contains(*grant);
        let is_over = |grant| has_ended(grant) || is_idle(grant) || !self.reported_now.contains_key(*grant);
        if self.forced.contains(&it.id) && !is_in_force(server, it) {
            Ok("blocks released: force-release")
        } else if self.revoked.contains(&it.id) && !is_in_force(server, it) {
            Ok("blocks released: revoked before")
        } else if self.expired.contains(&it.id) {
            Ok("blocks released: grace")
        } else if self.was_restored && has_another_block(server, it) {
            Ok("blocks released: a restored IPAMNode has another block")
        } else if !grants.iter().all(is_over) {
            Err(if is_there { "its Node is there" } else { "its Node is gone" })
        } else if grants.iter().any(has_ended) {
            Ok("blocks released: report")
        } else if grants.iter().any(is_idle) {
            Ok("blocks released: idle")
        } else if !grants.is_empty() {
            Ok("blocks released: not in the last report")
        } else if is_there {
            Ok("blocks released: never in an IPAMNode, Node there")
        } else {
            Ok("blocks released: never in an IPAMNode, Node gone")
        }
    }

    /// Takes node and block of what statuses have recorded, and of new grants, since this was read.
    pub(super) fn take_assigned(&mut self) -> Vec<(String, AddrRange)> {
        std::mem::take(&mut self.assigned)
    }

    /// Takes the assignments that statuses do not record any more for no reason that the model knows.
    pub(super) fn take_unexplained(&mut self) -> Vec<(Assignment, &'static str)> {
        std::mem::take(&mut self.unexplained)
    }

    fn read_ipam_node(&mut self, event: &Event, activity: &mut Activity) {
        if event.change == Change::Deleted {
            return;
        }
        let object = &event.object;
        self.note_told(object, false);
        self.note_grants(object);
        if object["status"]["observedGeneration"].is_i64() {
            activity.count("reports seen");
        }
    }

    fn note_grants(&mut self, object: &Object) {
        let node = text(object, "/metadata/name");
        self.reported_now.retain(|(of, _), _| *of != node);
        for report in object["status"]["pools"].as_array().into_iter().flatten() {
            let Some(grant) = report["grant"].as_str() else { continue };
            let it = (node.clone(), grant.to_owned());
            self.reported.insert(it.clone());
            self.reported_now.insert(it.clone(), report["used"] != 0);
            for (idle, counts) in [(&mut self.idle_now, true), (&mut self.idle, !self.was_restored)] {
                if report["idle"] == true && counts {
                    idle.insert(it.clone());
                } else {
                    idle.remove(&it);
                }
            }
            if report["ended"] == true {
                self.ended.insert(it);
            }
        }
    }

    /// Whether a report of the node has named the grant.
    pub(super) fn is_reported(&self, node: &str, grant: &str) -> bool {
        self.reported.contains(&(node.to_owned(), grant.to_owned()))
    }

    /// The store of the node's agent was lost. It need not know what became of the grants that its node has had.
    pub(super) fn forget_grants(&mut self, node: &str) {
        let of_node = self.told.keys().chain(&self.reported).filter(|(it, _)| it == node);
        self.forgotten.extend(of_node.cloned().collect::<Vec<_>>());
    }

    /// Why the agent of the node may allocate nothing from a grant.
    pub(super) fn forbids(&self, node: &str, grant: &str) -> Option<&'static str> {
        let is_unreported = !self.is_reported(node, grant);
        let it = (node.to_owned(), grant.to_owned());
        let is_forgotten = self.forgotten.contains(&it);
        let has_ended = !is_forgotten && self.ended.contains(&it);
        let is_idle = !is_forgotten && self.idle.contains(&it);
        let why = is_unreported.then_some("no report has named it");
        let why = why.or_else(|| has_ended.then_some("it was reported as ended"));
        why.or_else(|| is_idle.then_some("the last report has it as idle"))
    }

    fn note_told(&mut self, object: &Object, is_restored: bool) {
        let node = text(object, "/metadata/name");
        let entries = object["spec"]["pools"].as_array().into_iter().flatten();
        for entry in entries.clone().filter(|entry| !is_restored && entry["state"] == "Active") {
            let is_new = self.told(&node, &text(entry, "/grant")).is_none();
            if let Some(range) = range_of_entry(entry).filter(|_| is_new) {
                self.assigned.push((node.clone(), range));
            }
        }
        let told = entries.filter_map(|entry| {
            let id = self.find(&pool_of_entry(entry), &node, range_of_entry(entry))?;
            Some(((node.clone(), text(entry, "/grant")), id))
        });
        let told: Vec<_> = told.collect();
        self.told.extend(told);
    }

    /// The recorded assignment of this block to this node, or else the last one that was lost.
    fn find(&self, pool: &PoolKey, node: &str, range: Option<AddrRange>) -> Option<AssignmentId> {
        let range = range?;
        let is_it = |it: &&Assignment| it.pool == *pool && it.node == node && it.range.contains_range(&range);
        let lost = || self.lost.iter().map(|(it, _)| it).rfind(is_it);
        self.recorded.iter().find(is_it).or_else(lost).map(|it| it.id)
    }

    /// The assignment from which the node's agent allocates by this grant.
    pub(super) fn told(&self, node: &str, grant: &str) -> Option<AssignmentId> {
        self.told.get(&(node.to_owned(), grant.to_owned())).copied()
    }

    /// Whether a status would record the addresses for the node if no admin had destroyed the record, and none records them for another node.
    pub(super) fn knows(&self, pool: &PoolKey, node: &str, range: &AddrRange) -> bool {
        let is_of_another = |it: &Assignment| it.pool == *pool && it.node != node && it.range.overlaps(range);
        self.find(pool, node, Some(*range)).is_some() && !self.recorded.iter().any(is_of_another)
    }

    /// Whether a restore took back the record of the addresses for the node.
    pub(super) fn was_taken_back(&self, pool: &PoolKey, node: &str, range: &AddrRange) -> bool {
        let is_it = |it: &Assignment| it.pool == *pool && it.node == node && it.range.contains_range(range);
        self.lost.iter().any(|(it, cause)| is_it(it) && *cause == super::RESTORE)
    }

    /// Whether a status records the addresses for the node.
    pub(super) fn has(&self, pool: &PoolKey, node: &str, range: &AddrRange) -> bool {
        self.recorded.iter().any(|it| it.pool == *pool && it.node == node && it.range.contains_range(range))
    }

    /// All recorded assignments.
    pub(super) fn recorded(&self) -> &[Assignment] {
        &self.recorded
    }

    /// All that statuses record, or would if no admin had destroyed the record.
    pub(super) fn all(&self) -> impl Iterator<Item = &Assignment> {
        self.recorded.iter().chain(self.lost.iter().map(|(it, _)| it))
    }

    /// All whose record an admin destroyed, and that no status records again.
    pub(super) fn lost(&self) -> impl Iterator<Item = &Assignment> {
        self.lost.iter().map(|(it, _)| it)
    }

    /// How an admin destroyed the record of the assignment, if no status records it again.
    pub(super) fn lost_by(&self, id: AssignmentId) -> Option<&'static str> {
        self.lost.iter().find(|(it, _)| it.id == id).map(|(_, cause)| *cause)
    }

    /// Whether the pool still recorded the assignment when the last change deleted it.
    pub(super) fn is_lost_last(&self, id: AssignmentId) -> bool {
        self.lost_last.contains(&id)
    }

    /// The assignment, if a status records it or an admin destroyed its record.
    pub(super) fn get(&self, id: AssignmentId) -> Option<&Assignment> {
        let lost = self.lost.iter().map(|(it, _)| it);
        self.recorded.iter().chain(lost).find(|it| it.id == id)
    }

    /// Records which pools may share addresses, by the objects on the server. A pair that may not any more stays recorded
    /// until all leaders know. When two pools begin to share, so do the blocks that they have assigned.
    pub(super) fn note_sharing(&mut self, server: &Server, all_leaders_know: bool) {
        let mut pools = Vec::new();
        for (plural, kind) in POOL_KINDS {
            let may = server.list(plural).filter(|object| may_share(object));
            pools.extend(may.map(|object| PoolKey::new(kind, text(object, "/metadata/name"))));
        }
        let before = self.sharing.clone();
        if all_leaders_know {
            self.sharing.clear();
        }
        for (place, one) in pools.iter().enumerate() {
            self.sharing.extend(pools[place + 1..].iter().map(|other| (one.clone(), other.clone())));
        }
        for (one, other) in self.sharing.difference(&before) {
            self.last += 1;
            for it in &mut self.recorded {
                let with = [(one, other), (other, one)].into_iter().find(|(pool, _)| it.pool == **pool);
                it.shared_with.extend(with.map(|(_, with)| (with.clone(), self.last)));
            }
        }
    }
}

/// Whether the node's IPAMNode has another block of the pool, which outweighs this one in the status.
fn has_another_block(server: &Server, it: &Assignment) -> bool {
    let ipam_node = server.get("ipamnodes", &it.node);
    let mut all = ipam_node.and_then(|object| object["spec"]["pools"].as_array()).into_iter().flatten();
    all.any(|entry| pool_of_entry(entry) == it.pool && block_of_entry(entry).is_some_and(|block| block != it.range))
}

/// Whether the node's IPAMNode repeats the assignment.
fn is_copied(server: &Server, it: &Assignment) -> bool {
    entries(server, it).next().is_some()
}

/// Whether the node's IPAMNode has the block, and does not revoke it.
fn is_in_force(server: &Server, it: &Assignment) -> bool {
    entries(server, it).any(|entry| entry["state"] != "Revoked")
}

/// The entries of the node's IPAMNode that repeat the assignment.
fn entries<'a>(server: &'a Server, it: &Assignment) -> impl Iterator<Item = &'a Value> {
    let all = server.get("ipamnodes", &it.node).and_then(|object| object["spec"]["pools"].as_array());
    let is_inside = |entry: &Value| range_of_entry(entry).is_some_and(|range| it.range.contains_range(&range));
    all.into_iter().flatten().filter(move |entry| pool_of_entry(entry) == it.pool && is_inside(entry))
}

/// The plural of a pool.
pub(super) fn plural_of(key: &PoolKey) -> &'static str {
    if key.kind == PoolKind::IpPool { "ippools" } else { "cidrpools" }
}

/// The pool of an entry of an IPAMNode.
pub(super) fn pool_of_entry(entry: &Value) -> PoolKey {
    let kind = if entry["poolType"] == "IPPool" { PoolKind::IpPool } else { PoolKind::CidrPool };
    PoolKey::new(kind, text(entry, "/name"))
}

/// The block of an entry of an IPAMNode, as a status records it: in a CIDRPool the whole prefix.
pub(super) fn block_of_entry(entry: &Value) -> Option<AddrRange> {
    if pool_of_entry(entry).kind == PoolKind::IpPool {
        return range_of_entry(entry);
    }
    Some(ipam_core::Cidr::parse(entry["subnet"].as_str()?).ok()?.0.range())
}

/// The addresses in use, by a report.
pub(crate) fn reported(report: &Value) -> Vec<AddrRange> {
    if report["used"].as_i64().is_none_or(|used| used <= 0) {
        return Vec::new();
    }
    let runs = report["held"].as_array().cloned().unwrap_or_default();
    let runs: Vec<AddrRange> = runs.iter().filter_map(range_of_entry).collect();
    if runs.is_empty() { range_of_entry(report).into_iter().collect() } else { runs }
}

/// The addresses of an entry of an IPAMNode.
pub(super) fn range_of_entry(entry: &Value) -> Option<AddrRange> {
    AddrRange::new(entry["startIP"].as_str()?.parse().ok()?, entry["endIP"].as_str()?.parse().ok()?)
}
