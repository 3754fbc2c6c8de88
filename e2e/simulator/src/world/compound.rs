//! Actions that consist of many calls: what a cluster does when nothing is slow, and what an admin does with the whole
//! cluster. The laws are checked after each call.

use std::sync::Arc;
use std::time::Duration;

use ipam_core::PoolKey;
use ipam_core::plan::Claim;
use ipam_reconciler::pool::FORCE_RELEASE;
use serde_json::{Value, json};

use super::{LONGEST_PASS, PutBack, QUIET, REPORTS_APART, World};
use crate::action::{Action, Disk, Fate};
use crate::admin;
use crate::agent::Node;
use crate::given::told_without_mark;
use crate::object::Object;
use crate::records::{AssignmentId, POOL_KINDS, pool_of_entry, range_of_entry};
use crate::replica::Replica;
use crate::request::Wish;
use crate::server::{Backup, NAMESPACE, Server, text};
use crate::size::{BACKUP_SECONDS, REPLICAS, node_name};
use crate::wire::lock;
use crate::{RESTORE, UNDEFINE, Unproven};

/// A backup is at least this old when it is restored. By the age of its Lease the next leader knows that it may be one,
/// however far the wall clocks of two replicas are apart.
const BACKUP_AGE: Duration = Duration::from_secs(BACKUP_SECONDS.unsigned_abs());

impl World {
    /// Time passes while leaders renew their Lease.
    pub(super) fn rest(&mut self, seconds: u8) {
        for _ in 0..seconds.div_ceil(2) {
            self.clock.elapsed += LONGEST_PASS;
            for replica in 0..REPLICAS {
                self.campaign_if_due(replica);
            }
        }
    }

    /// Restores a backup as the docs describe: the operator is stopped first, and nothing is on its way.
    pub(super) fn restore(&mut self) {
        let Some((backup, last, made)) = self.backup.take() else { return };
        for replica in 0..REPLICAS {
            self.kill(replica);
        }
        self.clock.elapsed = self.clock.elapsed.max(made + BACKUP_AGE);
        self.forget_orphans();
        self.restoring = Some(self.machines_in_use());
        // What a restore under a leader brought back is now restored by the steps of the docs.
        self.put_back = None;
        if lock(&self.server).differs_from(&backup) {
            self.activity.count("restores");
        }
        self.put_in_place(&backup, last);
        // The backup can be from the time between a restore under a leader and the next write of the Lease.
        self.is_unmarked = told_without_mark(&lock(&self.server)).is_some();
        for node in self.machines() {
            // The restored reports are from the time of the backup.
            self.nodes[usize::from(node)].lose_word();
            self.on_node(Action::AgentLoseWatch { node });
            self.on_node(Action::AgentHear { node, words: 64 });
        }
    }

    /// Restores a backup while replicas run, and their calls are on their way. Every machine registers again, and every
    /// pool is applied again, as by a program that keeps manifests applied.
    pub(super) fn restore_live(&mut self, breaks: bool) {
        let Some((backup, last, made)) = self.backup.take() else { return };
        while self.clock.elapsed < made + BACKUP_AGE {
            self.rest(2);
        }
        let now = self.clock.instant();
        let leads = |replica: &Replica| replica.leads_until().is_some_and(|until| until > now);
        if self.replicas.iter().flatten().any(leads) && lock(&self.server).differs_from(&backup) {
            self.activity.count("restores under a running leader");
        }
        let machines = self.machines_in_use();
        let pools = self.pools_as_applied();
        let uids = lock(&self.server).uids();
        // An answer of the server from before the restore comes before any list from after it.
        let clock = self.clock;
        self.replicas.iter_mut().flatten().for_each(|replica| replica.settle_all(clock));
        self.put_back = Some(PutBack { uids, is_unseen: true });
        self.put_in_place(&backup, last);
        self.is_unmarked = true;
        for node in &mut self.nodes {
            node.lose_report(&lock(&self.server));
        }
        for node in machines {
            admin::act(&mut lock(&self.server), Action::NodeJoins { node });
        }
        for (plural, object) in pools {
            drop(lock(&self.server).create(plural, object));
        }
        if breaks {
            self.break_watches();
        }
    }

    /// The machines that run pods or are registered.
    fn machines_in_use(&self) -> Vec<u8> {
        let is_used = |node: &u8| {
            let it = &self.nodes[usize::from(*node)];
            it.held().next().is_some() || lock(&self.server).get("nodes", &it.name).is_some()
        };
        self.machines().filter(is_used).collect()
    }

