//! A store that is behind the report that the object shows.

use ipam_node_agent::identity::Identity;
use ipam_node_agent::standing::DISCARD;
use ipam_node_agent::status::Report;
use ipam_node_agent::watch::InForce;
use ipam_node_store::Position;
use serde_json::Value;
use serde_json::json;
use tempfile::TempDir;

use crate::common::{Node, blue, parameters, with_ips};
use crate::following::{AHEAD, Following, NEVER};
use crate::server::{blocks, line, list_of, stream};

/// The object of another life: epoch 2 of a journal, .2 and, by its name, .9 held.
fn reported_before(uid: &str) -> Value {
    let mut list = list_of(4, &blocks());
    list["items"][0]["metadata"]["uid"] = json!(uid);
    list["items"][0]["status"] = json!({"observedGeneration": 4, "ledger": {"epoch": 2, "sequence": 7},
        "pools": [{"name": "blue", "poolType": "IPPool", "startIP": "192.168.0.1", "endIP": "192.168.0.4",
            "used": 2, "capacity": 3, "held": [{"startIP": "192.168.0.2", "endIP": "192.168.0.2"},
                {"startIP": "192.168.0.9", "endIP": "192.168.0.9"}]}]});
    list
}

fn went_back(told: &InForce) -> bool {
    told.problems.first().is_some_and(|problem| problem.reason == "StoreWentBack")
}

/// The same object in another version, with this value of the annotation.
fn annotated(version: &str, value: &str) -> Value {
    let mut list = reported_before("u1");
    list["items"][0]["metadata"]["resourceVersion"] = json!(version);
    list["items"][0]["metadata"]["annotations"] = json!({DISCARD: value});
    list
}

/// An agent that finds its journal behind the report.
async fn behind() -> Following {
    let mut agent =
        started(tempfile::tempdir().unwrap(), Position { epoch: 2, sequence: 6 }, &reported_before("u1")).await;
    agent.until(|told| went_back(told) && told.standing.is_some()).await;
    agent
}

/// The start of an agent whose journal had come to `position`. The API server lists this.
async fn started(directory: TempDir, position: Position, list: &Value) -> Following {
    started_in(directory, position, list, Identity::default()).await
}

/// The same on this machine and in this boot.
async fn started_in(directory: TempDir, position: Position, list: &Value, here: Identity) -> Following {
    let node = Node::open_at(directory, Some(position), here).await;
    let mut agent = Following::with(node, None, Some(NEVER)).await;
    agent.server.call().await.answer(200, list);
    agent
}

/// The next start, whose journal is ahead of the report that stands. The API server lists this.
async fn restarted(agent: Following, list: &Value) -> Following {
    started(agent.stop().await, AHEAD, list).await
}

async fn report(agent: &Following) -> Report {
    let in_force = agent.in_force.borrow().clone().unwrap();
    Report::new(&in_force, &agent.node.allocator.holdings().await.unwrap()).unwrap()
}

#[tokio::test]
async fn addresses_of_a_report_ahead_of_the_journal_stay_in_use_until_they_are_discarded() {
    let agent = behind().await;
    agent.confirm().await;
    for named in ["192.168.0.2", "192.168.0.9"] {
        let refused = agent.node.add(with_ips(parameters(&["blue"], "c1"), &[named])).await.unwrap_err();
        assert!(refused.message().contains("without a record"), "{refused}");
    }
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.3/16");
    let first = report(&agent).await;
    let held: Vec<_> = first.pools[0].held.iter().map(|run| (run.start_ip.as_str(), run.end_ip.as_str())).collect();
    assert_eq!(
        (first.pools[0].used, &held[..]),
        (3, &[("192.168.0.2", "192.168.0.3"), ("192.168.0.9", "192.168.0.9")][..])
    );
    let command = "kubectl -n kube-system annotate ipamnode node1 --overwrite nv-ipam.nvidia.com/discard-report=4";
    assert!(first.ready.0 == "StoreWentBack" && first.ready.1.ends_with(command), "{:?}", first.ready);

    // The next start is ahead of the report, and has the addresses from its disk.
    agent.node.del(parameters(&["blue"], "c1")).await.unwrap();
    let mut agent = restarted(agent, &reported_before("u1")).await;
    agent.until(|told| went_back(told) && told.standing.is_some()).await;
    let lines = stream(agent.server.call().await);
    lines.send(line("MODIFIED", &reported_before("u2")["items"][0])).unwrap();
    agent.until(|told| told.spec.uid == "u2").await;
    lines.send(line("MODIFIED", &annotated("5", "5")["items"][0])).unwrap();
    agent.until(|told| told.standing.as_ref().is_some_and(|standing| standing.resource_version == "5")).await;
    assert!(went_back(agent.in_force.borrow().as_ref().unwrap()), "another object or another value discards nothing");
    assert!(agent.noted().lost().is_some());

    // Only the annotation changes.
    lines.send(line("MODIFIED", &annotated("6", "4")["items"][0])).unwrap();
    agent.until(|told| told.problems.is_empty()).await;
    assert_eq!(agent.noted().lost(), None, "the next start does not have them");
    assert_eq!(report(&agent).await.pools[0].used, 0);
    agent.confirm().await;
    agent.node.add(with_ips(parameters(&["blue"], "c1"), &["192.168.0.2"])).await.unwrap();
}

