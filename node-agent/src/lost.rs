//! Addresses of this node's last report, where the journal is older than that report: the store was deleted or restored from a
//! backup, or another agent of the same node name has reported.
//!
//! Decides without disk and clock. Pods may use these addresses without a record. So neither this node nor another allocates
//! them. A record of such an address proves nothing: it may be of a pod that was gone when the report was made, and another pod
//! may have got the address by then. Only an admin knows when all those pods are gone. The annotation [`DISCARD`] then says so;
//! deleting the IPAMNode does not.
//!
//! A report of an earlier boot of the same machine has lost nothing: no pod of that boot runs any more. Pods of another machine that had
//! this node's name may run on. As with a Node that is gone, their addresses become available after a grace.
//!
//! Pods of this machine are on this node. So an address of a report of this machine becomes available once no pod of the node has it:
//! see [`crate::reclaim`].

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_core::addr::number;
use ipam_core::ledger::{GrantStep, Holding};
use ipam_core::{AddrRange, Family, GrantId, NodePool, PoolKey, RangeSet};
use ipam_crds::{AddressRange, BlockUse, HELD_RUNS, LedgerPosition, PoolType};
use serde::{Deserialize, Serialize};

use crate::identity::Identity;
use crate::problem::Problem;
use crate::standing::{DISCARD, Standing};
use crate::text::shortened;
use ipam_node_store::Position;

/// Longest list of addresses in the message. With the longest names of node and namespace, the command behind it is still within
/// the length of a condition.
const ADDRESSES: usize = 256;

/// A journal as an agent finds it at its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// How far it had come.
    pub position: Position,
    /// Its store, and the machine and the boot of this start.
    pub identity: Identity,
    /// How long addresses that pods of another machine may use stay unavailable, in seconds; `None` is until they are discarded.
    pub grace: Option<u64>,
}

impl Found {
    /// Whether the report has what this journal may lack.
    pub fn is_behind(&self, standing: &Standing) -> bool {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let found = (number(self.position.epoch), number(self.position.sequence));
        let reported = standing.status.ledger.map(|LedgerPosition { epoch, sequence }| (epoch, sequence));
        reported.is_some_and(|reported| found < reported) || self.identity.is_another_store(&standing.identity())
    }
}

/// The grants that the report `standing` has as idle or ended, if the journal lacks what the report has: it may have them as confirmed.
pub fn withdrawn(standing: &Standing, found: &Found) -> Vec<(PoolKey, GrantId, GrantStep)> {
    let of_report = |report: &BlockUse| {
        let idle = report.idle.then_some(GrantStep::Idle);
        let step = if report.ended { GrantStep::Ended } else { idle? };
        Some((PoolKey::new(report.pool_type.into(), report.name.clone()), report.grant.as_ref()?.parse().ok()?, step))
    };
    let reports = standing.status.pools.iter().filter(|_| found.is_behind(standing));
    reports.filter_map(of_report).collect()
}

/// Addresses that pods may use without a record, until an admin discards them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lost {
    namespace: String,
    node: String,
    /// The version of the object in which the newest of the reports was found.
    resource_version: String,
    pools: Vec<LostOfPool>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LostOfPool {
    pool_type: PoolType,
    name: String,
    held: Vec<AddressRange>,
    #[serde(default)]
    reported_by: ReportedBy,
    /// How long they stay unavailable, in seconds in which an agent runs; `None` is until they are discarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<u64>,
}

/// The machine that made a report under this node's name.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ReportedBy {
    /// Unknown: it or this machine has no UUID.
    #[default]
    Unknown,
    /// The machine on which this agent runs.
    ThisMachine,
    /// Another one.
    OtherMachine,
}

impl LostOfPool {
    fn key(&self) -> PoolKey {
        PoolKey::new(self.pool_type.into(), self.name.clone())
    }

    fn ranges(&self) -> impl Iterator<Item = AddrRange> + '_ {
        self.held.iter().filter_map(range)
    }
}

