//! What the recognisers of known faults read from a failure: which objects the law names, and the order of the actions.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipam_core::{AddrRange, Cidr};

use crate::action::Action;
use crate::admin::pool_at;
use crate::catalogue::manifest;
use crate::size::{MOST_NODES, REPLICAS, node_name};
use crate::{EarlyAssignment, Failure};

/// How much time the action lets pass, in milliseconds.
pub(super) fn passes(action: Action) -> u32 {
    match action {
        Action::Pass(time) => time,
        Action::Rest(seconds) => u32::from(seconds) * 1000,
        _ => 0,
    }
}

/// What follows once so much time has passed, in milliseconds.
pub(super) fn after_time(history: &[Action], time: u32) -> &[Action] {
    let mut passed: u32 = 0;
    let is_over = |action: &Action| {
        passed = passed.saturating_add(passes(*action));
        passed >= time
    };
    history.iter().position(is_over).map_or(&[], |at| &history[at + 1..])
}

/// The longest time for which a leader runs without a renewal of its Lease, in milliseconds.
pub(super) const LEASE: u32 = 10_000;

/// A restore of a backup. A backup is used up by its restore, so each restore belongs to the last backup before it.
#[derive(Clone, Copy)]
pub(super) struct PutBack<'a> {
    /// Whether the watches break, if replicas run during the restore; `None` if none runs.
    pub(super) live: Option<bool>,
    /// What happens before the backup is made.
    pub(super) before: &'a [Action],
    /// What happens between the backup and the restore: what the restore takes back.
    pub(super) since: &'a [Action],
    /// What happens until the restore, with the backup.
    pub(super) until: &'a [Action],
    /// What happens after the restore.
    pub(super) later: &'a [Action],
}

impl PutBack<'_> {
    /// Whether replicas run during the restore.
    pub(super) const fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// Whether a leader may have assigned or released a block that the restore takes back.
    pub(super) fn takes_back_writes(&self) -> bool {
        has(self.since, writes)
    }
}

/// All restores, in their order.
pub(super) fn put_backs(history: &[Action]) -> Vec<PutBack<'_>> {
    let mut all = Vec::new();
    let mut backup = None;
    for (place, action) in history.iter().enumerate() {
        let live = match *action {
            Action::Restore => None,
            Action::RestoreLive { breaks } => Some(breaks),
            Action::Backup => {
                backup = Some(place);
                continue;
            }
            _ => continue,
        };
        if let Some(made) = backup.take() {
            let (before, since) = (&history[..made], &history[made + 1..place]);
            all.push(PutBack { live, before, since, until: &history[..place], later: &history[place + 1..] });
        }
    }
    all
}