#[tokio::test]
async fn addresses_that_were_discarded_while_the_agent_was_away_are_free_at_its_start() {
    let agent = behind().await;
    let mut agent = restarted(agent, &annotated("5", "4")).await;
    agent.until(|told| told.standing.is_some()).await;
    assert_eq!(agent.in_force.borrow().as_ref().unwrap().problems, []);
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
}

#[tokio::test]
async fn an_annotation_that_stays_discards_no_later_report() {
    let mut agent = started(tempfile::tempdir().unwrap(), Position::default(), &annotated("8", "4")).await;
    agent.until(|told| went_back(told) && told.standing.is_some()).await;
    assert!(report(&agent).await.ready.1.ends_with("discard-report=8"));
}

#[tokio::test]
async fn discarded_addresses_are_reported_as_free_only_once_the_disk_knows_it() {
    let mut agent = behind().await;
    agent.node.disk.set_full(true);
    let lines = stream(agent.server.call().await);
    lines.send(line("MODIFIED", &annotated("5", "4")["items"][0])).unwrap();
    agent.until(|told| !went_back(told)).await;
    assert_eq!(agent.in_force.borrow().as_ref().unwrap().standing, None, "nothing to report to");
    assert!(agent.noted().lost().is_some());
    agent.node.disk.set_full(false);
    agent.until(|told| told.standing.is_some()).await;
    assert_eq!(agent.noted().lost(), None);
}

#[tokio::test]
async fn an_address_of_the_report_of_a_later_time_is_not_free_when_the_pod_that_an_older_journal_names_for_it_is_gone()
{
    let node = Node::start(&[blue()]).await;
    assert_eq!(node.address(parameters(&["blue"], "c0")).await, "192.168.0.2/16");
    // The report, of a time at which the journal was further, tells the same address of whoever had it then.
    let mut agent = started(node.stop().await, Position { epoch: 2, sequence: 6 }, &reported_before("u1")).await;
    agent.until(went_back).await;
    assert_eq!(agent.add("c0").await.unwrap(), "192.168.0.2/16", "a repeat is nothing new");
    let in_force = agent.in_force.borrow().clone().unwrap();
    let before = Report::new(&in_force, &agent.node.allocator.holdings().await.unwrap()).unwrap();
    assert_eq!(before.pools[0].used, 2, "an address counts once");
    agent.node.del(parameters(&["blue"], "c0")).await.unwrap();
    let refused = agent.node.add(with_ips(parameters(&["blue"], "c1"), &["192.168.0.2"])).await.unwrap_err();
    assert!(refused.message().contains("without a record"), "{refused}");
    let after = Report::new(&in_force, &agent.node.allocator.holdings().await.unwrap()).unwrap();
    assert_eq!(after.pools[0].held, before.pools[0].held, "and may be held still");
}

#[tokio::test]
async fn a_store_that_went_back_is_found_also_after_starts_that_never_saw_the_report() {
    let mut directory = tempfile::tempdir().unwrap();
    // Each start begins a new epoch. These end before the API server has answered.
    for _ in 0..5 {
        directory = Node::open(directory).await.stop().await;
    }
    let mut agent = started(directory, AHEAD, &reported_before("u1")).await;
    agent.until(|told| went_back(told) && told.standing.is_some()).await;
    assert_eq!(agent.noted().uncompared, None, "of the next report it would be too early");
}

#[tokio::test]
async fn nothing_is_reported_while_the_next_start_would_compare_what_is_compared_already() {
    let node = Node::open_at(tempfile::tempdir().unwrap(), Some(AHEAD), Identity::default()).await;
    node.disk.set_full(true);
    let mut agent = Following::with(node, None, Some(NEVER)).await;
    agent.server.call().await.answer(200, &reported_before("u1"));
    agent.until(|told| told.spec.generation == Some(4)).await;
    assert_eq!(agent.in_force.borrow().as_ref().unwrap().standing, None, "nothing to report to");
    agent.node.disk.set_full(false);
    agent.until(|told| told.standing.is_some()).await;
    assert_eq!(agent.noted().uncompared, None);
}