impl Lost {
    /// The addresses in use by the report `standing`, if the journal lacks what the report has. A journal that is as far as the report, or
    /// further, has all of it: the pods have freed what it does not have.
    pub fn find(standing: &Standing, found: &Found) -> Option<Self> {
        let reported = standing.identity();
        if !found.is_behind(standing) || found.identity.is_another_boot(&reported) {
            return None;
        }
        let reported_by = if found.identity.is_another_machine(&reported) {
            ReportedBy::OtherMachine
        } else if found.identity.is_same_machine(&reported) {
            ReportedBy::ThisMachine
        } else {
            ReportedBy::Unknown
        };
        let left = found.grace.filter(|_| reported_by == ReportedBy::OtherMachine);
        let reports = standing.status.pools.iter().filter(|report| report.used > 0);
        let pools = reports.map(|report| LostOfPool { reported_by, left, ..of_pool(report) });
        let pools: Vec<_> = pools.filter(|pool| !pool.held.is_empty()).collect();
        let Standing { namespace, name: node, resource_version, .. } = standing.clone();
        (!pools.is_empty()).then_some(Self { namespace, node, resource_version, pools })
    }

    /// Those that another machine reported; `None` if there are none.
    pub(crate) fn of_other_machines(self) -> Option<Self> {
        self.only(|pool| pool.reported_by == ReportedBy::OtherMachine)
    }

    /// Those that are still unavailable after so many seconds more; `None` if none are.
    pub fn after(mut self, seconds: u64) -> Option<Self> {
        for left in self.pools.iter_mut().filter_map(|pool| pool.left.as_mut()) {
            *left = left.saturating_sub(seconds);
        }
        self.only(|pool| pool.left != Some(0))
    }

    fn only(mut self, is_kept: impl Fn(&LostOfPool) -> bool) -> Option<Self> {
        self.pools.retain(is_kept);
        (!self.pools.is_empty()).then_some(self)
    }

    /// Whether a pod of this node may have the address: this machine reported it.
    pub(crate) fn may_be_of_a_pod_here(&self, addr: IpAddr) -> bool {
        let mut of_this_machine = self.pools.iter().filter(|pool| pool.reported_by == ReportedBy::ThisMachine);
        of_this_machine.any(|pool| pool.ranges().any(|range| range.contains(addr)))
    }

    /// Whether pods of this node have some of these addresses, if any.
    pub(crate) fn is_of_this_machine(&self) -> bool {
        self.pools.iter().any(|pool| pool.reported_by == ReportedBy::ThisMachine)
    }

    /// Those that are still unavailable once the pods of this node have no other address than `in_use`; `None` if none are.
    pub(crate) fn left_by(mut self, in_use: &BTreeSet<IpAddr>) -> Option<Self> {
        for pool in self.pools.iter_mut().filter(|pool| pool.reported_by == ReportedBy::ThisMachine) {
            let Some(family) = pool.ranges().next().map(|range| range.family()) else { continue };
            let is_kept =
                |addr: &IpAddr| Family::of(*addr) == family && pool.ranges().any(|range| range.contains(*addr));
            pool.held = runs(family, in_use.iter().copied().filter(is_kept));
        }
        self.only(|pool| !pool.held.is_empty())
    }

    /// After how many seconds the next of them become available by themselves.
    pub fn next_end(&self) -> Option<u64> {
        self.pools.iter().filter_map(|pool| pool.left).min()
    }

    /// Whether an admin has discarded these addresses in the object that shows `standing`.
    pub fn is_discarded_by(&self, standing: &Standing) -> bool {
        standing.discard.as_ref() == Some(&self.resource_version)
    }

    /// These addresses together with those that were found earlier. The version is that of these, the newest.
    #[must_use]
    pub fn and(mut self, earlier: Option<Self>) -> Self {
        // A start that ended before it could report has found the same.
        for pool in earlier.map(|earlier| earlier.pools).unwrap_or_default() {
            if !self.pools.contains(&pool) {
                self.pools.push(pool);
            }
        }
        self
    }

    /// Makes these addresses unavailable in the pools.
    pub fn bar(&self, pools: &mut [NodePool]) {
        for pool in pools {
            let own = self.pools.iter().filter(|lost| lost.key() == pool.key).flat_map(LostOfPool::ranges);
            let of_family = own.filter(|range| range.family() == pool.range.family());
            for (first, last) in of_family.map(|range| range.numbers()) {
                pool.elsewhere.insert(first, last);
            }
        }
    }

    /// What is to be reported as in use: `holdings`, and these addresses.
    pub fn join(&self, mut holdings: Vec<Holding>) -> Vec<Holding> {
        for lost in &self.pools {
            let ranges: Vec<_> = lost.ranges().collect();
            let key = lost.key();
            match holdings.iter_mut().find(|holding| holding.key == key) {
                Some(holding) => holding.join(&ranges, HELD_RUNS),
                None => holdings.extend(Holding::unconfigured(key, &ranges, HELD_RUNS)),
            }
        }
        holdings
    }