/// Whether a restore of this failure is as described.
pub(super) fn has_put_back(failure: &Failure, is_it: impl Fn(PutBack<'_>) -> bool) -> bool {
    put_backs(&failure.history).into_iter().any(is_it)
}

/// Whether what broke the law names this node or pool, as a word.
pub(super) fn names(failure: &Failure, name: &str) -> bool {
    failure.law.what.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').any(|word| word == name)
}

/// Whether what broke the law names this node.
pub(super) fn names_node(failure: &Failure, node: u8) -> bool {
    names(failure, &node_name(node))
}

/// Whether what broke the law names a pod of this node.
pub(super) fn names_pod_of(failure: &Failure, node: u8) -> bool {
    let node = node_name(node);
    let mut words = failure.law.what.split(' ');
    words.any(|word| word.rsplit_once('-').is_some_and(|(of, _)| of == node))
}

/// Whether what broke the law names this pool.
pub(super) fn names_pool(failure: &Failure, pool: u8) -> bool {
    names(failure, pool_at(pool).1)
}

/// Whether the conditions say that new blocks wait for reports, without a limit.
pub(super) fn waits_for_reports(failure: &Failure) -> bool {
    names(failure, "AwaitingAgentReports") && !failure.law.what.contains("for at most")
}

/// The address at the start of what broke the law.
pub(crate) fn address(failure: &Failure) -> Option<IpAddr> {
    failure.law.what.split(' ').next()?.parse().ok()
}

/// Whether a pod on this node has the address, by what broke the law.
pub(super) fn is_user(failure: &Failure, node: u8) -> bool {
    let name = node_name(node);
    let mut users = failure.law.what.split(" on ").skip(1);
    users.any(|text| text.split([' ', ',']).next() == Some(name.as_str()))
}

/// The blocks with the address that other nodes than this one got while a node had not reported.
fn early_elsewhere<'a>(failure: &'a Failure, name: &'a str) -> impl Iterator<Item = &'a EarlyAssignment> {
    let addr = address(failure);
    let is_it = move |it: &&EarlyAssignment| it.node != name && addr.is_some_and(|addr| it.range.contains(addr));
    failure.evidence.early.iter().filter(is_it)
}

/// Whether this node had not reported since a loss of records when another node got a block with the address, at the earliest `after` the
/// loss. Where the law is about an address without a record: whether it has not reported.
pub(super) fn was_unreported(failure: &Failure, node: u8, after: Duration) -> bool {
    let name = node_name(node);
    if failure.law.law == "held-is-recorded" {
        return failure.evidence.unreported.contains(&name);
    }
    early_elsewhere(failure, &name).any(|it| it.since >= after && it.unreported.contains(&name))
}

/// Whether this node had a Node and had not reported since a loss of records when another node got a block with the address, at the earliest
/// `after` the loss.
pub(super) fn was_silent(failure: &Failure, node: u8, after: Duration) -> bool {
    let name = node_name(node);
    early_elsewhere(failure, &name)
        .any(|it| it.since >= after && it.unreported.contains(&name) && !it.gone.contains(&name))
}

/// Whether a leader assigned the address to another node that did not lead yet when the report of a user was lost.
pub(super) fn had_forgotten_user(failure: &Failure) -> bool {
    let mut users = (0..MOST_NODES).filter(|node| is_user(failure, *node)).map(node_name);
    users.any(|name| early_elsewhere(failure, &name).any(|it| it.forgotten.contains(&name)))
}

/// Whether a leader assigned the address to another node while a user had no Node, and had not reported since its report was lost. The
/// leader did not lead yet when that happened.
pub(super) fn had_forgotten_user_without_a_node(failure: &Failure) -> bool {
    let mut users = (0..MOST_NODES).filter(|node| is_user(failure, *node)).map(node_name);
    users.any(|name| early_elsewhere(failure, &name).any(|it| it.forgotten.contains(&name) && it.gone.contains(&name)))
}

/// Whether a node on which a pod has the address had not reported.
pub(super) fn had_unreported_user(failure: &Failure) -> bool {
    (0..MOST_NODES).any(|node| is_user(failure, node) && was_unreported(failure, node, Duration::ZERO))
}

/// Whether a pod starts here on a node on which a pod has the address. A `Crowd` starts pods on each node that has joined.
pub(super) fn adds_for_a_user(failure: &Failure, history: &[Action]) -> bool {
    has(&failure.history, |action| matches!(action, Action::NodeJoins { node } if is_user(failure, node)))
        && has(history, |action| adds_on(action, |node| is_user(failure, node)))
}

/// Whether a pod starts on a node that `is_it` accepts.
pub(super) fn adds_on(action: Action, is_it: impl Fn(u8) -> bool) -> bool {
    match action {
        Action::Crowd => true,
        Action::Add { node, .. }
        | Action::AddAndCrash { node, .. }
        | Action::AddByName { node, .. }
        | Action::AddTwo { node, .. }
        | Action::AddAndCut { node, .. } => is_it(node),
        _ => false,
    }
}

/// What happens after the first action of this kind; nothing if there is none.
pub(super) fn after(history: &[Action], is_it: impl Fn(Action) -> bool) -> &[Action] {
    history.iter().position(|action| is_it(*action)).map_or(&[], |at| &history[at + 1..])
}

/// What happens after the last action of this kind.
pub(super) fn after_last(history: &[Action], is_it: impl Fn(Action) -> bool) -> &[Action] {
    history.iter().rposition(|action| is_it(*action)).map_or(&[], |at| &history[at + 1..])
}

/// What happens before and after each action of this kind.
pub(super) fn around(
    history: &[Action],
    is_it: impl Fn(Action) -> bool,
) -> impl Iterator<Item = (&[Action], Action, &[Action])> {
    let all = history.iter().enumerate().filter(move |(_, action)| is_it(**action));
    all.map(|(at, action)| (&history[..at], *action, &history[at + 1..]))
}

pub(super) fn has(history: &[Action], is_it: impl Fn(Action) -> bool) -> bool {
    history.iter().copied().any(is_it)
}

pub(super) const fn is_undefine(action: Action) -> bool {
    matches!(action, Action::Undefine { .. })
}

/// Whether the IPAMNode of a node is deleted on which a pod has the address.
pub(super) fn deletes_ipam_node(failure: &Failure, action: Action) -> bool {
    matches!(action, Action::RemoveIpamNode { node } if is_user(failure, node))
}

/// Whether a replica may make calls.
pub(super) const fn writes(action: Action) -> bool {
    writer(action).is_some()
}

/// Whether a replica may acquire the Lease.
pub(super) const fn campaigns(action: Action) -> bool {
    writes(action) || matches!(action, Action::Campaign { .. } | Action::Lease { .. } | Action::Rest(_))
}

/// The replica that may make calls.
pub(super) const fn writer(action: Action) -> Option<u8> {
    match action {
        Action::Work { replica }
        | Action::WorkAgainst { replica, .. }
        | Action::Round { replica }
        | Action::Call { replica, .. } => Some(replica % REPLICAS),
        _ => None,
    }
}

/// Whether this replica reads its watches.
pub(super) const fn looks(action: Action, of: u8) -> bool {
    match action {
        Action::Hear { replica, .. }
        | Action::HearLast { replica, .. }
        | Action::Listen { replica }
        | Action::Work { replica }
        | Action::WorkAgainst { replica, .. }
        | Action::Round { replica } => replica % REPLICAS == of,
        _ => false,
    }
}

/// Whether this replica ends.
pub(super) fn ends(action: Action, of: u8) -> bool {
    match action {
        Action::Kill { replica } | Action::Stop { replica, .. } => replica % REPLICAS == of,
        Action::Restore => true,
        _ => false,
    }
}

/// Whether a leader ends here, or does not renew its Lease in time.
pub(super) const fn ends_a_leader(action: Action) -> bool {
    match action {
        Action::Kill { .. } | Action::Stop { .. } | Action::Freeze { .. } => true,
        Action::Pass(time) => time >= LEASE,
        _ => false,
    }
}

/// The replicas that run after this. A Lease that expires ends some of them, which the actions do not show.
pub(super) fn running(history: &[Action]) -> BTreeSet<u8> {
    let mut running = BTreeSet::new();
    for &action in history {
        running.retain(|replica| !ends(action, *replica));
        if let Action::Start { replica, .. } = action {
            running.insert(replica % REPLICAS);
        }
    }
    running
}

/// Whether a replica starts in `history[from..]` that runs already by the actions: its Lease expired during rounds of another.
pub(super) fn starts_again(history: &[Action], from: usize) -> bool {
    (from..history.len()).any(|at| {
        let Action::Start { replica: of, .. } = history[at] else { return false };
        let is_of_another = |action| matches!(action, Action::Round { replica } if replica % REPLICAS != of % REPLICAS);
        running(&history[..at]).contains(&(of % REPLICAS)) && has(&history[from..at], is_of_another)
    })
}

/// Whether a replica writes in `history`, then another one has rounds, and the first does not write any more: its Lease expired.
pub(super) fn expires_beside_another(history: &[Action]) -> bool {
    around(history, writes).any(|(_, action, later)| {
        let first = writer(action);
        let is_of = |action| writer(action) == first;
        let is_round_of_another = |action| matches!(action, Action::Round { .. }) && !is_of(action);
        has(later, is_round_of_another) && !has(later, is_of)
    })
}

/// The names of the applied pools whose network has the address.
pub(super) fn pools_with_the_address(failure: &Failure, history: &[Action]) -> BTreeSet<&'static str> {
    let Some(addr) = address(failure) else { return BTreeSet::new() };
    networks(history).into_iter().filter(|(_, range)| range.contains(addr)).map(|(name, _)| name).collect()
}

/// The names and networks of the pools that are applied.
pub(super) fn networks(history: &[Action]) -> Vec<(&'static str, AddrRange)> {
    history.iter().copied().filter_map(network).collect()
}

/// The name and the network of a pool that is applied.
fn network(action: Action) -> Option<(&'static str, AddrRange)> {
    let Action::Apply { pool, spec } = action else { return None };
    let (_, name, object) = manifest(pool, spec);
    let network = object["spec"]["subnet"].as_str().or(object["spec"]["cidr"].as_str());
    let (network, _) = network.and_then(|text| Cidr::parse(text).ok())?;
    Some((name, network.range()))
}

/// Whether the action applies a pool with another network than before.
pub(super) fn moves(history: &[Action], action: Action) -> bool {
    let is_earlier =
        |it: &(&str, AddrRange)| network(action).is_some_and(|(name, range)| it.0 == name && it.1 != range);
    around(history, |it| it == action).any(|(before, ..)| networks(before).iter().any(is_earlier))
}