#[tokio::test]
async fn a_report_that_alone_tells_what_is_held_is_not_replaced_before_the_disk_knows_it() {
    let node = Node::open_at(tempfile::tempdir().unwrap(), Some(Position::default()), Identity::default()).await;
    node.disk.set_full(true);
    let mut agent = Following::with(node, None, Some(NEVER)).await;
    agent.server.call().await.answer(200, &reported_before("u1"));
    agent.until(went_back).await;
    assert_eq!(agent.in_force.borrow().as_ref().unwrap().standing, None, "nothing to report to");
    agent.node.disk.set_full(false);
    agent.until(|told| told.standing.is_some()).await;
    assert!(went_back(agent.in_force.borrow().as_ref().unwrap()));
}

#[tokio::test]
async fn the_next_start_has_the_addresses_also_when_a_full_disk_kept_an_earlier_spec() {
    let mut agent = behind().await;
    agent.node.disk.set_full(true);
    let mut later = reported_before("u1");
    later["items"][0]["metadata"]["generation"] = json!(5);
    later["items"][0]["spec"]["pools"] = json!([]);
    let lines = stream(agent.server.call().await);
    lines.send(line("MODIFIED", &later["items"][0])).unwrap();
    agent.until(|told| told.spec.generation == Some(5)).await;
    assert_eq!(agent.noted().spec.generation, Some(4));
    // The report that stands is this journal's own by now.
    let mut agent = restarted(agent, &later).await;
    agent.until(|told| told.spec.generation == Some(5) && told.standing.is_some()).await;
    assert!(went_back(agent.in_force.borrow().as_ref().unwrap()), "{:?}", agent.in_force.borrow());
}

/// A machine and its boot, with the ID for a new store.
pub(crate) fn identity(store: &str, machine: &str, boot: &str) -> Identity {
    let [store, machine, boot] = [store, machine, boot].map(|id| Some(id.to_owned()));
    Identity { store, machine, boot }
}

/// The report of [`reported_before`], made there.
pub(crate) fn reported_on(here: &Identity) -> Value {
    let mut list = reported_before("u1");
    let status = &mut list["items"][0]["status"];
    (status["storeID"], status["systemUUID"], status["bootID"]) =
        (json!(here.store), json!(here.machine), json!(here.boot));
    list
}

#[tokio::test]
async fn after_another_boot_with_an_empty_disk_every_address_is_available() {
    let mut directory = tempfile::tempdir().unwrap();
    for boot in ["b", "c", "d"] {
        let list = reported_on(&identity("s", "m", "a"));
        let mut agent = started_in(directory, Position::default(), &list, identity("t", "m", boot)).await;
        agent.until(|told| told.standing.is_some()).await;
        let in_force = agent.in_force.borrow().clone().unwrap();
        assert_eq!((in_force.problems, in_force.lost), (Vec::new(), None), "{boot}");
        assert_eq!(in_force.identity, identity("t", "m", boot), "the next report says so");
        assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
        drop(agent.stop().await);
        directory = tempfile::tempdir().unwrap();
    }
}

#[tokio::test]
async fn addresses_without_a_record_are_available_in_the_next_boot() {
    let list = reported_on(&identity("s", "m", "a"));
    let directory = tempfile::tempdir().unwrap();
    let mut agent = started_in(directory, Position::default(), &list, identity("t", "m", "a")).await;
    agent.until(went_back).await;
    let mut agent = started_in(agent.stop().await, AHEAD, &list, identity("u", "m", "b")).await;
    agent.until(|told| told.standing.is_some()).await;
    let in_force = agent.in_force.borrow().clone().unwrap();
    assert_eq!((in_force.problems, in_force.lost), (Vec::new(), None));
    assert_eq!(in_force.identity, identity("t", "m", "b"), "the store is the same");
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
}

#[tokio::test]
async fn addresses_of_another_machine_of_this_name_are_available_after_the_grace() {
    let list = reported_on(&identity("s", "n", "a"));
    let directory = tempfile::tempdir().unwrap();
    let mut agent = started_in(directory, AHEAD, &list, identity("t", "m", "b")).await;
    agent.until(|told| told.standing.is_some()).await;
    let replaced = |told: &InForce| told.problems.first().is_some_and(|problem| problem.reason == "MachineReplaced");
    assert!(replaced(agent.in_force.borrow().as_ref().unwrap()), "{:?}", agent.in_force.borrow());
    agent.confirm().await;
    agent.node.add(with_ips(parameters(&["blue"], "c1"), &["192.168.0.2"])).await.unwrap_err();
    // Another boot of the new machine says nothing about the other one.
    let mut agent = started_in(agent.stop().await, AHEAD, &list, identity("u", "m", "c")).await;
    agent.until(replaced).await;
    agent.until(|told| told.lost.is_none()).await;
    assert_eq!(agent.noted().lost(), None);
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
}