    /// The manifests of the pools, as a program that keeps them applied has them.
    fn pools_as_applied(&self) -> Vec<(&'static str, Value)> {
        let server = lock(&self.server);
        let of_kind = |plural| server.list(plural).map(move |pool| (plural, as_applied(pool)));
        ["ippools", "cidrpools"].into_iter().flat_map(of_kind).collect()
    }

    fn put_in_place(&mut self, backup: &Backup, last: AssignmentId) {
        // No API server runs during a restore, so what was on its way ends with it.
        self.forget_orphans();
        self.by_hand = Some(RESTORE);
        self.records.restore(last);
        self.note_unproven(backup);
        self.lost_at = self.clock.elapsed;
        lock(&self.server).restore(backup);
        self.allowed.restore(&lock(&self.server), &self.nodes);
        self.look();
        self.allowed.force_again(&self.records, last);
        self.by_hand = None;
    }

    /// Records the entries of the backup that no report in it proves, and that were used or revoked since it was made. A block of the backup
    /// can also have got its entry since then.
    fn note_unproven(&mut self, backup: &Backup) {
        let server = lock(&self.server);
        for object in backup.list("ipamnodes") {
            let node = text(object, "/metadata/name");
            let now = server.get("ipamnodes", &node);
            let is_in_force = |entry: &Value| now.is_some_and(|now| !reports(now, entry) && assigns(now, entry));
            let entries = entries(object).filter(|entry| entry["neverUsed"] == true && !reports(object, entry));
            let unproven = entries.filter(|entry| !is_in_force(entry)).filter_map(|entry| {
                Some(Unproven { pool: pool_of_entry(entry), node: node.clone(), range: range_of_entry(entry)? })
            });
            self.unproven.extend(unproven);
        }
        for (plural, kind) in POOL_KINDS {
            for pool in backup.list(plural) {
                let key = PoolKey::new(kind, text(pool, "/metadata/name"));
                let claims = pool.claims().iter().filter(|claim| is_entry_newer(backup, &server, &key, claim));
                self.unproven.extend(claims.map(|Claim { node, range, .. }| Unproven {
                    pool: key.clone(),
                    node: node.clone(),
                    range: *range,
                }));
            }
        }
    }

    /// Whether the object is from before a restore under a running leader.
    pub(super) fn is_of_before(&self, object: &Value) -> bool {
        let number = || object["metadata"]["uid"].as_str()?.strip_prefix("uid-")?.parse::<u64>().ok();
        self.put_back.as_ref().is_some_and(|put_back| number().is_some_and(|number| number <= put_back.uids))
    }

    /// Breaks every connection that a restore has cut.
    pub(crate) fn break_watches(&mut self) {
        let shared = self.server.clone();
        let server = lock(&shared);
        self.replicas.iter_mut().flatten().for_each(|replica| replica.expire_watches(&server));
        self.nodes.iter_mut().for_each(Node::lose_watch);
    }

    /// The CRDs are deleted and installed again. Every machine is registered, as the docs require.
    pub(super) fn undefine(&mut self, breaks: bool) {
        for node in self.machines() {
            let it = &self.nodes[usize::from(node)];
            let has_ipam_node = lock(&self.server).get("ipamnodes", &it.name).is_some();
            if has_ipam_node || it.pools() > 0 || it.is_down() || it.held().next().is_some() {
                admin::act(&mut lock(&self.server), Action::NodeJoins { node });
            }
            self.nodes[usize::from(node)].lose_word();
            self.records.lose_copies(&node_name(node));
        }
        self.allowed.undefine(&self.nodes);
        self.lost_at = self.clock.elapsed;
        self.by_hand = Some(UNDEFINE);
        lock(&self.server).sweep("ipamnodes");
        let mut has_records = false;
        for plural in ["ippools", "cidrpools"] {
            let pools = lock(&self.server).sweep(plural);
            has_records |= pools.iter().any(|pool| !pool.claims().is_empty());
            self.swept.extend(pools.iter().map(|pool| (plural, as_applied(pool))));
        }
        if has_records {
            self.activity.count("records lost: definitions deleted");
        }
        self.look();
        self.by_hand = None;
        for (node, replica) in self.machines().zip((0..REPLICAS).cycle()).filter(|_| breaks) {
            self.on_node(Action::AgentLoseWatch { node });
            for watch in 0..3 {
                self.on_replica(Action::LoseWatch { replica, watch });
            }
        }
    }

