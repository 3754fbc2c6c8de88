//! The recognisers of known faults are narrow: a history in which the cause is missing, comes too late or is of another node or pool
//! is not one of that fault. The histories of the files are played, and the near misses of [`BY_STATE`].

#![expect(clippy::unwrap_used, clippy::panic, reason = "the helpers of a test fail the test")]

use std::collections::{BTreeMap, BTreeSet};

use ipam_simulator::action::Action;
use ipam_simulator::broken::Broken;
use ipam_simulator::known::{FAULTS, class};
use ipam_simulator::recorded::{Recorded, fault_of, known_faults};
use ipam_simulator::{Failure, Simulator};
use serde_json::Value;

/// What a near miss does to the actions of one kind.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// They are left out.
    Without,
    /// They come before all others.
    First,
    /// They come after all others.
    Last,
    /// They are of another node, pool or replica: the field has another number.
    Other(&'static str),
    /// They are of this kind, without fields.
    Become(&'static str),
}
use Change::{Become, First, Last, Other, Without};

/// The faults and files that are recognised by state. Their near misses are played.
const BY_STATE: [&str; 3] = [
    "agent-is-down-after-a-restore.of-deleted-definitions",
    "never-used-grant-of-a-backup",
    "node-leaves-before-the-next-leader",
];

/// The changes that make a near miss of each fault.
#[rustfmt::skip]
const NEAR: &[(&str, &[(&str, Change)])] = &[
    ("agent-is-down-after-a-restore", &[
        ("AgentKill", Without), ("AgentKill", Last), ("AgentKill", Other("node")), ("Restore", Without), ("Restore", First), ("Restore", Last),
        ("Restore", Become("Drain")), ("Backup", Without), ("Backup", Last), ("Backup", First), ("Crowd", Without), ("Crowd", First), ("Crowd", Last),
    ]),
    ("agent-is-down-after-a-restore.of-deleted-definitions", &[
        ("Undefine", Without), ("Undefine", Last), ("AgentKill", Without), ("AgentKill", Other("node")), ("Kill", Without),
        ("Kill", First), ("Rest", Without),
    ]),
    ("agent-is-down-after-a-restore.of-a-node-that-has-not-heard", &[
        ("NodeLeaves", Without), ("NodeLeaves", First), ("NodeLeaves", Last), ("NodeLeaves", Other("node")), ("RestoreLive", Without),
        ("RestoreLive", First), ("Backup", Without), ("Backup", Last), ("Crowd", Without), ("Crowd", First),
    ]),
    ("agent-is-down-after-a-restore.of-a-node-that-leaves", &[
        ("NodeLeaves", Without), ("NodeLeaves", First), ("NodeLeaves", Other("node")), ("RestoreLive", Without), ("RestoreLive", First),
        ("RestoreLive", Last), ("Backup", Without), ("Backup", Last), ("Crowd", Without), ("Crowd", First), ("Rest", Without), ("Rest", First),
    ]),
    ("agent-is-down-after-a-restore.of-a-node-that-left", &[
        ("NodeLeaves", Without), ("NodeLeaves", First), ("NodeLeaves", Last), ("NodeLeaves", Other("node")), ("RestoreLive", Without),
        ("RestoreLive", First), ("RestoreLive", Last), ("Backup", Without), ("Backup", Last), ("Crowd", Without), ("Crowd", First),
        ("Round", Without),
    ]),
    ("agent-is-down-after-a-restore.that-hears-nothing", &[
        ("RestoreLive", Without), ("RestoreLive", First), ("RestoreLive", Last), ("Backup", Without), ("Backup", Last), ("Crowd", Without),
        ("Crowd", First), ("Start", First), ("Round", Without),
    ]),
    ("agent-is-down-after-a-restore.under-a-leader", &[
        ("AddAndCrash", Without), ("AddAndCrash", Other("node")), ("RestoreLive", Without), ("RestoreLive", First), ("RestoreLive", Last),
        ("Backup", Without), ("Backup", Last), ("Crowd", Without), ("Start", First),
    ]),
    ("agent-is-down-after-a-restore.whose-pod-starts-after-it", &[
        ("FailSync", Without), ("FailSync", Last), ("FailSync", Other("node")), ("RestoreLive", Without), ("RestoreLive", First),
        ("RestoreLive", Last), ("Backup", Without), ("Backup", Last), ("Crowd", Without), ("Crowd", First), ("Crowd", Last),
    ]),
    ("agent-is-down-after-a-restore.of-a-replica-that-starts-again", &[
        ("AgentKill", Without), ("AgentKill", Other("node")), ("RestoreLive", Without), ("RestoreLive", First), ("RestoreLive", Last),
        ("Backup", Without), ("Backup", Last), ("Crowd", Without), ("Start", First),
    ]),
    ("agent-is-down-before-a-restore", &[
        ("PutStoreBack", Without), ("PutStoreBack", First), ("PutStoreBack", Last), ("PutStoreBack", Other("node")), ("Restore", Without),
        ("Restore", First), ("Restore", Become("Drain")), ("Backup", Without), ("Backup", Last), ("Cordon", Without), ("Cordon", First),
        ("Cordon", Last), ("Cordon", Other("node")), ("Crowd", Without), ("Crowd", First),
    ]),
    ("agent-is-down-before-a-restore.under-a-leader", &[
        ("AgentKill", Without), ("AgentKill", Last), ("AgentKill", Other("node")), ("RestoreLive", Without), ("RestoreLive", First),
        ("Backup", Without), ("Backup", Last), ("NodeLeaves", Without), ("NodeLeaves", First), ("NodeLeaves", Last),
        ("NodeLeaves", Other("node")), ("Crowd", Without), ("Crowd", First),
    ]),
    ("backup-without-the-lease", &[
        ("Backup", Without), ("Backup", Last), ("Restore", Without), ("Restore", First), ("Restore", Last), ("Crowd", Without), ("Crowd", First),
        ("Crowd", Last), ("Round", Without), ("Round", First), ("Work", Without), ("Work", First), ("NodeJoins", Without),
    ]),
    ("backup-without-the-lease.of-a-node-that-leaves", &[
        ("Backup", Without), ("Backup", Last), ("Restore", Without), ("Restore", First), ("Restore", Last), ("Crowd", Without), ("Crowd", First),
        ("Round", First), ("NodeLeaves", Without), ("NodeLeaves", First), ("NodeLeaves", Other("node")),
    ]),
    ("backup-without-the-lease.under-a-leader", &[
        ("Backup", Without), ("Backup", Last), ("RestoreLive", Without), ("RestoreLive", First), ("RestoreLive", Last), ("Crowd", Without),
        ("Crowd", First), ("Round", Without), ("NodeJoins", Without),
    ]),
    ("backup-that-seems-current", &[
        ("Jump", Without), ("Jump", Last), ("Backup", Without), ("Backup", Last), ("Restore", Without), ("Restore", First),
        ("Restore", Last), ("Crowd", Without), ("Crowd", First), ("Crowd", Last),
    ]),
    ("call-of-a-former-leader-after-a-wiped-status", &[
        ("WipeStatus", Without), ("WipeStatus", Last), ("WipeStatus", Other("pool")), ("Orphan", Without), ("Orphan", First),
        ("Start", First), ("Decide", Without),
    ]),
    ("call-of-a-former-leader-after-a-wiped-status.of-an-ipam-node", &[
        ("WipeStatus", Without), ("WipeStatus", Last), ("Kill", Without), ("Kill", First), ("Orphan", Without), ("Orphan", First),
        ("Start", First), ("NodeJoins", Without),
    ]),
    ("call-of-a-former-leader-after-a-wiped-status.of-a-larger-block", &[
        ("WipeStatus", Without), ("WipeStatus", Last), ("WipeStatus", Other("pool")), ("Orphan", Without), ("Orphan", First), ("Decide", Without),
        ("AddByName", Without), ("AddByName", Other("node")), ("Pass", Without),
    ]),
    ("call-of-a-former-leader-after-a-wiped-status.whose-lease-expires", &[
        ("WipeStatus", Without), ("WipeStatus", Last), ("WipeStatus", Other("pool")), ("Start", First), ("Orphan", Without), ("Orphan", First),
        ("Decide", Without), ("Rest", Without), ("Rest", First),
    ]),
    ("call-of-a-former-leader-after-two-edits", &[
        ("Orphan", Without), ("Orphan", First), ("Orphan", Last), ("Decide", Without), ("Decide", First), ("Decide", Last), ("Apply", Without),
        ("Apply", First), ("Apply", Other("pool")), ("Round", Without), ("Crowd", Without), ("Crowd", First),
    ]),
    ("call-of-a-former-leader-after-two-edits.that-it-has-not-learned", &[
        ("Orphan", Without), ("Orphan", First), ("Orphan", Last), ("Apply", Without), ("Apply", First),
        ("Apply", Other("pool")), ("Decide", Without), ("Decide", First),
    ]),
    ("leader-ends-before-it-marks-the-last-release", &[
        ("WithoutAgent", Without), ("WithoutAgent", Other("node")), ("NodeLeaves", Without), ("NodeLeaves", Last), ("Pass", Without),
        ("Pass", First), ("Work", Without),
    ]),
    ("leader-ends-before-it-marks-the-last-release.as-its-lease-expires", &[
        ("WithoutAgent", Without), ("WithoutAgent", Other("node")), ("Rest", Without), ("Rest", First), ("Cordon", Without),
    ]),
    ("last-record-deleted-without-a-leader.as-its-lease-expires", &[
        ("WithoutAgent", Without), ("WithoutAgent", Other("node")), ("Strip", Without), ("Strip", Other("pool")), ("Remove", Without),
        ("Remove", Other("pool")), ("Pass", Without), ("Pass", First), ("Round", Last),
    ]),
    ("last-record-deleted-without-a-leader.as-a-backup-is-restored", &[
        ("WithoutAgent", Without), ("WithoutAgent", Other("node")), ("WipeStatus", Without), ("WipeStatus", First), ("WipeStatus", Last),
        ("WipeStatus", Other("pool")), ("RestoreLive", Without), ("RestoreLive", First),
    ]),
    ("last-record-deleted-without-a-leader", &[
        ("WithoutAgent", Without), ("WithoutAgent", Other("node")), ("Strip", Without), ("Strip", Other("pool")), ("Remove", Without),
        ("Remove", First), ("Remove", Other("pool")), ("Pass", Without),
    ]),
    ("never-used-grant-of-a-backup", &[
        ("PutStoreBack", Without), ("Restore", Without), ("Restore", First), ("Backup", Without), ("Backup", First), ("Backup", Last),
        ("Crowd", Without), ("Cordon", Without), ("Cordon", First), ("Cordon", Other("node")),
    ]),
    ("node-leaves-before-the-next-leader", &[
        ("Undefine", Without), ("Undefine", Last), ("NodeLeaves", Without), ("NodeLeaves", First), ("NodeLeaves", Last), ("NodeLeaves", Other("node")),
        ("Kill", Without), ("Kill", First), ("Kill", Last), ("Add", Without),
    ]),
    ("node-leaves-before-the-next-leader.after-a-restore", &[
        ("NodeLeaves", Without), ("NodeLeaves", First), ("NodeLeaves", Last), ("NodeLeaves", Other("node")), ("Restore", Without),
        ("Restore", First), ("Restore", Last), ("Backup", Without), ("Backup", First), ("Backup", Last), ("Crowd", Without),
    ]),
    ("node-leaves-before-the-next-leader.after-two-leaders", &[
        ("Undefine", Without), ("NodeLeaves", Without), ("NodeLeaves", Other("node")), ("AddAndCut", Without),
    ]),
    ("pool-and-ipam-node-deleted-by-hand.beside-a-restore", &[
        ("Strip", Without), ("Strip", Other("pool")), ("Remove", Without), ("Remove", Other("pool")), ("RemoveIpamNode", Without),
        ("RemoveIpamNode", First), ("RemoveIpamNode", Other("node")), ("Crowd", Without), ("Crowd", First),
    ]),
    ("pool-and-ipam-node-deleted-by-hand", &[
        ("Strip", Without), ("Strip", Other("pool")), ("Remove", Without), ("Remove", Other("pool")), ("RemoveIpamNode", Without), ("RemoveIpamNode", First),
        ("RemoveIpamNode", Other("node")), ("Crowd", Without),
    ]),
    ("pool-and-ipam-node-deleted-by-hand.of-a-pool-that-waited", &[
        ("Strip", Without), ("Strip", Other("pool")), ("Remove", Without), ("Remove", Other("pool")), ("RemoveIpamNode", Without),
        ("RemoveIpamNode", First), ("RemoveIpamNode", Other("node")), ("Add", Without),
    ]),
    ("report-deleted-with-its-ipam-node", &[
        ("RemoveIpamNode", Without), ("RemoveIpamNode", First), ("RemoveIpamNode", Last), ("RemoveIpamNode", Other("node")), ("Restore", Without),
        ("Restore", First), ("Restore", Last), ("Backup", Without), ("Backup", Last), ("Crowd", Without), ("Crowd", Last), ("Work", Without),
    ]),
    ("report-deleted-with-its-ipam-node.after-the-crds", &[
        ("Undefine", Without), ("Undefine", First), ("Undefine", Last), ("RemoveIpamNode", Without), ("RemoveIpamNode", First),
        ("RemoveIpamNode", Other("node")), ("Crowd", Without), ("Crowd", Last),
    ]),
    ("report-deleted-with-its-ipam-node.as-a-lease-expires", &[
        ("Undefine", Without), ("Undefine", Last), ("RemoveIpamNode", Without), ("RemoveIpamNode", First), ("RemoveIpamNode", Other("node")),
        ("Crowd", Without), ("Crowd", Last),
    ]),
    ("report-deleted-with-its-ipam-node.of-a-node-that-leaves", &[
        ("Undefine", Without), ("Undefine", Last), ("RemoveIpamNode", Without), ("RemoveIpamNode", First), ("RemoveIpamNode", Last),
        ("RemoveIpamNode", Other("node")), ("NodeLeaves", Without), ("NodeLeaves", First), ("NodeLeaves", Other("node")), ("Crowd", Without),
    ]),
    ("report-deleted-with-its-ipam-node.with-the-crds", &[
        ("Undefine", Without), ("Undefine", First), ("Undefine", Last), ("Restore", Without), ("Restore", First), ("Restore", Last),
        ("Backup", Without), ("Backup", Last), ("Crowd", Without), ("Crowd", Last),
    ]),
    ("store-lost-beside-a-restore.before-the-release", &[
        ("Wipe", Without), ("Wipe", First), ("Wipe", Other("node")), ("NodeLeaves", Without), ("NodeLeaves", First), ("NodeLeaves", Last),
        ("NodeLeaves", Other("node")), ("Restore", Without), ("Restore", First), ("Restore", Last), ("Backup", Without), ("Backup", Last),
        ("Crowd", Without), ("Crowd", First),
    ]),
    ("store-lost-beside-a-restore.of-a-node-that-terminated-before", &[
        ("PutStoreBack", Without), ("PutStoreBack", First), ("PutStoreBack", Other("node")), ("NodeTerminates", Without), ("NodeTerminates", Last),
        ("NodeTerminates", Other("node")), ("Restore", Without), ("Restore", First), ("Backup", Without), ("Backup", Last), ("Crowd", Without),
    ]),
    ("store-lost-beside-a-restore.of-a-node-that-left-before", &[
        ("PutStoreBack", Without), ("PutStoreBack", First), ("PutStoreBack", Other("node")), ("NodeLeaves", Without), ("NodeLeaves", First),
        ("NodeLeaves", Last), ("NodeLeaves", Other("node")), ("Restore", Without), ("Restore", First), ("Backup", Without), ("Crowd", Without),
    ]),
    ("store-lost-beside-a-restore", &[
        ("Wipe", Without), ("Wipe", First), ("Wipe", Last), ("Wipe", Other("node")), ("Relabel", Without), ("Relabel", First), ("Relabel", Last),
        ("Relabel", Other("node")), ("Restore", Without), ("Restore", First), ("Restore", Last), ("Backup", Last), ("Crowd", Without), ("Crowd", First),
    ]),
];

#[test]
fn a_near_miss_is_not_the_known_fault() {
    let (simulator, failures) = (Simulator::new().unwrap(), failures());
    let named: BTreeSet<&str> = NEAR.iter().map(|(name, _)| fault_of(name)).collect();
    let faults: BTreeSet<&str> = FAULTS.iter().map(|fault| fault.name).collect();
    assert_eq!(named, faults, "each known fault has near misses");
    let mut wide = Vec::new();
    for (name, changes) in NEAR {
        let failure = &failures[*name];
        assert_eq!(found(failure), Some(fault_of(name)), "{name}, unchanged: {}", failure.law);
        for &(kind, change) in *changes {
            let near = changed(&failure.history, kind, change);
            assert_ne!(near, failure.history, "{name}: {kind}, {change:?} must change the history");
            if is_recognised(&simulator, name, near, failure) {
                wide.push(format!("{name}: {kind}, {change:?}"));
            }
        }
    }
    assert_eq!(wide, Vec::<String>::new());
}

/// Actions that start pods.
const PODS: &[&str] = &["Add", "AddAndCrash", "AddAndCut", "AddByName", "AddTwo", "Crowd"];
/// Actions that put a backup in place.
const RESTORE: &[&str] = &["Restore", "RestoreLive"];
/// Actions after which an agent does not run or cannot write.
const DOWN: &[&str] = &[
    "AddAndCrash",
    "AddAndCut",
    "AgentHearAndKill",
    "AgentKill",
    "Disk",
    "FailSync",
    "PowerCut",
    "PutStoreBack",
    "Wipe",
];

/// What each fault needs, in any order of its events: some action of each list.
#[rustfmt::skip]
const NEEDS: &[(&str, &[&[&str]])] = &[
    ("agent-is-down-after-a-restore", &[&["Backup", "Undefine"], &["Restore", "RestoreLive", "Undefine"], PODS, &["Round", "Work"]]),
    ("agent-is-down-before-a-restore", &[DOWN, &["Backup"], RESTORE, PODS]),
    ("backup-that-seems-current", &[&["Jump"], &["Backup"], RESTORE, PODS]),
    ("backup-without-the-lease", &[&["Backup"], RESTORE, PODS]),
    ("call-of-a-former-leader-after-a-wiped-status", &[&["WipeStatus"], &["Freeze", "Kill", "Pass", "Rest", "Stop"], &["Orphan"]]),
    ("call-of-a-former-leader-after-two-edits", &[&["Freeze", "Kill", "Rest", "Stop"], &["Orphan"], &["Apply"], PODS]),
    ("last-record-deleted-without-a-leader", &[&["WithoutAgent"], &["Strip", "WipeStatus"]]),
    ("leader-ends-before-it-marks-the-last-release", &[&["WithoutAgent"], &["Cordon", "NodeLeaves"]]),
    ("never-used-grant-of-a-backup", &[&["Backup"], RESTORE, PODS]),
    ("node-leaves-before-the-next-leader", &[&["Restore", "RestoreLive", "Undefine"], &["NodeLeaves"], PODS]),
    ("pool-and-ipam-node-deleted-by-hand", &[&["Strip"], &["Remove"], &["RemoveIpamNode"], PODS]),
    ("report-deleted-with-its-ipam-node", &[&["RemoveIpamNode", "Undefine"], PODS]),
    ("store-lost-beside-a-restore", &[&["PutStoreBack", "Wipe"], &["Backup"], RESTORE, PODS]),
];

#[test]
fn no_order_of_a_known_fault_is_recognised_without_what_the_fault_needs() {
    let (simulator, failures) = (Simulator::new().unwrap(), failures());
    let mut wide = Vec::new();
    for (name, failure) in &failures {
        let fault = fault_of(name);
        let (_, needs) = NEEDS.iter().find(|(of, _)| *of == fault).unwrap();
        for kinds in *needs {
            let near = kinds.iter().fold(failure.history.clone(), |history, kind| changed(&history, kind, Without));
            assert_ne!(near, failure.history, "{name} has none of {kinds:?}");
            if is_recognised(&simulator, name, near, failure) {
                wide.push(format!("{name}: without {kinds:?}"));
            }
        }
    }
    assert_eq!(wide, Vec::<String>::new());
}

/// Faults that need a report that is missing, or one that does not prove a grant.
const UNREPORTED: [&str; 6] = [
    "agent-is-down-after-a-restore",
    "backup-without-the-lease",
    "never-used-grant-of-a-backup",
    "node-leaves-before-the-next-leader",
    "pool-and-ipam-node-deleted-by-hand",
    "report-deleted-with-its-ipam-node",
];

#[test]
fn a_fault_of_missing_reports_is_not_recognised_when_all_have_reported() {
    let mut wide = Vec::new();
    for (name, failure) in failures().into_iter().filter(|(name, _)| UNREPORTED.contains(&fault_of(name))) {
        if found(&Failure { evidence: Box::default(), ..failure }) == Some(fault_of(&name)) {
            wide.push(name);
        }
    }
    assert_eq!(wide, Vec::<String>::new());
}

/// Whether the recogniser names the fault of this file, if the history breaks the law as `failure` does. A fault that is recognised by a state
/// is played.
fn is_recognised(simulator: &Simulator, name: &str, history: Vec<Action>, failure: &Failure) -> bool {
    let fault = fault_of(name);
    if BY_STATE.contains(&name) || BY_STATE.contains(&fault) {
        return simulator.play(&history).err().is_some_and(|near| found(&near) == Some(fault));
    }
    found(&Failure { history, ..failure.clone() }) == Some(fault)
}

#[test]
fn a_failure_of_others_is_not_the_known_fault() {
    for (name, failure) in failures() {
        let mut of_others = failure.law.what.replace("node-", "node-9").replace("10.", "11.").replace("fd0", "fd1");
        for pool in ["blue", "green", "red", "six", "lake", "east", "west"] {
            of_others = of_others.replace(pool, "other");
        }
        let law = Broken { law: failure.law.law, what: of_others };
        let is_found = found(&Failure { law, ..failure.clone() }) == Some(fault_of(&name));
        assert!(!is_found, "{name}: {}", failure.law);
        for law in ["no-panic", "agent-keeps-its-rules"] {
            let law = Broken { law, what: failure.law.what.clone() };
            assert_eq!(found(&Failure { law, ..failure.clone() }), None, "{name}");
        }
        assert_eq!(found(&Failure { history: Vec::new(), evidence: Box::default(), ..failure }), None, "{name}");
    }
}

fn found(failure: &Failure) -> Option<&'static str> {
    class(failure).map(|fault| fault.name)
}

