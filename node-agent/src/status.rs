//! Reports to `IPAMNode.status`: what is held of each block, and whether the agent is well.
//!
//! Decides when a report is worth a write. The agent is the only writer of this status, and writes it whole: also when the
//! API server shows another report than the last one written, because it was restored from a backup or somebody edited it.
//! A report replaces one version of one object, and no other. The answer to it confirms grants: only a new block waits for a
//! report. Without the API server the agent tries again.

mod idle;
mod reporter;
mod reports;

use ipam_core::ledger::{GrantStep, Holding};
use ipam_core::{AddrRange, GrantId, PoolKey};
use ipam_crds::{AddressRange, BlockState, BlockUse, IPAMNode, IPAMNodeStatus, LedgerPosition, NodeBlock};
use ipam_node_store::Position;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::allocator::Holdings;
use crate::identity::Identity;
use crate::problem::DAMAGED;
use crate::standing::Standing;
use crate::text::shortened;
use crate::watch::InForce;
pub use reporter::Reporter;
pub use reports::{Next, Outcome, Reports, UNREACHED, WRITE_TIMEOUT, Write};

/// Longest condition message; an object has no room for any number of problems.
pub(crate) const MESSAGE: usize = 1024;
const READY: &str = "Ready";
const SERVING: &str = "Serving";

/// What a report says, apart from times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The object that it is about.
    pub uid: String,
    /// The generation in force, or the last one that the disk knows.
    pub generation: Option<i64>,
    /// The operator's request that this report answers.
    pub request: Option<String>,
    /// The agent's version.
    pub version: String,
    /// Use of each block, by poolType and name; also of pools of which the node only holds addresses.
    pub pools: Vec<BlockUse>,
    /// How far the journal had come. That it went on is no news by itself.
    pub ledger: LedgerPosition,
    /// The store, the machine and the boot.
    pub identity: Identity,
    /// Reason and message of the Ready condition.
    pub ready: (String, String),
    /// Grants that the answer to this report can confirm. They are no part of the status.
    pub unconfirmed: Vec<(PoolKey, GrantId)>,
}

/// How soon a report should be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// Nothing is new.
    No,
    /// Only counts and addresses moved.
    Later,
    /// The operator may wait for this: another spec, range or condition, or a block that became empty or used.
    Soon,
    /// Pods may wait for this: a grant is to be confirmed.
    Now,
}

impl Report {
    /// The report on what is in force; `None` while the object does not exist, which nobody can report to.
    pub fn new(in_force: &InForce, holdings: &Holdings) -> Option<Self> {
        in_force.spec.generation?;
        let recorded = holdings.pools.clone();
        let held = match &in_force.lost {
            Some(lost) => lost.join(recorded),
            None => recorded,
        };
        let mut pools: Vec<_> = held.iter().map(block_use).collect();
        pools.sort_by(|a, b| (a.pool_type, &a.name).cmp(&(b.pool_type, &b.name)));
        let problems: Vec<_> = holdings.full.iter().chain(&in_force.problems).collect();
        let ready = match &problems[..] {
            [] => (SERVING.to_owned(), "all blocks of this node are served".to_owned()),
            [first, ..] => {
                let sentences: Vec<_> = problems.iter().map(|problem| problem.sentence.as_str()).collect();
                (first.reason.to_owned(), shortened(sentences.join("; "), MESSAGE))
            }
        };
        let (uid, version) = (in_force.spec.uid.clone(), env!("CARGO_PKG_VERSION").to_owned());
        let (generation, ledger) = (in_force.saved, position(holdings.position));
        // A request is answered once the disk has the spec that it came with: a restart must not go by an earlier one.
        let request = in_force.spec.report_request.clone().filter(|_| in_force.saved == in_force.spec.generation);
        let unconfirmed = holdings.pools.iter().filter_map(unconfirmed).collect();
        let identity = in_force.identity.clone();
        let report = Self { uid, generation, request, version, pools, ledger, identity, ready, unconfirmed };
        if holdings.full.as_ref().is_some_and(|problem| problem.reason == DAMAGED) {
            return Some(report.of_damaged_journal(in_force.standing.as_ref()?));
        }
        Some(report)
    }

    /// What an agent with a damaged journal reports: the addresses in use are those of its last report, and only the condition is new.
    fn of_damaged_journal(self, standing: &Standing) -> Self {
        let Self { uid, version, ready, .. } = self;
        Self { uid, version, ready, ..Self::read(standing) }
    }

