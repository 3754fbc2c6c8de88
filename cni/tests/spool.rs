//! DEL while no agent answers, and the ADD that may follow.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ipam_node_api::AgentAddress;
use ipam_node_api::spool::Spool;
use serde_json::json;
use support::{Agent, Asked, Script, assert_silent_success, error, network};
use tonic::Status;

fn spool(agent: &Agent) -> Spool {
    Spool::of(&agent.socket().parse::<AgentAddress>().unwrap()).unwrap()
}

#[test]
fn del_leaves_a_note_where_an_agent_has_made_room_for_it() {
    let agent = Agent::away();
    let config = network("1.1.0", &json!({"type": "nv-ipam", "poolName": "pool1"}));
    assert_eq!(error(&agent.run("DEL", &config)).0, 11, "without a spool the runtime tries again");
    let spool = spool(&agent);
    spool.create().unwrap();
    for _ in 0..2 {
        assert_silent_success(&agent.run("DEL", &config));
    }
    let notes = spool.notes().unwrap();
    let [note] = &notes[..] else { panic!("{notes:?}") };
    let left = note.request.clone().unwrap().parameters.unwrap();
    assert_eq!((left.cni_containerid.as_str(), left.cni_ifname.as_str()), ("c0ffee", "net1"));
    assert_eq!(left.pools, ["pool1"]);
    for command in ["ADD", "CHECK", "STATUS", "GC"] {
        assert_eq!(agent.run(command, &config).status, 1, "{command} needs the agent");
    }
    assert_eq!(spool.notes().unwrap(), [], "an ADD takes the note of its interface away, whatever comes of it");
}

#[test]
fn del_leaves_a_note_for_an_agent_that_does_not_answer_and_none_for_one_that_refuses() {
    for (status, code, notes) in [
        (Status::unavailable("the agent is stopping"), None, 1),
        (Status::internal("no space left"), Some(100), 0),
        (Status::invalid_argument("pools"), Some(7), 0),
    ] {
        let agent = Agent::start(Script { deallocate: Err(status.clone()), ..Script::default() });
        spool(&agent).create().unwrap();
        let outcome = agent.run("DEL", &network("1.1.0", &json!({"type": "nv-ipam", "poolName": "pool1"})));
        match code {
            None => assert_silent_success(&outcome),
            Some(code) => assert_eq!(error(&outcome).0, code, "{status:?}"),
        }
        assert_eq!(spool(&agent).notes().unwrap().len(), notes, "{status:?}");
        assert!(matches!(agent.asked_once(), Asked::Deallocate(_)));
    }
}