/// The failure of each file.
fn failures() -> BTreeMap<String, Failure> {
    let simulator = Simulator::new().unwrap();
    let recorded = known_faults().unwrap();
    let play = |(name, recorded): (String, Recorded)| match simulator.play(&recorded.history) {
        Err(failure) => (name, failure),
        Ok(_) => panic!("{name} breaks no law any more"),
    };
    recorded.into_iter().map(play).collect()
}

/// The history after the change of all actions of the kind.
fn changed(history: &[Action], kind: &str, change: Change) -> Vec<Action> {
    let (these, others): (Vec<Action>, Vec<Action>) = history.iter().partition(|action| is_of(**action, kind));
    match change {
        Without => others,
        First => [these, others].concat(),
        Last => [others, these].concat(),
        Other(field) => map(history, kind, |action| other(action, field)),
        Become(name) => map(history, kind, |_| serde_json::from_value(as_value(name)).unwrap()),
    }
}

/// An action of this name: one without fields, or of the first node.
fn as_value(name: &str) -> Value {
    if name == "Drain" { serde_json::json!({ "Drain": {"node": 0} }) } else { Value::from(name) }
}

fn map(history: &[Action], kind: &str, change: impl Fn(Action) -> Action) -> Vec<Action> {
    history.iter().map(|action| if is_of(*action, kind) { change(*action) } else { *action }).collect()
}

fn is_of(action: Action, kind: &str) -> bool {
    let text = format!("{action:?}");
    text.split([' ', '(']).next() == Some(kind)
}

/// The same action of another node, pool or spec; of the first replica.
fn other(action: Action, field: &str) -> Action {
    let mut value = serde_json::to_value(action).unwrap();
    let fields = value.as_object_mut().unwrap().values_mut().next().unwrap();
    let number = fields[field].as_u64().unwrap();
    fields[field] = Value::from(match field {
        "replica" => 0,
        "node" => (number + 4) % 12,
        _ => (number + 3) % 256,
    });
    serde_json::from_value(value).unwrap()
}
