//! Reports to `IPAMNode.status`: what is used of each block, and whether the agent is well.
//!
//! Decides when a report is worth a write. The agent is the only writer of this status, and writes it whole. Without the
//! API server it keeps quiet and tries again; nothing else waits for a report.

use std::sync::Arc;
use std::time::Duration;

use ipam_core::PoolKey;
use ipam_core::ledger::PoolUsage;
use ipam_crds::{BlockUse, IPAMNode, IPAMNodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use tokio::sync::watch::Receiver;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::allocator::Allocator;
use crate::metrics::Metrics;
use crate::text::shortened;
use crate::watch::InForce;

/// Shortest time between two writes.
const SOON: Duration = Duration::from_secs(1);
/// Time that a report waits beyond that if it only tells other counts.
const LATER: Duration = Duration::from_secs(9);
/// Pauses after failed writes, doubling from the first to the last.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// Time that one write may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest condition message; an object has no room for any number of problems.
const MESSAGE: usize = 1024;

/// What a report says, apart from times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The object that it is about.
    pub uid: String,
    /// The generation in force.
    pub generation: Option<i64>,
    /// Use of each block, by poolType and name.
    pub pools: Vec<BlockUse>,
    /// Why blocks cannot be used; empty when all can.
    pub problems: Vec<String>,
}

/// How soon a report should be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// Nothing is new.
    No,
    /// Only counts moved.
    Later,
    /// The operator may wait for this: another spec, range or condition, or a block that became empty or used.
    Soon,
}

impl Report {
    /// The report on what is in force; `None` while the object does not exist, which nobody can report to.
    pub fn new(in_force: &InForce, usage: &[PoolUsage]) -> Option<Self> {
        let generation = Some(in_force.spec.generation?);
        let mut pools: Vec<_> = usage.iter().map(block_use).collect();
        pools.sort_by(|a, b| (a.pool_type, &a.name).cmp(&(b.pool_type, &b.name)));
        Some(Self { uid: in_force.spec.uid.clone(), generation, pools, problems: in_force.problems.clone() })
    }

    /// How soon this should be written when `last` was written last.
    pub fn urgency(&self, last: Option<&Self>) -> Urgency {
        let Some(last) = last else { return Urgency::Soon };
        if self == last {
            return Urgency::No;
        }
        let same_pools = self.pools.len() == last.pools.len()
            && self.pools.iter().zip(&last.pools).all(|(a, b)| {
                let turned = (a.used == 0) != (b.used == 0);
                !turned && BlockUse { used: 0, ..a.clone() } == BlockUse { used: 0, ..b.clone() }
            });
        let same_rest = (&self.uid, self.generation, &self.problems) == (&last.uid, last.generation, &last.problems);
        if same_pools && same_rest { Urgency::Later } else { Urgency::Soon }
    }

    /// The status to write. The transition time moves only when Ready turns: `before` is the last Ready condition.
    fn status(&self, before: Option<&Condition>, now: jiff::Timestamp) -> IPAMNodeStatus {
        let ready = self.problems.is_empty();
        let status = if ready { "True" } else { "False" };
        let since = before.filter(|before| before.status == status).map(|before| before.last_transition_time.clone());
        let message = if ready { "all blocks of this node are served".to_owned() } else { self.problems.join("; ") };
        let condition = Condition {
            type_: "Ready".to_owned(),
            status: status.to_owned(),
            reason: if ready { "Serving" } else { "InvalidBlocks" }.to_owned(),
            message: shortened(message, MESSAGE),
            observed_generation: self.generation,
            last_transition_time: since.unwrap_or(Time(now)),
        };
        IPAMNodeStatus {
            observed_generation: self.generation,
            agent_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            pools: self.pools.clone(),
            ledger: None,
            conditions: vec![condition],
        }
    }
}

fn block_use(usage: &PoolUsage) -> BlockUse {
    let PoolKey { kind, name } = &usage.key;
    BlockUse {
        name: name.clone(),
        pool_type: (*kind).into(),
        start_ip: usage.range.first().to_string(),
        end_ip: usage.range.last().to_string(),
        used: i64::try_from(usage.used).unwrap_or(i64::MAX),
        capacity: i64::try_from(usage.capacity).unwrap_or(i64::MAX),
        held: Vec::new(),
    }
}

/// When the next report is due.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pace {
    /// The report that the API server has, as far as this process knows.
    last: Option<Report>,
    not_before: Instant,
    failures: u32,
}

impl Pace {
    /// Nothing is written yet; the first report is due at once.
    pub const fn new(now: Instant) -> Self {
        Self { last: None, not_before: now, failures: 0 }
    }

    /// When `report` should be written; `None` if it tells nothing new.
    pub fn due(&self, report: &Report) -> Option<Instant> {
        match report.urgency(self.last.as_ref()) {
            Urgency::No => None,
            Urgency::Soon => Some(self.not_before),
            Urgency::Later => Some(self.not_before + LATER),
        }
    }

    /// `report` was written. Returns how many attempts had failed before.
    pub fn written(&mut self, report: Report, now: Instant) -> u32 {
        self.last = Some(report);
        self.not_before = now + SOON;
        std::mem::take(&mut self.failures)
    }

