//! The life of a block with real processes: what pods hold is given to nobody else, whatever is deleted, relabelled or
//! edited, and comes free by itself when the pods give it back. Two operators, of which one leads; agents on nodes of
//! their own; pods below a real CNI plugin.

#[cfg(test)]
#[path = "../cluster/api.rs"]
#[expect(dead_code, reason = "what other tests say to the API server")]
mod api;
#[cfg(test)]
mod stage;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::api::{IPAMNODES, IPPOOLS};
    use crate::stage::{GROUP, Stage, addresses};

    #[test]
    fn the_blocks_of_a_deleted_and_of_a_relabelled_node_are_nobody_elses_while_pods_hold_addresses() {
        let stage = Stage::set("leaves", 3);
        let [deleted, relabelled, stays] = [0, 1, 2].map(|index| stage.nodes[index].name().to_owned());
        stage.pool("p", json!({"subnet": "10.90.0.0/27", "perNodeBlockSize": 4}));
        let pods = [stage.pod(0), stage.pod(1)];
        let given: Vec<_> = pods.iter().map(|pod| addresses(&pod.add("net1", &stage.network("p")).unwrap())).collect();
        stage.api.await_used(&deleted, "p", 1);
        stage.api.await_used(&relabelled, "p", 1);
        let before = stage.api.blocks(IPPOOLS, "p");

        stage.api.delete_node(&deleted);
        stage.api.label_node(&relabelled, &json!({GROUP: null}));
        stage.await_releasing("p", &[&deleted, &relabelled]);
        stage.await_told_releasing(&deleted);
        stage.await_told_releasing(&relabelled);
        // In the reference these get the two blocks, and the next pods there the addresses that are held.
        let newcomers = ["x", "y"].map(|short| stage.join(short));
        let after = stage.api.await_count(IPPOOLS, "p", 3);
        for newcomer in &newcomers {
            assert!(!before.values().any(|block| *block == after[newcomer]), "{newcomer} has {}", after[newcomer]);
        }
        assert_eq!(after[&stays], before[&stays]);
        let late = stage.pod(1);
        assert!(late.add("net1", &stage.network("p")).is_err(), "nothing more is given from a block being taken back");
        let said = stage.api.await_condition(IPPOOLS, "p", ("Releasing", "True", "BlocksInUse"));
        let said = said["message"].as_str().unwrap();
        assert!(said.contains(&format!("{deleted} (1 held, Node gone)")), "{said}");
        assert!(said.contains(&format!("{relabelled} (1 held)")), "{said}");

        // CHECK works on, and so does DEL; then the blocks are free.
        for (index, pod) in pods.iter().enumerate() {
            assert_eq!(given[index].len(), 1);
            pod.del("net1", &stage.network("p")).unwrap();
        }
        stage.await_releasing("p", &[]);
        let heirs = ["z", "zz"].map(|short| stage.join(short));
        let after = stage.api.await_count(IPPOOLS, "p", 5);
        let mut inherited = heirs.map(|heir| after[&heir].clone());
        inherited.sort();
        let mut freed = [before[&deleted].clone(), before[&relabelled].clone()];
        freed.sort();
        assert_eq!(inherited, freed);
    }

    #[test]
    fn another_block_size_waits_for_what_pods_hold_and_then_takes_effect() {
        let stage = Stage::set("resized", 1);
        let node = stage.nodes[0].name().to_owned();
        stage.pool("p", json!({"subnet": "10.91.0.0/24", "perNodeBlockSize": 4}));
        let pod = stage.pod(0);
        pod.add("net1", &stage.network("p")).unwrap();
        stage.api.await_used(&node, "p", 1);
        stage.api.merge(IPPOOLS, "p", &json!({"spec": {"perNodeBlockSize": 8}}));
        let said = stage.api.await_condition(IPPOOLS, "p", ("Ready", "False", "EditDeferred"));
        assert!(said["message"].as_str().unwrap().contains(&format!("{node} (1 held)")), "{said}");
        assert!(stage.api.await_event("p", "EditDeferred").contains(&node));
        // The last good plan is served, and others are served by the new spec where both can hold.
        let second = stage.pod(0);
        assert_eq!(addresses(&second.add("net1", &stage.network("p")).unwrap()), ["10.91.0.2/24"]);
        let newcomer = stage.join("x");
        let blocks = [(node.as_str(), "10.91.0.1-10.91.0.4"), (newcomer.as_str(), "10.91.0.9-10.91.0.16")];
        stage.api.await_blocks(IPPOOLS, "p", &blocks);
        for pod in [&pod, &second] {
            pod.del("net1", &stage.network("p")).unwrap();
        }
        stage.api.await_condition(IPPOOLS, "p", ("Ready", "True", "Valid"));
        let blocks = [(node.as_str(), "10.91.0.1-10.91.0.8"), blocks[1]];
        stage.api.await_blocks(IPPOOLS, "p", &blocks);
        assert_eq!(stage.api.events("p", "EditDeferred").len(), 1, "said once");
    }

    #[test]
    fn a_deleted_pool_waits_for_its_pods_and_one_command_ends_the_waiting() {
        let mut stage = Stage::set("deleted", 2);
        let [first, second] = [0, 1].map(|index| stage.nodes[index].name().to_owned());
        stage.pool("p", json!({"subnet": "10.92.0.0/24", "perNodeBlockSize": 4}));
        let pods = [stage.pod(0), stage.pod(1)];
        for (pod, node) in pods.iter().zip([&first, &second]) {
            pod.add("net1", &stage.network("p")).unwrap();
            stage.api.await_used(node, "p", 1);
        }
        stage.api.delete(IPPOOLS, "p");
        let said = stage.api.await_condition(IPPOOLS, "p", ("Ready", "False", "Deleting"));
        let said = said["message"].as_str().unwrap();
        assert!(said.contains(&first) && said.contains(&second), "{said}");
        assert!(stage.api.await_event("p", "PoolInUse").contains(&first));
        let refused = stage.api.try_create(IPPOOLS, "p", &json!({"subnet": "10.93.0.0/24", "perNodeBlockSize": 4}));
        assert_eq!(refused.unwrap_err().code, 409, "nothing can be made under its name meanwhile");

        // The leader dies; the other goes on where it was.
        stage.crash_leader();
        pods[0].del("net1", &stage.network("p")).unwrap();
        stage.await_releasing("p", &[&second]);
        // The second node never speaks again.
        stage.kill_agent(1);
        let key = format!("nv-ipam.nvidia.com/force-release={second}");
        stage.kubectl(&["annotate", "ippool", "p", &key]);
        stage.await_gone(IPPOOLS, "p");
        let lost = stage.api.await_event("p", "ForcedRelease");
        assert!(lost.contains(&second) && lost.contains("10.92.0.5-10.92.0.8"), "{lost}");
        let spec = stage.api.get(IPAMNODES, &second)["spec"].clone();
        assert!(spec["pools"].as_array().is_none_or(Vec::is_empty), "{spec}");
    }

    #[test]
    fn of_two_pools_over_the_same_addresses_the_older_serves_until_it_is_gone() {
        let stage = Stage::set("overlap", 1);
        let node = stage.nodes[0].name().to_owned();
        stage.pool("older", json!({"subnet": "10.94.0.0/24", "perNodeBlockSize": 4}));
        let pod = stage.pod(0);
        pod.add("net1", &stage.network("older")).unwrap();
        stage.api.await_used(&node, "older", 1);
        // An age is told in seconds, and of two pools of one second the name decides: "older" comes before "younger".
        stage.api.create(IPPOOLS, "younger", &stage.for_us(json!({"subnet": "10.94.0.0/23", "perNodeBlockSize": 8})));
        let said = stage.api.await_condition(IPPOOLS, "younger", ("Ready", "False", "Overlap"));
        assert!(said["message"].as_str().unwrap().contains("older"), "{said}");
        assert_eq!(stage.api.blocks(IPPOOLS, "younger").len(), 0);
        stage.api.delete(IPPOOLS, "older");
        stage.api.await_condition(IPPOOLS, "older", ("Ready", "False", "Deleting"));
        assert_eq!(stage.api.blocks(IPPOOLS, "younger").len(), 0, "not while an address is held");
        pod.del("net1", &stage.network("older")).unwrap();
        stage.await_gone(IPPOOLS, "older");
        stage.api.await_blocks(IPPOOLS, "younger", &[(&node, "10.94.0.1-10.94.0.8")]);
        stage.api.await_condition(IPPOOLS, "younger", ("Ready", "True", "Valid"));
    }
}