    /// The report that the API server shows.
    pub fn read(standing: &Standing) -> Self {
        let status = &standing.status;
        let ready = ready_condition(status).map(|ready| (ready.reason.clone(), ready.message.clone()));
        Self {
            uid: standing.uid.clone(),
            generation: status.observed_generation,
            request: status.report_request.clone(),
            version: status.agent_version.clone().unwrap_or_default(),
            pools: status.pools.clone(),
            ledger: status.ledger.unwrap_or_default(),
            identity: standing.identity(),
            ready: ready.unwrap_or_default(),
            unconfirmed: Vec::new(),
        }
    }

    /// How soon this should be written when `last` was written last.
    pub fn urgency(&self, last: Option<&Self>) -> Urgency {
        if !self.unconfirmed.is_empty() {
            return Urgency::Now;
        }
        let Some(last) = last else { return Urgency::Soon };
        let without_counts = |pool: &BlockUse| BlockUse { used: 0, held: Vec::new(), ..pool.clone() };
        let same_pools = self.pools.len() == last.pools.len()
            && self.pools.iter().zip(&last.pools).all(|(a, b)| {
                let turned = (a.used == 0) != (b.used == 0);
                !turned && without_counts(a) == without_counts(b)
            });
        let rest = |report: &Self| {
            let Self { uid, generation, request, version, identity, ready, .. } = report.clone();
            (uid, generation, request, version, identity, ready)
        };
        if !same_pools || rest(self) != rest(last) {
            Urgency::Soon
        } else if self.pools == last.pools {
            Urgency::No
        } else {
            Urgency::Later
        }
    }

    /// The status to write. The transition time moves only when Ready turns: `before` is the last Ready condition.
    pub fn status(&self, before: Option<&Condition>, now: jiff::Timestamp) -> IPAMNodeStatus {
        let (reason, message) = self.ready.clone();
        let status = if reason == SERVING { "True" } else { "False" };
        let since = before.filter(|before| before.status == status).map(|before| before.last_transition_time.clone());
        let condition = Condition {
            type_: READY.to_owned(),
            status: status.to_owned(),
            reason,
            message,
            observed_generation: self.generation,
            last_transition_time: since.unwrap_or(Time(now)),
        };
        let Identity { store: store_id, machine: system_uuid, boot: boot_id } = self.identity.clone();
        IPAMNodeStatus {
            store_id,
            system_uuid,
            boot_id,
            observed_generation: self.generation,
            report_request: self.request.clone(),
            agent_version: Some(self.version.clone()),
            pools: self.pools.clone(),
            ledger: Some(self.ledger),
            conditions: vec![condition],
        }
    }
}

fn ready_condition(status: &IPAMNodeStatus) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.type_ == READY)
}

fn block_use(holding: &Holding) -> BlockUse {
    let PoolKey { kind, name } = &holding.key;
    let run = |run: &AddrRange| AddressRange { start_ip: run.first().to_string(), end_ip: run.last().to_string() };
    BlockUse {
        name: name.clone(),
        pool_type: (*kind).into(),
        start_ip: holding.range.first().to_string(),
        end_ip: holding.range.last().to_string(),
        grant: holding.grant.map(|grant| grant.id.to_string()),
        ended: holding.grant.is_some_and(|grant| grant.step == GrantStep::Ended),
        idle: holding.used == 0 && holding.grant.is_some_and(|grant| grant.step == GrantStep::Idle),
        used: i64::try_from(holding.used).unwrap_or(i64::MAX),
        capacity: i64::try_from(holding.capacity).unwrap_or(i64::MAX),
        held: holding.runs.iter().map(run).collect(),
    }
}

/// The grant of the pool, if it waits for its confirmation.
fn unconfirmed(holding: &Holding) -> Option<(PoolKey, GrantId)> {
    let grant = holding.grant.filter(|grant| grant.step == GrantStep::Seen)?;
    Some((holding.key.clone(), grant.id))
}

/// The grants among `reported` that `object`, the answer to a report to the object with this `uid`, confirms: those that its
/// spec still has. A revoked entry counts as absent.
pub fn confirmed(reported: &[(PoolKey, GrantId)], uid: &str, object: &IPAMNode) -> Vec<(PoolKey, GrantId)> {
    let has = |(pool, id): &&(PoolKey, GrantId)| {
        let is_it = |block: &NodeBlock| {
            let is_of_pool = block.name == pool.name && pool.kind == block.pool_type.into();
            is_of_pool && block.state != BlockState::Revoked && block.grant.parse() == Ok(*id)
        };
        object.spec.pools.iter().any(is_it)
    };
    let is_same = object.metadata.uid.as_deref() == Some(uid);
    reported.iter().filter(|_| is_same).filter(has).cloned().collect()
}

