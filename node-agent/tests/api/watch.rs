//! What the agent watches, and what it gives from while its object changes or is out of sight.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use http::Method;
use ipam_core::ledger::GrantStep;
use ipam_crds::NodeBlock;
use ipam_node_agent::spec::NodeSpec;
use ipam_node_agent::watch::events;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::common::{blue, parameters};
use crate::following::Following;
use crate::server::{NODE, Server, blocks, line, list_of, object, stream};

#[tokio::test]
async fn a_grant_that_comes_back_by_a_restore_allocates_nothing_until_it_is_replaced() {
    let mut agent = Following::start(None).await;
    let watch = agent.list(4).await;
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
    let lines = stream(watch);
    lines.send(line("MODIFIED", &object(5, &json!([])))).unwrap();
    agent.until(|told| told.spec.generation == Some(5)).await;
    lines.send(line("MODIFIED", &object(4, &blocks()))).unwrap();
    agent.until(|told| told.spec.generation == Some(4)).await;
    assert_eq!(agent.add("c2").await.unwrap_err().code(), tonic::Code::Unavailable);
    agent.node.check(parameters(&["blue"], "c1")).await.unwrap();
    let replaced = NodeBlock { grant: "6500000000000009".into(), ..blue() };
    lines.send(line("MODIFIED", &object(6, &json!([replaced])))).unwrap();
    agent.until(|told| told.spec.generation == Some(6)).await;
    assert_eq!(agent.add("c2").await.unwrap(), "192.168.0.3/16");
}

#[tokio::test]
async fn a_grant_of_a_restored_backup_that_the_node_never_saw_has_ended() {
    let mut agent = Following::start(None).await;
    let lines = stream(agent.list(7).await);
    let unknown = NodeBlock { grant: "6500000000000009".into(), ..blue() };
    lines.send(line("MODIFIED", &object(6, &json!([unknown])))).unwrap();
    agent.until(|told| told.spec.generation == Some(6)).await;
    assert_eq!(agent.add("c1").await.unwrap_err().code(), tonic::Code::Unavailable);
    let pools = agent.node.allocator.holdings().await.unwrap().pools;
    assert_eq!(pools[0].grant.unwrap().step, GrantStep::Ended, "the report says so");
}

#[tokio::test]
async fn cut_off_for_longer_than_the_offline_limit_the_agent_gives_nothing_new_until_it_is_answered() {
    let mut agent = Following::start(Some(Duration::from_millis(50))).await;
    let watch = agent.list(4).await;
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
    drop(stream(watch));
    agent.server.call().await.fail(500, "InternalError");
    agent.until(|told| told.problems.iter().any(|problem| problem.reason == "Offline")).await;
    let refused = agent.add("c2").await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("--offline-limit"), "{refused}");
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16", "a repeat is nothing new");
    agent.node.check(parameters(&["blue"], "c1")).await.unwrap();
    agent.node.del(parameters(&["blue"], "c1")).await.unwrap();
    // Without news, but answered.
    let _lines = stream(agent.server.call().await);
    agent.until(|told| told.problems.is_empty()).await;
    assert_eq!(agent.add("c2").await.unwrap(), "192.168.0.3/16");
}

#[tokio::test]
async fn cut_off_without_an_offline_limit_the_agent_goes_on_giving() {
    let mut agent = Following::start(None).await;
    drop(stream(agent.list(4).await));
    agent.server.call().await.fail(500, "InternalError");
    agent.server.call().await.fail(500, "InternalError");
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
}

#[tokio::test]
async fn a_watch_that_is_to_list_does_so_at_once() {
    let (client, mut server) = Server::new();
    let relist = Arc::new(Notify::new());
    let events = events(client, "kube-system", "node1", Arc::clone(&relist));
    tokio::spawn(events.for_each(|_| std::future::ready(())));
    for _ in 0..2 {
        let list = server.call().await;
        assert!(!list.query.contains("watch=true"), "{}", list.query);
        list.answer(200, &list_of(4, &blocks()));
        let watch = server.call().await;
        assert!(watch.query.contains("watch=true"), "{}", watch.query);
        let _lines = stream(watch);
        relist.notify_one();
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_broke_begins_with_a_list() {
    let (client, mut server) = Server::new();
    let events = events(client, "kube-system", "node1", Arc::default());
    tokio::spawn(events.for_each(|_| std::future::ready(())));
    for code in [503, 504] {
        let list = server.call().await;
        assert!(!list.query.contains("watch=true"), "{}", list.query);
        list.answer(200, &list_of(4, &blocks()));
        let watch = server.call().await;
        assert!(watch.query.contains("watch=true"), "{}", watch.query);
        // The API server was away, maybe for a restore to an earlier version than that of the list.
        watch.answer(code, &json!({"kind": "Status", "status": "Failure", "code": code}));
    }
    assert!(!server.call().await.query.contains("watch=true"));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_is_called_ever_less() {
    let (client, mut server) = Server::new();
    let events = events(client, "kube-system", "node1", Arc::default());
    tokio::spawn(events.for_each(|_| std::future::ready(())));
    let mut pauses = Vec::new();
    for _ in 0..12 {
        server.call().await.fail(503, "ServiceUnavailable");
        let refused = Instant::now();
        let list = server.call().await;
        pauses.push(refused.elapsed());
        // A list that succeeds before the next refusal shortens no pause.
        list.answer(200, &list_of(4, &blocks()));
    }
    let limits = [(800, 1600), (1600, 3200), (3200, 6400), (6400, 12_800)]
        .into_iter()
        .chain(std::iter::repeat((10_000, 20_000)));
    for (pause, (least, most)) in pauses.iter().zip(limits) {
        assert!((least..=most + 1).contains(&pause.as_millis()), "{pauses:?}");
    }
}

#[tokio::test]
async fn the_agent_watches_its_one_object_and_nothing_else() {
    let mut agent = Following::start(None).await;
    let call = agent.server.call().await;
    assert_eq!((&call.method, call.path.as_str()), (&Method::GET, NODE));
    assert!(call.query.contains("fieldSelector=metadata.name%3Dnode1"), "{}", call.query);
    let list = json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNodeList",
        "metadata": {"resourceVersion": "7"}, "items": [object(4, &blocks())]});
    call.answer(200, &list);
    agent.until(|told| told.spec.generation == Some(4)).await;
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
    assert_eq!(agent.noted().spec.generation, Some(4), "the journal has the spec for a start without API server");
    let call = agent.server.call().await;
    assert!(call.query.contains("watch=true") && call.query.contains("metadata.name%3Dnode1"), "{}", call.query);
    let lines = stream(call);
    lines.send(line("MODIFIED", &object(5, &json!("nonsense")))).unwrap();
    lines.send(line("DELETED", &object(6, &json!([])))).unwrap();
    agent.until(|told| told.spec == NodeSpec::default()).await;
    agent.node.check(parameters(&["blue"], "c1")).await.unwrap();
    assert_eq!(agent.add("c2").await.unwrap_err().code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn a_spec_that_a_full_disk_does_not_take_is_in_force_and_recorded_later() {
    let mut agent = Following::start(None).await;
    agent.node.disk.set_full(true);
    let _lines = stream(agent.list(4).await);
    assert_eq!(agent.noted().spec, NodeSpec::default());
    agent.until(|told| told.saved.is_none() && told.problems.iter().any(|problem| problem.reason == "Unsaved")).await;
    agent.node.disk.set_full(false);
    agent.until(|told| told.saved == Some(4) && told.problems.is_empty()).await;
    assert_eq!(agent.noted().spec.generation, Some(4));
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
}
