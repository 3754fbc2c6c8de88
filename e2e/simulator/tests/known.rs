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

/// The faults that are recognised by what a restore put in place. Their near misses are played.
const BY_STATE: [&str; 1] = ["never-used-grant-of-a-backup"];

/// The changes that make a near miss of each fault.
#[rustfmt::skip]
const NEAR: &[(&str, &[(&str, Change)])] = &[
    ("agent-is-down-after-a-restore", &[
        ("AgentKill", Without), ("AgentKill", Last), ("AgentKill", Other("node")), ("Restore", Without), ("Restore", First), ("Restore", Last),
        ("Restore", Become("Drain")), ("Backup", Without), ("Backup", Last), ("Crowd", Without), ("Crowd", First), ("Crowd", Last),
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
    ("agent-is-down-before-a-restore", &[
        ("PutStoreBack", Without), ("PutStoreBack", First), ("PutStoreBack", Last), ("PutStoreBack", Other("node")), ("Restore", Without),
        ("Restore", First), ("Restore", Become("Drain")), ("Backup", Without), ("Backup", Last), ("Cordon", Without), ("Cordon", First),
        ("Cordon", Last), ("Cordon", Other("node")), ("Crowd", Without), ("Crowd", First),
    ]),
    ("backup-without-the-lease", &[
        ("Backup", Without), ("Backup", Last), ("Restore", Without), ("Restore", First), ("Restore", Last), ("Crowd", Without), ("Crowd", First),
        ("Crowd", Last), ("Round", Without), ("Round", First), ("Work", Without), ("Work", First), ("NodeJoins", Without),
    ]),
    ("backup-without-the-lease.of-a-node-that-leaves", &[
        ("Backup", Without), ("Backup", Last), ("Restore", Without), ("Restore", First), ("Restore", Last), ("Crowd", Without), ("Crowd", First),
        ("Round", First), ("NodeLeaves", Without), ("NodeLeaves", First), ("NodeLeaves", Other("node")),
    ]),
    ("backup-that-seems-current", &[
        ("Jump", Without), ("Jump", Last), ("Backup", Without), ("Backup", Last), ("Restore", Without), ("Restore", First),
        ("Restore", Last), ("Crowd", Without), ("Crowd", First), ("Crowd", Last),
    ]),
    ("call-of-a-former-leader-after-a-wiped-status", &[
        ("WipeStatus", Without), ("WipeStatus", Last), ("WipeStatus", Other("pool")), ("Kill", Without), ("Kill", First), ("Orphan", Without),
        ("Orphan", First), ("Start", First),
    ]),
    ("leader-ends-before-it-marks-the-last-release", &[
        ("WithoutAgent", Without), ("WithoutAgent", Other("node")), ("Round", Without), ("NodeLeaves", Without), ("NodeLeaves", Last),
        ("Pass", Without), ("Pass", First),
    ]),
    ("leader-ends-before-it-marks-the-last-release.as-the-history-settles", &[
        ("WithoutAgent", Without), ("ForceAll", Without), ("ForceAll", Last), ("Kill", Without), ("Kill", First),
    ]),
    ("leader-ends-before-it-marks-the-last-release.as-its-lease-expires", &[
        ("WithoutAgent", Without), ("WithoutAgent", Other("node")), ("Cordon", Without), ("Cordon", Last), ("Round", Without), ("Round", First),
        ("Round", Other("replica")),
    ]),
    ("leader-ends-before-it-marks-the-last-release.of-an-edited-pool", &[
        ("WithoutAgent", Without), ("WithoutAgent", Other("node")), ("Apply", Without), ("Apply", Other("pool")), ("Apply", Last),
        ("Pass", Without), ("Pass", First),
    ]),
    ("last-record-deleted-without-a-leader.as-its-lease-expires", &[
        ("WithoutAgent", Without), ("WithoutAgent", Other("node")), ("Strip", Without), ("Strip", Other("pool")), ("Remove", Without),
        ("Remove", Other("pool")), ("Pass", Without), ("Pass", First), ("Round", Last),
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
    ("report-deleted-with-its-ipam-node.with-the-crds", &[
        ("Undefine", Without), ("Undefine", First), ("Undefine", Last), ("Restore", Without), ("Restore", First), ("Restore", Last),
        ("Backup", Without), ("Backup", Last), ("Crowd", Without), ("Crowd", Last),
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
            let is_found = if BY_STATE.contains(name) {
                simulator.play(&near).err().is_some_and(|near| found(&near) == Some(fault_of(name)))
            } else {
                found(&Failure { history: near, ..failure.clone() }) == Some(fault_of(name))
            };
            if is_found {
                wide.push(format!("{name}: {kind}, {change:?}"));
            }
        }
    }
    assert_eq!(wide, Vec::<String>::new());
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
        assert_eq!(found(&Failure { history: Vec::new(), unproven: Vec::new(), ..failure }), None, "{name}");
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