fn position(position: Position) -> LedgerPosition {
    let number = |number| i64::try_from(number).unwrap_or(i64::MAX);
    LedgerPosition { epoch: number(position.epoch), sequence: number(position.sequence) }
}

/// The JSON patch that replaces the status of the object with this uid in this version, and of no other. A report on one object
/// is none on its successor, and a report that arrives late must not replace a later one. For another version the API server
/// answers with the code 409, and for another object with 422.
pub fn status_patch(uid: &str, resource_version: &str, status: &IPAMNodeStatus) -> serde_json::Value {
    serde_json::json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version},
        {"op": "add", "path": "/status", "value": status},
    ])
}

#[cfg(test)]
pub(crate) mod tests {
    use ipam_core::PoolKind;
    use ipam_crds::{IPAMNodeSpec, PoolType};

    use super::*;
    use crate::problem::Problem;
    use crate::spec::NodeSpec;

    fn range(first: &str, last: &str) -> AddrRange {
        AddrRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap()
    }

    pub(super) fn holdings(used: u64, sequence: u64) -> Holdings {
        let key = PoolKey::new(PoolKind::IpPool, "blue");
        let runs = (used > 0).then(|| range("10.0.0.1", &format!("10.0.0.{used}")));
        let range = range("10.0.0.1", "10.0.0.4");
        let holding = Holding { key, range, used, capacity: u128::MAX, runs: runs.into_iter().collect(), grant: None };
        Holdings { pools: vec![holding], position: Position { epoch: 3, sequence }, full: None }
    }

    pub(super) fn in_force(problems: Vec<Problem>) -> InForce {
        let spec = NodeSpec { uid: "u".into(), generation: Some(2), ..NodeSpec::default() };
        InForce { spec, saved: Some(2), problems, ..InForce::default() }
    }

    pub(super) fn report(used: u64) -> Report {
        Report::new(&in_force(Vec::new()), &holdings(used, 7)).unwrap()
    }

    fn troubled() -> Report {
        let problems = vec![Problem { reason: "Offline", sentence: "ä".repeat(MESSAGE) }];
        Report::new(&in_force(problems), &holdings(1, 7)).unwrap()
    }

    #[test]
    fn counts_alone_can_wait_and_a_block_that_turns_empty_or_used_cannot() {
        assert_eq!(report(1).urgency(None), Urgency::Soon);
        for (before, after, urgency) in
            [(1, 1, Urgency::No), (1, 2, Urgency::Later), (0, 1, Urgency::Soon), (1, 0, Urgency::Soon)]
        {
            assert_eq!(report(after).urgency(Some(&report(before))), urgency, "{before} to {after}");
        }
        assert_eq!(Report { generation: Some(3), ..report(1) }.urgency(Some(&report(1))), Urgency::Soon);
        assert_eq!(Report { uid: "v".into(), ..report(1) }.urgency(Some(&report(1))), Urgency::Soon);
        assert_eq!(troubled().urgency(Some(&report(1))), Urgency::Soon);
        assert_eq!(Report { version: "0".into(), ..report(1) }.urgency(Some(&report(1))), Urgency::Soon);
    }

    #[test]
    fn other_addresses_are_news_and_a_journal_that_went_on_is_none() {
        let mut later = report(1);
        later.ledger.sequence += 1;
        assert_eq!(later.urgency(Some(&report(1))), Urgency::No);
        later.pools[0].held[0] = AddressRange { start_ip: "10.0.0.2".into(), end_ip: "10.0.0.2".into() };
        assert_eq!(later.urgency(Some(&report(1))), Urgency::Later);
    }

    #[test]
    fn what_the_api_server_shows_of_a_report_is_read_as_that_report() {
        for report in [report(0), report(3), troubled()] {
            let status = report.status(None, jiff::Timestamp::now());
            let text = serde_json::to_string(&status).unwrap();
            let status = serde_json::from_str(&text).unwrap();
            let standing = Standing { uid: "u".into(), status, ..Standing::default() };
            assert_eq!(Report::read(&standing), report);
        }
        assert_eq!(report(1).urgency(Some(&Report::read(&Standing::default()))), Urgency::Soon);
    }

    #[test]
    fn a_report_is_about_no_later_generation_than_the_disk_knows() {
        for saved in [None, Some(1)] {
            let unsaved = InForce { saved, ..in_force(Vec::new()) };
            let report = Report::new(&unsaved, &holdings(0, 7)).unwrap();
            assert_eq!(report.status(None, jiff::Timestamp::now()).observed_generation, saved);
        }
    }