    /// A write failed. Returns whether it is the first one in a row.
    pub fn failed(&mut self, now: Instant) -> bool {
        self.not_before = now + RETRY.0.saturating_mul(1 << self.failures.min(6)).min(RETRY.1);
        self.failures = self.failures.saturating_add(1);
        self.failures == 1
    }
}

/// Writes reports.
pub struct Reporter {
    api: Api<IPAMNode>,
    node: String,
    allocator: Allocator,
    in_force: Receiver<Option<InForce>>,
    metrics: Arc<Metrics>,
    pace: Pace,
    ready: Option<Condition>,
}

impl Reporter {
    /// Nothing is written yet.
    pub fn new(
        client: Client,
        namespace: &str,
        node: &str,
        allocator: Allocator,
        in_force: Receiver<Option<InForce>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (api, node, pace) = (Api::namespaced(client, namespace), node.to_owned(), Pace::new(Instant::now()));
        Self { api, node, allocator, in_force, metrics, pace, ready: None }
    }

    /// Reports until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut changes = self.allocator.changes();
        let stopped = stop.cancelled();
        tokio::pin!(stopped);
        loop {
            changes.mark_unchanged();
            self.in_force.mark_unchanged();
            let due = self.step().await;
            let pause = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut stopped => return,
                () = pause => {}
                told = changes.changed() => if told.is_err() { return },
                told = self.in_force.changed() => if told.is_err() { return },
            }
        }
    }

    /// Writes a report if one is due; returns when to look again if nothing happens before.
    async fn step(&mut self) -> Option<Instant> {
        let in_force = self.in_force.borrow().clone()?;
        let usage = self.allocator.usage().await.ok()?;
        let report = Report::new(&in_force, &usage)?;
        let due = self.pace.due(&report)?;
        if Instant::now() < due {
            return Some(due);
        }
        self.write(report).await;
        // Looked at again at once: what changed meanwhile may be due.
        Some(self.pace.not_before)
    }

    async fn write(&mut self, report: Report) {
        if self.ready.is_none() {
            self.ready = self.written_before().await;
        }
        let status = report.status(self.ready.as_ref(), jiff::Timestamp::now());
        let patch = Patch::Merge(serde_json::json!({ "status": &status }));
        let params = PatchParams::default();
        let write = self.api.patch_status(&self.node, &params, &patch);
        let result = match tokio::time::timeout(WRITE_TIMEOUT, write).await {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {} s", WRITE_TIMEOUT.as_secs())),
        };
        match result {
            Ok(_) => {
                self.ready = status.conditions.into_iter().next();
                match self.pace.written(report, Instant::now()) {
                    0 => {}
                    attempts => info!(attempts, "status reported again"),
                }
            }
            Err(error) => {
                self.metrics.report_failures.inc();
                if self.pace.failed(Instant::now()) {
                    warn!(error, "cannot report the status, trying again");
                }
            }
        }
    }

    /// The Ready condition that an earlier process wrote, so that a restart does not move its transition time.
    async fn written_before(&self) -> Option<Condition> {
        let object = tokio::time::timeout(WRITE_TIMEOUT, self.api.get_opt(&self.node)).await.ok()?.ok()??;
        object.status?.conditions.into_iter().find(|condition| condition.type_ == "Ready")
    }
}

#[cfg(test)]
mod tests {
    use ipam_core::{AddrRange, PoolKind};

    use super::*;
    use crate::spec::NodeSpec;

    fn usage(used: u64) -> Vec<PoolUsage> {
        let range = AddrRange::new("10.0.0.1".parse().unwrap(), "10.0.0.4".parse().unwrap()).unwrap();
        let key = PoolKey::new(PoolKind::IpPool, "blue");
        vec![PoolUsage { key, range, used, capacity: u128::MAX }]
    }

    fn report(used: u64) -> Report {
        let spec = NodeSpec { uid: "u".into(), generation: Some(2), blocks: Vec::new() };
        Report::new(&InForce { spec, ..InForce::default() }, &usage(used)).unwrap()
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
        assert_eq!(Report { problems: vec!["x".into()], ..report(1) }.urgency(Some(&report(1))), Urgency::Soon);
    }

    #[test]
    fn writes_are_a_second_apart_those_of_counts_ten_and_failures_back_off() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert_eq!(pace.due(&report(1)), Some(start));
        assert_eq!(pace.written(report(1), start), 0);
        assert_eq!(pace.due(&report(1)), None, "without news there is silence");
        assert_eq!(pace.due(&report(0)), Some(start + Duration::from_secs(1)));
        assert_eq!(pace.due(&report(2)), Some(start + Duration::from_secs(10)));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            pace.failed(start);
            pauses.push((pace.not_before - start).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pace.written(report(0), start), 8);
    }

    #[test]
    fn an_object_that_does_not_exist_gets_no_report() {
        assert_eq!(Report::new(&InForce::default(), &usage(1)), None);
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
        let problems = vec!["ä".repeat(MESSAGE)];
        let turned = Report { problems, ..report(1) }.status(Some(&again), at(30)).conditions.remove(0);
        assert_eq!((turned.status.as_str(), turned.last_transition_time.0), ("False", at(30)));
        assert!(turned.message.len() <= MESSAGE + 3);
    }
}
