//! What the definitions say of an edit: they refuse what moves all blocks while the status proves that some are held, and
//! nothing that `ipam-core` would let through, whoever may be the holder.

use std::cell::Cell;

use ipam_core::plan::{Assignment, Claim, ClaimSource, NodeRef, Usage, plan};
use ipam_core::{Held, PoolKind, displaced};
use ipam_crds::read::judge;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

use crate::support::{Judge, allocation, condition};

/// The fields that the definition complains of when `old` becomes `new`, by one who cannot write the status.
fn complaints(judge: &Judge, old: &Value, new: &Value, status: &Value) -> Vec<String> {
    let object = |spec: &Value| json!({"spec": spec, "status": status});
    judge.judge_edit(&object(new), Some(&object(old))).into_iter().map(|error| error.field).collect()
}

fn standing() -> Value {
    json!({
        "allocations": [allocation("n1", "10.0.0.1-10.0.0.4"), allocation("n2", "10.0.0.5-10.0.0.8")],
        "addresses": {"capacity": 8, "used": 1},
        "conditions": [condition("Degraded", false), condition("Ready", true)],
    })
}

/// The status with the value at `pointer` exchanged, or taken out.
fn with(pointer: &str, value: Option<Value>) -> Value {
    let mut status = standing();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = status.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    match value {
        Some(value) => drop(parent.insert(name.to_owned(), value)),
        None => drop(parent.remove(name).unwrap()),
    }
    status
}

fn pool(subnet: &str, size: i64) -> Value {
    json!({"subnet": subnet, "perNodeBlockSize": size})
}

#[test]
fn without_proof_that_blocks_of_this_spec_are_held_no_edit_is_refused() {
    let judge = Judge::of("IPPool");
    let (old, new) = (pool("10.0.0.0/24", 4), pool("10.1.0.0/24", 8));
    let said = |status: &Value| complaints(&judge, &old, &new, status);
    assert_eq!(said(&standing()), ["spec.perNodeBlockSize", "spec.subnet"]);
    let leaving =
        json!([{"nodeName": "n3", "startIP": "10.0.0.9", "endIP": "10.0.0.12", "since": "2026-01-01T00:00:00Z"}]);
    let unproven = [
        ("nothing is held", with("/addresses", Some(json!({"capacity": 8, "used": 0})))),
        ("no counts", with("/addresses", None)),
        ("no blocks", with("/allocations", None)),
        ("an empty list of blocks", with("/allocations", Some(json!([])))),
        ("the edit was deferred", with("/conditions", Some(json!([condition("Ready", false)])))),
        ("another condition", with("/conditions", Some(json!([condition("Degraded", true)])))),
        ("no conditions", with("/conditions", None)),
        ("a block is being taken back", with("/releasing", Some(leaving))),
        ("an empty status", json!({})),
    ];
    for (why, status) in unproven {
        assert_eq!(said(&status), [""; 0], "{why}");
    }
    let objects = [&new, &old].map(|spec| json!({ "spec": spec }));
    assert_eq!(judge.judge_edit(&objects[0], Some(&objects[1])), [], "no status");
}

#[test]
fn a_network_is_refused_only_if_it_has_none_of_the_blocks() {
    let judge = Judge::of("IPPool");
    let old = pool("10.0.0.0/24", 4);
    let said = |subnet: &str, status: &Value| complaints(&judge, &old, &pool(subnet, 4), status);
    assert_eq!(said("10.0.0.0/16", &standing()), [""; 0], "grown");
    assert_eq!(said("10.0.0.0/29", &standing()), [""; 0], "one block is left, and nobody can see who holds");
    assert_eq!(said("10.0.0.16/28", &standing()), ["spec.subnet"], "shrunk away from all");
    let elsewhere = json!([allocation("n1", "10.0.0.1-10.0.0.4"), allocation("n2", "10.9.0.5-10.9.0.8")]);
    let moved = with("/allocations", Some(elsewhere));
    assert_eq!(said("10.1.0.0/24", &moved), [""; 0], "a block is not of the old network either");
    let unreadable = with("/allocations", Some(json!([allocation("n1", "?-?")])));
    assert_eq!(said("10.1.0.0/24", &unreadable), [""; 0], "a block does not read");
    let broken = said("10.1.0.0", &standing());
    assert_eq!(broken, ["spec.subnet"], "what is no network is told once");
}

