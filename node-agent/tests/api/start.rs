//! What is given after a start, before the API server has spoken.

use std::time::Duration;

use serde_json::json;

use crate::common::{deadline, parameters};
use crate::following::{Following, NEVER};
use crate::server::{blocks, list_of};

#[tokio::test]
async fn nothing_new_is_given_after_a_start_before_the_api_server_has_said_what_is_still_the_nodes() {
    for (generation, still, wanted) in [(4, blocks(), Ok("192.168.0.3/16")), (5, json!([]), Err(tonic::Code::NotFound))]
    {
        let mut agent = Following::restart(NEVER).await;
        let call = agent.server.call().await;
        agent.node.readiness.blocks().unwrap();
        agent.node.check(parameters(&["blue"], "c0")).await.unwrap();
        let new = agent.node.client.allocate(parameters(&["blue"], "c1"), deadline());
        tokio::pin!(new);
        // Requests of one connection reach the allocator in their order: a later one that is answered comes behind the new one.
        let later = async {
            for _ in 0..4 {
                assert_eq!(agent.add("c0").await.unwrap(), "192.168.0.2/16", "a repeat is nothing new");
            }
        };
        tokio::select! {
            biased;
            early = &mut new => panic!("{early:?}"),
            () = later => {}
        }
        call.answer(200, &list_of(generation, &still));
        let given = new.await.map(|given| given[0].ip.clone()).map_err(|refused| refused.code());
        assert_eq!(given, wanted.map(str::to_owned));
        agent.node.del(parameters(&["blue"], "c0")).await.unwrap();
    }
}

#[tokio::test]
async fn after_a_start_the_copy_on_disk_is_given_from_once_the_api_server_fails_or_keeps_silent() {
    let mut agent = Following::restart(NEVER).await;
    agent.server.call().await.fail(500, "InternalError");
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.3/16");
    let mut agent = Following::restart(Duration::from_millis(50)).await;
    let _unanswered = agent.server.call().await;
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.3/16");
}

#[tokio::test]
async fn an_agent_whose_start_does_not_end_refuses_what_is_new_with_a_word() {
    let mut agent = Following::restart(NEVER).await;
    let _unanswered = agent.server.call().await;
    let refused = agent.add("c1").await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("has just started"), "{refused}");
}