    /// The steps of the docs after a restore and before the operator starts: every machine is registered, and its agent runs.
    pub(super) fn rebuild(&mut self) {
        let Some(machines) = self.restoring.take() else { return };
        for node in machines {
            admin::act(&mut lock(&self.server), Action::NodeJoins { node });
        }
        for node in self.machines() {
            self.on_node(Action::Disk { node, is: Disk::Well });
            self.on_node(Action::AgentStart { node });
        }
    }

    pub(super) fn listen(&mut self, replica: u8) {
        for watch in 0..4 {
            self.on_replica(Action::Hear { replica, watch, words: 64 });
        }
    }

    pub(super) fn work(&mut self, replica: u8) {
        self.work_against(replica, Fate::Done);
    }

    /// Like `work`, but each of the calls meets the fate.
    pub(super) fn work_against(&mut self, replica: u8, fate: Fate) {
        self.campaign_if_due(replica);
        self.listen(replica);
        // A burst of events is over only after a quiet time.
        self.clock.elapsed += QUIET;
        self.decide_and_call(replica, fate);
    }

    /// A replica decides, and its calls are made and answered. Returns whether there were any.
    fn decide_and_call(&mut self, replica: u8, fate: Fate) -> bool {
        self.on_replica(Action::Decide { replica });
        // Calls may wait for a write of the Lease.
        let now = self.clock.elapsed;
        if self.awake(replica).is_some_and(|it| it.is_leading() && it.next_campaign() <= now) {
            self.campaign_if_due(replica);
            self.on_replica(Action::Decide { replica });
        }
        let calls = self.awake(replica).map_or(0, |it| it.calls());
        for _ in 0..calls {
            self.on_replica(Action::Call { replica, call: 0, fate });
            self.on_replica(Action::Answer { replica, answer: 0 });
        }
        calls > 0
    }

    pub(super) fn round(&mut self, replica: u8) {
        for _ in 0..2 {
            self.work(replica);
            for _ in 0..3 {
                self.clock.elapsed += QUIET;
                if !self.decide_and_call(replica, Fate::Done) {
                    break;
                }
            }
            for node in self.machines() {
                self.on_node(Action::AgentHear { node, words: 64 });
            }
            self.clock.elapsed += REPORTS_APART;
            for node in self.machines() {
                self.on_node(Action::Report { node, fate: Fate::Done });
            }
        }
        self.work(replica);
    }

    pub(super) fn crowd(&mut self) {
        for node in self.machines() {
            for pool in 0..self.nodes[usize::from(node)].pools() {
                self.add(node, pool, Wish::Any);
                self.look();
            }
        }
    }
}

/// A pool as in its manifest.
fn as_applied(pool: &Value) -> Value {
    let mut annotations = pool["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    annotations.remove(FORCE_RELEASE);
    let metadata = json!({"name": pool["metadata"]["name"], "namespace": NAMESPACE, "annotations": annotations});
    json!({"metadata": metadata, "spec": pool["spec"]})
}

fn entries(ipam_node: &Value) -> impl Iterator<Item = &Value> {
    ipam_node["spec"]["pools"].as_array().into_iter().flatten()
}

/// Whether the Active entry of this block was written after the backup.
fn is_entry_newer(backup: &Backup, server: &Server, key: &PoolKey, claim: &Claim) -> bool {
    let is_of_it = |entry: &Value| {
        let is_inside = range_of_entry(entry).is_some_and(|block| claim.range.contains_range(&block));
        entry["state"] == "Active" && pool_of_entry(entry) == *key && is_inside
    };
    let has_entry = |object: &Arc<Object>| entries(object).any(is_of_it);
    let mut before = backup.list("ipamnodes").filter(|object| text(object, "/metadata/name") == claim.node);
    !before.any(has_entry) && server.get("ipamnodes", &claim.node).is_some_and(has_entry)
}

/// Whether the agent has reported the grant of the entry.
fn reports(ipam_node: &Value, entry: &Value) -> bool {
    let mut reports = ipam_node["status"]["pools"].as_array().into_iter().flatten();
    reports.any(|report| report["grant"] == entry["grant"])
}

/// Whether the grant of the entry is there and not revoked.
fn assigns(ipam_node: &Value, entry: &Value) -> bool {
    entries(ipam_node).any(|it| it["grant"] == entry["grant"] && it["state"] != "Revoked")
}