#[test]
fn whoever_leaves_size_and_network_alone_is_never_refused() {
    let judge = Judge::of("IPPool");
    let old = pool("10.0.0.0/24", 4);
    let mut new = old.clone();
    new["exclusions"] = json!([{"startIP": "10.0.0.1", "endIP": "10.0.0.200"}]);
    assert_eq!(complaints(&judge, &old, &new, &standing()), [""; 0]);
    // The operator: another status for the same spec.
    let write = json!({"spec": old, "status": with("/allocations", Some(json!([])))});
    assert_eq!(judge.judge_edit(&write, Some(&json!({"spec": old, "status": standing()}))), []);
}

#[test]
fn static_entries_are_judged_when_they_or_what_they_must_fit_into_change_and_only_then() {
    let judge = Judge::of("CIDRPool");
    let pool = |cidr: &str, prefixes: &[&str]| {
        let entries: Vec<Value> = prefixes.iter().map(|prefix| json!({"prefix": prefix})).collect();
        json!({"cidr": cidr, "perNodeNetworkPrefix": 24, "staticAllocations": entries})
    };
    let said = |old: &Value, new: &Value| complaints(&judge, old, new, &json!({}));
    let old = pool("10.0.0.0/16", &["10.9.0.0/24", "10.0.1.0/24"]);
    assert_eq!(judge.judge(&json!({"spec": old})).len(), 1, "a new one is judged");
    assert_eq!(said(&old, &old), [""; 0], "a status write pays for no entry");
    let mut routed = old.clone();
    routed["exclusions"] = json!([{"startIP": "10.0.0.1", "endIP": "10.0.0.1"}]);
    assert_eq!(said(&old, &routed), [""; 0]);
    for new in [pool("10.0.0.0/16", &["10.9.0.0/24"]), pool("10.0.0.0/15", &["10.9.0.0/24", "10.0.1.0/24"])] {
        assert_eq!(said(&old, &new), ["spec.staticAllocations"], "{new}");
    }
    assert_eq!(said(&old, &pool("10.0.0.0/12", &["10.9.0.0/24", "10.0.1.0/24"])), [""; 0]);
}

/// Networks near one another, of both families, some with host bits.
fn network(kind: PoolKind) -> impl Strategy<Value = String> {
    let is_flat = kind == PoolKind::IpPool;
    (0..3_u8, 0..8_u8, 20..=32_u8, prop::bool::weighted(0.2)).prop_map(move |(third, step, length, is_v6)| {
        let last = if is_flat { 32 * step + step % 3 } else { 0 };
        match is_v6 {
            true if is_flat => format!("fd00::{third}:{:x}/{}", u16::from(last), 96 + length),
            true => format!("fd00::{third}:0/{}", (80 + length).min(112)),
            false if is_flat => format!("10.0.{third}.{last}/{length}"),
            false => format!("10.0.{}.0/{}", third * 4, length.min(22)),
        }
    })
}

fn specs(kind: PoolKind) -> impl Strategy<Value = [Value; 2]> {
    let sizes = move || match kind {
        PoolKind::IpPool => prop::sample::select(vec![1, 2, 3, 4, 4, 4, 7]),
        PoolKind::CidrPool => prop::sample::select(vec![24, 24, 25, 26, 116, 116, 120]),
    };
    let spec = move |(network, size): (String, i64)| match kind {
        PoolKind::IpPool => pool(&network, size),
        PoolKind::CidrPool => json!({"cidr": network, "perNodeNetworkPrefix": size}),
    };
    let one = || (network(kind), sizes()).prop_map(spec);
    // Half of the edits change one field only.
    (one(), one(), 0..4_u8).prop_map(|(old, mut new, keep)| {
        let field = [["subnet", "cidr"], ["perNodeBlockSize", "perNodeNetworkPrefix"]];
        for name in field.get(usize::from(keep)).into_iter().flatten() {
            if let Some(value) = old.get(*name) {
                new[*name] = value.clone();
            }
        }
        [old, new]
    })
}

