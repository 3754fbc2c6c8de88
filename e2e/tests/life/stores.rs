//! An agent's store that is deleted while pods run.

use ipam_e2e::eventually_blocking;
use ipam_e2e::netns::CniError;
use serde_json::json;

use crate::api::{IPAMNODES, IPPOOLS, SOON};
use crate::stage::{Resident, Stage, ip_spec};

/// Where the agent finds the machine's UUID on this node.
const UUID: &str = "/etc/cni/machine-uuid";

/// Two checks find that no pod has an address, one second apart.
fn start(stage: &mut Stage) {
    let flags = ["--stale-ip-check-interval=1s", "--stale-ip-check-count-before-release=1"];
    stage.start_agent(0, &[&flags[..], &[&format!("--system-uuid-file={UUID}")]].concat());
}

/// Waits until the condition of the node's IPAMNode has this reason, and names just these addresses.
fn await_condition(stage: &Stage, reason: &str, with: &[&Resident], without: &[&Resident]) {
    let bare = |pod: &&Resident| pod.address().split('/').next().unwrap_or_default().to_owned();
    eventually_blocking(&format!("the condition is {reason}"), SOON, || {
        let condition = stage.api.get(IPAMNODES, stage.name(0))["status"]["conditions"][0].clone();
        let message = crate::api::text(&condition["message"]);
        let names = |pod: &&Resident| message.contains(&bare(pod));
        let is_it = condition["reason"] == reason && with.iter().all(names) && !without.iter().any(names);
        if is_it { Ok(()) } else { Err(condition.to_string()) }
    })
    .unwrap();
}

/// A pod with its object and with the annotation that Multus writes.
fn shown(stage: &Stage) -> Resident {
    let mut pod = stage.registered(0, IPPOOLS, "p");
    pod.add().unwrap();
    let ip = pod.address();
    let status = json!([{"name": "default/p", "interface": "net1", "ips": [ip.split('/').next()]}]).to_string();
    let annotation = format!("k8s.v1.cni.cncf.io/network-status={status}");
    stage.kubectl(&["annotate", "pod", pod.name(), &annotation], "");
    pod
}

#[test]
fn addresses_of_a_deleted_store_come_back_when_their_pods_are_gone() {
    let mut stage = Stage::set("wiped", 1);
    stage.stop_agent(0);
    stage.on_node(0, &["sh", "-c", &format!("echo 11111111-1111-4111-8111-111111111111 > {UUID}")]);
    start(&mut stage);
    stage.pool(IPPOOLS, "p", ip_spec("10.97.0.0/29", 4));
    let (goes, stays) = (shown(&stage), shown(&stage));
    stage.await_held(0, &[&goes, &stays]);
    stage.stop_agent(0);
    stage.on_node(0, &["rm", "-r", "/var/lib/cni/nv-ipam/store.d"]);
    start(&mut stage);
    await_condition(&stage, "StoreWentBack", &[], &[]);

    let others: Vec<_> = (0..2).map(|_| shown(&stage)).collect();
    for other in &others {
        assert!(![&goes, &stays].iter().any(|pod| pod.address() == other.address()), "{} is in use", other.address());
    }
    let exhausted = |stage: &Stage| match stage.registered(0, IPPOOLS, "p").add() {
        Err(CniError::Refused { code, .. }) => code,
        other => panic!("not refused: {other:?}"),
    };
    assert_eq!(exhausted(&stage), 11);

    // The runtime deletes a pod of which the agent has no record.
    goes.del();
    stage.forget(&goes);
    await_condition(&stage, "StoreWentBack", &[&stays], &[&goes]);
    let heir = shown(&stage);
    assert_eq!(heir.address(), goes.address());
    assert_eq!(exhausted(&stage), 11);

    stage.forget(&stays);
    await_condition(&stage, "Serving", &[], &[]);
    assert_eq!(shown(&stage).address(), stays.address());
}
