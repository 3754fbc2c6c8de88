//! Pools that are deleted while pods hold addresses of them, and pools over the same addresses.

use crate::api::IPPOOLS;
use crate::stage::{Stage, ip_spec};

#[test]
fn a_deleted_pool_waits_for_its_pods_and_one_command_ends_the_waiting() {
    let mut stage = Stage::set("deleted", 2);
    let [first, second] = [0, 1].map(|index| stage.name(index).to_owned());
    stage.pool(IPPOOLS, "p", ip_spec("10.92.0.0/24", 4));
    let pods = [stage.resident(0, IPPOOLS, "p"), stage.resident(1, IPPOOLS, "p")];
    stage.api.delete(IPPOOLS, "p");
    let said = stage.told(IPPOOLS, "p", ("Ready", "False", "Deleting"));
    assert!(said.contains(&format!("{first} (1 in use)")) && said.contains(&format!("{second} (1 in use)")), "{said}");
    assert!(stage.api.await_event("p", "PoolInUse").contains("The condition Ready names them"));
    let refused = stage.api.try_create(IPPOOLS, "p", &stage.for_us(ip_spec("10.93.0.0/24", 4))).unwrap_err();
    assert_eq!(refused.code, 409, "nothing can be made under its name meanwhile: {}", refused.message);
    assert!(refused.message.contains("being deleted"), "{}", refused.message);

    // The leader dies; the other goes on where it was.
    stage.crash_leader();
    pods[0].del();
    stage.await_releasing(IPPOOLS, "p", &[&second]);
    // The second node never speaks again.
    stage.kill_agent(1);
    let said = stage.told(IPPOOLS, "p", ("Releasing", "True", "BlocksInUse"));
    let (_, command) = said.rsplit_once("kubectl ").expect("a command to paste");
    let command = command.replace("NODE", &second);
    stage.kubectl(&command.split_whitespace().collect::<Vec<_>>(), "");
    stage.await_gone(IPPOOLS, "p");
    let lost = stage.api.await_event("p", "ForcedRelease");
    assert!(lost.contains(&second) && lost.contains("10.92.0.5-10.92.0.8") && lost.contains("1 in use"), "{lost}");
    stage.api.await_ipam_node(&second, 0);
}

#[test]
fn a_deleted_pool_waits_for_no_node_without_agent() {
    let stage = Stage::set("agentless", 1);
    let without_agent = stage.join("x");
    stage.pool(IPPOOLS, "p", ip_spec("10.96.0.0/24", 4));
    stage.api.await_count(IPPOOLS, "p", 2);
    stage.api.await_ipam_node(&without_agent, 1);
    let pod = stage.resident(0, IPPOOLS, "p");
    stage.api.delete(IPPOOLS, "p");
    stage.await_releasing(IPPOOLS, "p", &[stage.name(0)]);
    pod.del();
    stage.await_gone(IPPOOLS, "p");
    stage.api.await_ipam_node(&without_agent, 0);
    for reason in ["ForcedRelease", "GraceExpired"] {
        assert!(stage.api.events("p", reason).is_empty(), "{reason}");
    }
}

#[test]
fn of_two_pools_over_the_same_addresses_the_older_serves_until_it_is_gone() {
    let stage = Stage::set("overlap", 1);
    let node = stage.name(0).to_owned();
    stage.pool(IPPOOLS, "older", ip_spec("10.94.0.0/24", 4));
    let pod = stage.resident(0, IPPOOLS, "older");
    // An age is told in seconds, and of two pools of one second the name decides: "older" comes before "younger".
    stage.api.create(IPPOOLS, "younger", &stage.for_us(ip_spec("10.94.0.0/23", 8)));
    let said = stage.told(IPPOOLS, "younger", ("Ready", "False", "Overlap"));
    assert!(said.contains("older"), "{said}");
    assert_eq!(stage.api.blocks(IPPOOLS, "younger").len(), 0);
    stage.api.delete(IPPOOLS, "older");
    stage.api.await_condition(IPPOOLS, "older", ("Ready", "False", "Deleting"));
    assert_eq!(stage.api.blocks(IPPOOLS, "younger").len(), 0, "not while an address is held");
    pod.check();
    pod.del();
    stage.await_gone(IPPOOLS, "older");
    stage.api.await_blocks(IPPOOLS, "younger", &[(&node, "10.94.0.1-10.94.0.8")]);
    stage.api.await_condition(IPPOOLS, "younger", ("Ready", "True", "Valid"));
}