    /// The state, its cause, and the command that discards these addresses.
    pub fn problem(&self) -> Problem {
        let of_pool = |lost: &LostOfPool| {
            let ranges: Vec<_> = lost.ranges().map(text).collect();
            format!("{} of {}", ranges.join(", "), lost.key())
        };
        let addresses = self.pools.iter().map(of_pool).collect::<Vec<_>>().join("; ");
        let addresses = shortened(addresses, ADDRESSES);
        let Self { namespace, node, resource_version, .. } = self;
        let command = format!(
            "When no pod uses them (an address that is still in use would be assigned twice): kubectl -n {namespace} annotate ipamnode \
             {node} --overwrite {DISCARD}={resource_version}"
        );
        let is_of_others = self.pools.iter().all(|pool| pool.reported_by == ReportedBy::OtherMachine);
        let longest = self.pools.iter().map(|pool| pool.left).collect::<Option<Vec<_>>>();
        let time = match longest.and_then(|left| left.into_iter().max()) {
            Some(left) => format!("for {} more", span(left)),
            None => "until that report is discarded".to_owned(),
        };
        if is_of_others {
            let sentence = format!(
                "another machine reported under this node's name, and pods may still run there; {time}, the agent does not allocate the \
                 addresses of that report: {addresses}. {command}"
            );
            return Problem { reason: "MachineReplaced", sentence };
        }
        let until = if self.is_of_this_machine() { " while a pod of this node may have them" } else { "" };
        let sentence = format!(
            "the agent's store is older than this node's last report, because it was deleted or restored, or because another agent uses \
             this node's name; the agent has no record of addresses of that report and does not allocate them{until}: {addresses}. \
             {command}"
        );
        Problem { reason: "StoreWentBack", sentence }
    }
}

/// A number of seconds, rounded up to hours or minutes if it is longer than one.
fn span(seconds: u64) -> String {
    match seconds {
        3601.. => format!("{} h", seconds.div_ceil(3600)),
        61.. => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{seconds} s"),
    }
}

/// What a report has as in use.
fn of_pool(report: &BlockUse) -> LostOfPool {
    let whole = || vec![AddressRange { start_ip: report.start_ip.clone(), end_ip: report.end_ip.clone() }];
    let mut held = if report.held.is_empty() { whole() } else { report.held.clone() };
    held.retain(|told| range(told).is_some());
    LostOfPool {
        pool_type: report.pool_type,
        name: report.name.clone(),
        held,
        reported_by: ReportedBy::Unknown,
        left: None,
    }
}

/// These addresses as runs.
fn runs(family: Family, addresses: impl Iterator<Item = IpAddr>) -> Vec<AddressRange> {
    let mut set = RangeSet::new();
    set.extend(addresses.map(|addr| (number(addr), number(addr))));
    let run = |(first, last): (u128, u128)| AddressRange {
        start_ip: family.addr(first).to_string(),
        end_ip: family.addr(last).to_string(),
    };
    set.runs().map(run).collect()
}

/// One address, or the first and the last.
fn text(range: AddrRange) -> String {
    if range.first() == range.last() { range.first().to_string() } else { range.to_string() }
}