    #[test]
    fn a_request_is_answered_at_once_but_not_before_the_disk_has_it() {
        let mut requested = in_force(Vec::new());
        requested.spec.report_request = Some("0000000000000001".into());
        let answer = Report::new(&requested, &holdings(1, 7)).unwrap();
        assert_eq!(answer.status(None, jiff::Timestamp::now()).report_request.as_deref(), Some("0000000000000001"));
        assert_eq!(answer.urgency(Some(&report(1))), Urgency::Soon);
        let unsaved = Report::new(&InForce { saved: Some(1), ..requested }, &holdings(1, 7)).unwrap();
        assert_eq!(unsaved.status(None, jiff::Timestamp::now()).report_request, None);
    }

    #[test]
    fn a_full_disk_is_the_first_problem_and_is_reported_soon() {
        let full = Holdings {
            full: Some(Problem { reason: "DiskFull", sentence: "no space left in /x".into() }),
            ..holdings(1, 7)
        };
        let problems = vec![Problem { reason: "Offline", sentence: "away".into() }];
        let report = |problems| Report::new(&in_force(problems), &full).unwrap();
        let (reason, message) = report(problems).ready;
        assert_eq!(reason, "DiskFull");
        assert!(message.contains("no space left in /x") && message.ends_with("; away"), "{message}");
        assert_eq!(super::tests::report(1).urgency(Some(&report(Vec::new()))), Urgency::Soon);
    }

    #[test]
    fn a_damaged_journal_changes_only_the_condition_of_the_report() {
        let damaged = Problem { reason: DAMAGED, sentence: "record 2 is unreadable".into() };
        let damaged = Holdings { full: Some(damaged), ..holdings(1, 7) };
        let mut in_force = in_force(Vec::new());
        assert_eq!(Report::new(&in_force, &damaged), None, "nothing is known of the last report");
        let last = report(3);
        let status = last.status(None, jiff::Timestamp::now());
        in_force.standing = Some(Standing { uid: last.uid.clone(), status, ..Standing::default() });
        let now = Report::new(&in_force, &damaged).unwrap();
        assert_eq!((&now.pools, now.generation, now.ledger), (&last.pools, last.generation, last.ledger));
        assert_eq!(now.ready, (DAMAGED.to_owned(), "record 2 is unreadable".to_owned()));
        assert!(now.unconfirmed.is_empty());
    }

    #[test]
    fn an_object_that_does_not_exist_gets_no_report() {
        assert_eq!(Report::new(&InForce::default(), &holdings(1, 1)), None);
    }

    #[test]
    fn an_answer_confirms_the_reported_grants_that_its_spec_has() {
        let key = PoolKey::new(PoolKind::IpPool, "blue");
        let reported = [(key, GrantId::from_number(7))];
        let entry = NodeBlock { name: "blue".into(), grant: "0000000000000007".into(), ..NodeBlock::default() };
        let confirms = |pools: Vec<NodeBlock>, uid: &str| {
            let mut object = IPAMNode::new("n1", IPAMNodeSpec { pools, ..IPAMNodeSpec::default() });
            object.metadata.uid = Some(uid.into());
            !confirmed(&reported, "u", &object).is_empty()
        };
        assert!(confirms(vec![entry.clone()], "u"));
        assert!(confirms(vec![NodeBlock { state: BlockState::Releasing, ..entry.clone() }], "u"));
        let revoked = NodeBlock { state: BlockState::Revoked, ..entry.clone() };
        let others = [
            vec![revoked],
            vec![NodeBlock { grant: "0000000000000008".into(), ..entry.clone() }],
            vec![NodeBlock { name: "red".into(), ..entry.clone() }],
            vec![NodeBlock { pool_type: PoolType::CIDRPool, ..entry.clone() }],
            vec![],
        ];
        for pools in others {
            assert!(!confirms(pools.clone(), "u"), "{pools:?}");
        }
        assert!(!confirms(vec![entry], "v"), "the answer is another object");
    }

    #[test]
    fn capacity_saturates() {
        assert_eq!(report(1).pools[0].capacity, i64::MAX);
    }

    #[test]
    fn the_transition_time_moves_only_when_ready_turns() {
        let at = |second| jiff::Timestamp::from_second(second).unwrap();
        let first = report(1).status(None, at(10)).conditions.remove(0);
        assert_eq!((first.status.as_str(), first.last_transition_time.0), ("True", at(10)));
        let again = report(2).status(Some(&first), at(20)).conditions.remove(0);
        assert_eq!(again.last_transition_time.0, at(10));
        let turned = troubled().status(Some(&again), at(30)).conditions.remove(0);
        assert_eq!((turned.status.as_str(), turned.last_transition_time.0), ("False", at(30)));
        assert!(turned.message.len() <= MESSAGE + 3);
    }
}
