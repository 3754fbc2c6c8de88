//! Two operators and one Lease: one of them acts, and the other takes over, whether the first goes by itself or is killed.

use std::time::Duration;

use ipam_e2e::cluster::Operator;
use ipam_e2e::eventually_blocking;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::api::{Api, IPPOOLS, SOON};
use crate::stage::{GROUP, plane, selecting};

/// The Lease lasts 15 s, and a candidate asks every 2 s and a little; the rest is for a busy machine.
const TAKES_OVER: Duration = Duration::from_secs(90);

fn holder(api: &Api, namespace: &str) -> Option<String> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/dd1643cf.nvidia.com");
    let lease = api.send("GET", &path, "application/json", &Value::Null).ok()?;
    lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty()).map(str::to_owned)
}

fn await_other_holder(api: &Api, namespace: &str, than: Option<&str>) -> String {
    eventually_blocking("somebody else leads", TAKES_OVER, || match holder(api, namespace) {
        Some(holder) if Some(holder.as_str()) != than => Ok(holder),
        other => Err(format!("{other:?} holds the Lease")),
    })
    .unwrap()
}

#[test]
fn one_of_two_operators_acts_and_the_other_takes_over_when_it_leaves_or_is_killed() {
    let plane = plane();
    let namespace = plane.namespace("election").unwrap();
    let api = Api::new(plane, &namespace);
    let lease = format!("--leader-elect-namespace={namespace}");
    let flags = ["--leader-elect", lease.as_str()];
    let mut first = Operator::start(plane, &namespace, &flags).unwrap();
    let leader = await_other_holder(&api, &namespace, None);
    let mut second = Operator::start(plane, &namespace, &flags).unwrap();
    let join = |short: &str| api.create_node(&format!("{namespace}-{short}"), &json!({GROUP: namespace}));
    join("a");
    join("b");
    // Room for one of the two: two operators at work would say so twice.
    api.create(IPPOOLS, "full", &selecting(json!({"subnet": "10.30.0.0/29", "perNodeBlockSize": 4}), &namespace));
    api.create(IPPOOLS, "p", &selecting(json!({"subnet": "10.31.0.0/24", "perNodeBlockSize": 4}), &namespace));
    let given = api.await_count(IPPOOLS, "p", 2);
    api.await_event("full", "NoFreeRanges");
    assert_eq!(holder(&api, &namespace).as_ref(), Some(&leader), "the second follows");
    assert!(second.process().output().contains(&leader), "and says whom");

    let status = first.process().terminate(SOON).unwrap();
    assert!(status.success(), "{status}");
    let next = await_other_holder(&api, &namespace, Some(&leader));
    join("c");
    let more = api.await_count(IPPOOLS, "p", 3);
    assert!(given.iter().all(|(node, block)| more.get(node) == Some(block)), "{given:?} became {more:?}");
    let third = Operator::start(plane, &namespace, &flags).unwrap();
    second.process().signal(Signal::KILL).unwrap();
    join("d");
    eventually_blocking("the Lease of the dead runs out", TAKES_OVER, || {
        // In this order: what was done before the Lease was seen in the dead one's hands was not done by its heir.
        let done = api.blocks(IPPOOLS, "p");
        let held = holder(&api, &namespace);
        if held.as_ref() != Some(&next) {
            return Ok(());
        }
        assert_eq!(done, more, "somebody acts while the Lease of the dead runs on");
        Err("it is held still")
    })
    .unwrap();
    let most = api.await_count(IPPOOLS, "p", 4);
    assert!(more.iter().all(|(node, block)| most.get(node) == Some(block)), "{more:?} became {most:?}");
    eventually_blocking("the pool without room has been reported once each for b, c and d", SOON, || {
        let said = api.events("full", "NoFreeRanges");
        if said.len() == 3 { Ok(()) } else { Err(format!("{said:?}")) }
    })
    .unwrap();
    drop(third);
}