fn range(told: &AddressRange) -> Option<AddrRange> {
    AddrRange::new(told.start_ip.parse().ok()?, told.end_ip.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use ipam_core::PoolKind;
    use ipam_crds::IPAMNodeStatus;

    use super::*;

    fn told(first: &str, last: &str) -> AddressRange {
        AddressRange { start_ip: first.into(), end_ip: last.into() }
    }

    /// A report at epoch 3, sequence 5: .2 to .4 and, by its name, .9 are held of blue.
    fn standing() -> Standing {
        let report = BlockUse {
            name: "blue".into(),
            pool_type: PoolType::IPPool,
            start_ip: "10.0.0.1".into(),
            end_ip: "10.0.0.8".into(),
            used: 4,
            capacity: 7,
            held: vec![told("10.0.0.2", "10.0.0.4"), told("10.0.0.9", "10.0.0.9")],
            ..BlockUse::default()
        };
        let ledger = Some(LedgerPosition { epoch: 3, sequence: 5 });
        Standing {
            namespace: "kube-system".into(),
            name: "n1".into(),
            resource_version: "41".into(),
            status: IPAMNodeStatus { pools: vec![report], ledger, ..IPAMNodeStatus::default() },
            ..Standing::default()
        }
    }

    fn at(epoch: u64, sequence: u64) -> Found {
        Found { position: Position { epoch, sequence }, identity: Identity::default(), grace: Some(86_400) }
    }

    fn find(epoch: u64, sequence: u64) -> Option<Lost> {
        Lost::find(&standing(), &at(epoch, sequence))
    }

    /// The report of this store, machine and boot.
    fn reported_by(store: &str, machine: &str, boot: &str) -> Standing {
        let mut standing = standing();
        let [store, machine, boot] = [store, machine, boot].map(|id| Some(id.to_owned()));
        (standing.status.store_id, standing.status.system_uuid, standing.status.boot_id) = (store, machine, boot);
        standing
    }

    /// The start of store "s" on machine "m" in boot "b".
    fn start(epoch: u64) -> Found {
        let [store, machine, boot] = ["s", "m", "b"].map(|id| Some(id.to_owned()));
        Found { identity: Identity { store, machine, boot }, ..at(epoch, 0) }
    }

    #[test]
    fn another_store_has_lost_what_the_report_has_however_far_it_has_come() {
        assert_eq!(Lost::find(&reported_by("s", "m", "b"), &start(4)), None);
        for epoch in [0, 3, 4, 90] {
            let lost = Lost::find(&reported_by("t", "m", "b"), &start(epoch)).unwrap();
            assert_eq!((lost.problem().reason, lost.next_end()), ("StoreWentBack", None), "{epoch}");
        }
    }

    #[test]
    fn nothing_of_an_earlier_boot_of_this_machine_is_lost() {
        for store in ["s", "t"] {
            assert_eq!(Lost::find(&reported_by(store, "m", "a"), &start(0)), None, "{store}");
        }
    }

    #[test]
    fn addresses_of_another_machine_of_this_name_are_unavailable_until_the_grace_is_over() {
        let lost = Lost::find(&reported_by("t", "n", "a"), &start(0)).unwrap();
        let Problem { reason, sentence } = lost.problem();
        assert!(reason == "MachineReplaced" && sentence.contains("; for 24 h more, the agent does not"), "{sentence}");
        assert!(sentence.ends_with("discard-report=41"), "{sentence}");
        let after = |seconds| lost.clone().after(seconds);
        assert_eq!((lost.next_end(), after(86_400)), (Some(86_400), None));
        let later = after(86_340).unwrap();
        assert_eq!(later.next_end(), Some(60));
        assert!(later.problem().sentence.contains("for 60 s more"));
        assert_eq!(lost.clone().of_other_machines(), Some(lost.clone()), "whatever boot this machine is in");
    }

    #[test]
    fn without_a_grace_addresses_of_another_machine_stay_unavailable_in_each_boot_of_this_one() {
        let lost = Lost::find(&reported_by("t", "n", "a"), &Found { grace: None, ..start(0) }).unwrap();
        let Problem { reason, sentence } = lost.problem();
        assert!(reason == "MachineReplaced" && sentence.contains("until that report is discarded"), "{sentence}");
        assert_eq!((lost.next_end(), lost.clone().after(u64::MAX)), (None, Some(lost.clone())));
        assert_eq!(lost.clone().of_other_machines(), Some(lost));
    }

    #[test]
    fn a_store_that_is_behind_may_have_an_idle_or_ended_grant_as_confirmed() {
        for (is_ended, step) in [(false, GrantStep::Idle), (true, GrantStep::Ended)] {
            let mut shown = standing();
            let report = &mut shown.status.pools[0];
            (report.idle, report.ended) = (!is_ended, is_ended);
            (report.grant, report.used, report.held) = (Some("0000000000000007".into()), 0, Vec::new());
            let found = |sequence| withdrawn(&shown, &at(3, sequence));
            let blue = PoolKey::new(PoolKind::IpPool, "blue");
            assert_eq!((found(4), found(5)), (vec![(blue, GrantId::from_number(7), step)], vec![]));
        }
    }

    #[test]
    fn only_a_store_that_is_behind_the_report_has_lost_something() {
        for (epoch, sequence) in [(3, 5), (3, 6), (4, 0)] {
            assert_eq!(find(epoch, sequence), None, "{epoch} {sequence}");
        }
        for (epoch, sequence) in [(3, 4), (2, 90), (0, 0)] {
            let lost = find(epoch, sequence).unwrap();
            assert_eq!(lost.pools[0].held, [told("10.0.0.2", "10.0.0.4"), told("10.0.0.9", "10.0.0.9")]);
            assert!(!lost.is_discarded_by(&standing()));
        }
        let nothing = Lost::find(&Standing::default(), &at(0, 0));
        assert_eq!(nothing, None, "an object without a report");
    }

    fn found_in(version: &str) -> Lost {
        let standing = Standing { resource_version: version.into(), ..standing() };
        Lost::find(&standing, &at(0, 0)).unwrap()
    }

    #[test]
    fn the_annotation_discards_only_what_was_found_in_its_version() {
        let annotated = |value: Option<&str>| Standing { discard: value.map(str::to_owned), ..standing() };
        for (value, discards) in
            [(Some("41"), true), (Some("42"), false), (Some("4"), false), (Some(""), false), (None, false)]
        {
            assert_eq!(found_in("41").is_discarded_by(&annotated(value)), discards, "{value:?}");
        }
    }

    #[test]
    fn addresses_of_two_reports_are_discarded_by_the_newest_version() {
        let both = found_in("42").and(Some(found_in("41")));
        assert_eq!(both, found_in("42"), "an equal report adds nothing but its version");
        let mut other = standing();
        other.status.pools[0].name = "red".into();
        let earlier = Lost::find(&other, &at(0, 0));
        let both = found_in("43").and(earlier);
        assert_eq!(both.pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>(), ["blue", "red"]);
        let discards = |value: &str| both.is_discarded_by(&Standing { discard: Some(value.into()), ..standing() });
        assert!(discards("43") && !discards("41"));
    }

    #[test]
    fn the_message_ends_with_the_whole_command_however_long_the_names_are() {
        let Problem { reason, sentence } = found_in("41").problem();
        assert_eq!(reason, "StoreWentBack");
        assert!(sentence.contains("10.0.0.2-10.0.0.4, 10.0.0.9 of IPPool \"blue\". When no pod"), "{sentence}");
        let command = "kubectl -n kube-system annotate ipamnode n1 --overwrite nv-ipam.nvidia.com/discard-report=41";
        assert!(sentence.ends_with(command), "{sentence}");

        let mut longest = standing();
        longest.namespace = "s".repeat(63);
        longest.name = "n".repeat(253);
        longest.resource_version = u64::MAX.to_string();
        longest.status.pools[0].held = (0..99).map(|last| told(&format!("10.0.0.{last}"), "10.0.0.99")).collect();
        for (machine, reason) in [(None, "StoreWentBack"), (Some("n".to_owned()), "MachineReplaced")] {
            longest.status.system_uuid = machine;
            let problem = Lost::find(&longest, &Found { grace: None, ..start(0) }).unwrap().problem();
            let sentence = problem.sentence;
            assert_eq!(problem.reason, reason);
            assert!(sentence.len() <= crate::status::MESSAGE, "{}: {sentence}", sentence.len());
            assert!(sentence.ends_with(&format!("{}", u64::MAX)) && sentence.contains(&longest.name), "{sentence}");
        }
    }

    #[test]
    fn a_report_without_addresses_may_mean_each_of_its_range() {
        let mut standing = standing();
        standing.status.pools[0].held.clear();
        let lost = Lost::find(&standing, &at(0, 0)).unwrap();
        assert_eq!(lost.pools[0].held, [told("10.0.0.1", "10.0.0.8")]);
        standing.status.pools[0].used = 0;
        assert_eq!(Lost::find(&standing, &at(0, 0)), None);
    }

    #[test]
    fn what_is_lost_is_reported_as_held_beside_what_is_and_an_address_of_both_counts_once() {
        let lost = find(0, 0).unwrap();
        let range = |first: &str, last: &str| AddrRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap();
        let runs = vec![range("10.0.0.3", "10.0.0.3")];
        let key = PoolKey::new(PoolKind::IpPool, "blue");
        // Of the seven the pool gives, two are lost besides the one that is recorded.
        let own = Holding { key, range: range("10.0.0.1", "10.0.0.8"), used: 1, capacity: 4, runs, grant: None };
        let joined = lost.join(vec![own]);
        assert_eq!((joined[0].used, joined[0].capacity), (4, 7));
        assert_eq!(joined[0].runs, [range("10.0.0.2", "10.0.0.4"), range("10.0.0.9", "10.0.0.9")]);
        let alone = lost.join(Vec::new());
        assert_eq!((alone[0].used, alone[0].capacity, alone[0].runs.len()), (4, 0, 2));
    }
}