/// What the operator gives to three nodes by a spec, and the status that says so.
fn given(kind: PoolKind, spec: &Value) -> Option<(Vec<Claim>, Value)> {
    let (_, pool) = judge(kind, "p", spec).ok()?;
    let labels = std::collections::BTreeMap::new();
    let nodes = ["n1", "n2", "n3"].map(|name| NodeRef { name, labels: &labels });
    let made = plan(&pool, &nodes, &[], &|_| Usage::Unknown);
    let entry = |claim: &Claim| match kind {
        PoolKind::IpPool => allocation(&claim.node, &format!("{}-{}", claim.range.first(), claim.range.last())),
        PoolKind::CidrPool => {
            allocation(&claim.node, &format!("{}/{}", claim.range.first(), spec["perNodeNetworkPrefix"]))
        }
    };
    let claim = |one: &Assignment| Claim {
        node: one.node.clone(),
        range: one.block.range,
        gateway: None,
        source: ClaimSource::Status,
    };
    let claims: Vec<Claim> = made.assignments.iter().map(claim).collect();
    let mut status = standing();
    status["allocations"] = claims.iter().map(entry).collect();
    Some((claims, status))
}

/// Whether `ipam-core` refuses the edit whichever single node holds an address.
fn core_refuses(kind: PoolKind, [old, new]: &[Value; 2], claims: &[Claim]) -> bool {
    let (Ok((new, pool)), (old, _)) = (judge(kind, "p", new), ipam_crds::read::read(kind, old)) else { return true };
    claims.iter().all(|holder| {
        let usage = |node: &str| Held::Count(u64::from(node == holder.node));
        !displaced(&pool, Some(&old), &new, claims, &usage).is_empty()
    })
}

/// Whether the definition refuses an edit, which the core must refuse, too.
fn refused(judge: &Judge, kind: PoolKind, edit: &[Value; 2]) -> Result<bool, TestCaseError> {
    let Some((claims, status)) = given(kind, &edit[0]) else { return Ok(false) };
    let object = |spec: &Value| json!({"spec": spec, "status": status});
    let errors = judge.judge_edit(&object(&edit[1]), Some(&object(&edit[0])));
    let is_refused = errors.iter().any(|error| error.message.contains("while pods hold"));
    prop_assert!(!is_refused || core_refuses(kind, edit, &claims), "only the definition refuses {edit:?}: {errors:?}");
    Ok(is_refused)
}

fn assert_never_more_than_the_core(kind: PoolKind) {
    let judge = Judge::of(kind.kind());
    let config = ProptestConfig { source_file: Some(file!()), ..ProptestConfig::with_cases(200) };
    let of_this_run = TestRunner::new(config.clone()).run(&specs(kind), |edit| refused(&judge, kind, &edit).map(drop));
    assert_eq!(of_this_run, Ok(()));
    // The same edits in every run, so that the number of those that are refused is always the same.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let count = Cell::new(0);
    let of_every_run = TestRunner::new_with_rng(config, rng).run(&specs(kind), |edit| {
        count.set(count.get() + u32::from(refused(&judge, kind, &edit)?));
        Ok(())
    });
    assert_eq!(of_every_run, Ok(()));
    assert!(count.get() > 30, "only {} edits were refused", count.get());
}

#[test]
fn whatever_edit_of_an_ippool_the_definition_refuses_the_core_refuses_whoever_holds() {
    assert_never_more_than_the_core(PoolKind::IpPool);
}

#[test]
fn whatever_edit_of_a_cidrpool_the_definition_refuses_the_core_refuses_whoever_holds() {
    assert_never_more_than_the_core(PoolKind::CidrPool);
}
