//! What the agent is asked for each way of saying it in the configuration and the environment.

mod support;

use ipam_node_api::v1::{Attachment, IpamFeatures, IpamMetadata, IpamParameters, PoolType, ReleaseUnlistedRequest};
use serde_json::{Value, json};
use support::{Agent, Asked, Script, assert_silent_success, environment, error, network, with};

fn parameters(pools: &[&str]) -> IpamParameters {
    IpamParameters {
        pools: pools.iter().map(ToString::to_string).collect(),
        cni_containerid: "c0ffee".into(),
        cni_ifname: "net1".into(),
        metadata: Some(IpamMetadata {
            k8s_pod_name: "pod".into(),
            k8s_pod_namespace: "ns".into(),
            k8s_pod_uid: "uid".into(),
            device_id: String::new(),
            network_name: "net-a".into(),
        }),
        pool_type: PoolType::Ippool.into(),
        requested_ips: Vec::new(),
        features: None,
    }
}

/// What ADD asks for with `extra` on the top level of the configuration.
fn add(extra: &Value) -> IpamParameters {
    add_with(&environment("ADD"), extra)
}

fn add_with(environment: &[(&str, &str)], extra: &Value) -> IpamParameters {
    let agent = Agent::start(Script::default());
    let config = with(network("1.0.0", &json!({})), extra);
    agent.run_with(environment, config.to_string().as_bytes());
    match agent.asked().first() {
        Some(Asked::Allocate(parameters)) => parameters.clone(),
        other => unreachable!("{other:?}"),
    }
}

/// Code and message of an ADD that never reaches the agent.
fn refused(extra: &Value) -> (u64, String) {
    let agent = Agent::start(Script::default());
    let outcome = agent.run("ADD", &with(network("1.0.0", &json!({})), extra));
    assert_eq!(agent.asked(), []);
    error(&outcome)
}

#[test]
fn pools_come_from_the_arguments_then_the_ipam_section_then_the_networks_name() {
    assert_eq!(add(&json!({})), parameters(&["net-a"]));
    assert_eq!(add(&json!({"ipam": {"poolName": ""}})), parameters(&["net-a"]));
    assert_eq!(add(&json!({"ipam": {"poolName": "p1"}})), parameters(&["p1"]));
    assert_eq!(add(&json!({"ipam": {"poolName": " p1 ,\tp2"}})), parameters(&["p1", "p2"]));
    let by_args = json!({"ipam": {"poolName": "p1"}, "args": {"cni": {"poolNames": ["q1", "q2"]}}});
    assert_eq!(add(&by_args), parameters(&["q1", "q2"]));
    let empty = json!({"ipam": {"poolName": "p1"}, "args": {"cni": {"poolNames": []}}});
    assert_eq!(add(&empty), parameters(&["p1"]));
}

#[test]
fn the_networks_name_is_no_pool_when_a_pool_name_is_forced() {
    let forced = json!({"ipam": {"forcePoolName": true}});
    assert_eq!(
        refused(&forced),
        (7, "ipam.poolName: missing, and forcePoolName forbids to take the network's name instead".into())
    );
    assert_eq!(add(&json!({"ipam": {"forcePoolName": true, "poolName": "p1"}})), parameters(&["p1"]));
    assert_eq!(add(&with(forced, &json!({"args": {"cni": {"poolNames": ["q1"]}}}))), parameters(&["q1"]));
}

#[test]
fn more_than_two_pools_an_empty_name_and_a_double_one_are_refused() {
    for (names, message) in [
        ("a,b,c", "ipam.poolName: 3 pools (a,b,c), want at most 2"),
        ("a,", "ipam.poolName: \"a,\" has an empty pool name"),
        (" , ", "ipam.poolName: \",\" has an empty pool name"),
        ("a, a", "ipam.poolName: \"a,a\" names a pool twice, an interface gets one address per pool"),
    ] {
        assert_eq!(refused(&json!({"ipam": {"poolName": names}})), (7, message.into()));
    }
    let by_args = refused(&json!({"args": {"cni": {"poolNames": ["a", "b", "c"]}}}));
    assert_eq!(by_args, (7, "args.cni.poolNames: 3 pools (a,b,c), want at most 2".into()));
}

#[test]
fn the_kind_of_pool_is_read_in_any_case_and_the_arguments_win() {
    for (text, kind) in [
        ("ippool", PoolType::Ippool),
        ("IPPool", PoolType::Ippool),
        ("CIDRPOOL", PoolType::Cidrpool),
        ("", PoolType::Ippool),
    ] {
        assert_eq!(add(&json!({"ipam": {"poolType": text}})).pool_type(), kind, "{text}");
        let by_args = json!({"ipam": {"poolType": "ippool"}, "args": {"cni": {"poolType": text}}});
        assert_eq!(add(&by_args).pool_type(), kind, "{text}");
    }
    let message = "ipam.poolType: \"pool\" is no kind of pool, want ippool or cidrpool";
    assert_eq!(refused(&json!({"ipam": {"poolType": "pool"}})), (7, message.into()));
}

#[test]
fn static_addresses_come_from_the_runtime_then_the_arguments_then_cni_args() {
    let by_env = |args: &'static str| {
        let mut all = environment("ADD");
        all.retain(|(key, _)| *key != "CNI_ARGS");
        all.push(("CNI_ARGS", args));
        all
    };
    let one = "K8S_POD_NAME=pod;K8S_POD_NAMESPACE=ns;IP=10.0.0.3/8";
    let args = json!({"args": {"cni": {"ips": ["10.0.0.2/24", "fd00::2"]}}});
    let runtime = with(args.clone(), &json!({"runtimeConfig": {"ips": ["10.0.0.1/16", "FD00:0::1/64"]}}));
    assert_eq!(add_with(&by_env(one), &runtime).requested_ips, ["10.0.0.1", "fd00::1"]);
    assert_eq!(add_with(&by_env(one), &args).requested_ips, ["10.0.0.2", "fd00::2"]);
    assert_eq!(add_with(&by_env(one), &json!({"runtimeConfig": {"ips": []}})).requested_ips, ["10.0.0.3"]);
    let two = "K8S_POD_NAME=pod;K8S_POD_NAMESPACE=ns;IP=10.0.0.3, fd00::3/64";
    assert_eq!(add_with(&by_env(two), &json!({})).requested_ips, ["10.0.0.3", "fd00::3"]);
}

#[test]
fn an_address_that_is_none_is_refused_wherever_it_stands() {
    let message =
        |field, text| format!("{field}: {text:?} is not an IP address, want one like 10.0.0.5 or 10.0.0.5/24");
    for text in [
        "10.0.0",
        "10.0.0.1/",
        "10.0.0.1/33",
        "10.0.0.1/+16",
        "10.0.0.1/-0",
        "10.0.0.1/ 8",
        "fd00::1/129",
        "fd00::1/+64",
        "10.0.0.1/24/8",
        "+10.0.0.1",
        "10.0.0.01",
        "pod",
        " 10.0.0.1",
    ] {
        let runtime = refused(&json!({"runtimeConfig": {"ips": ["10.0.0.1", text]}}));
        assert_eq!(runtime, (7, message("runtimeConfig.ips[1]", text)));
        let args = refused(&json!({"args": {"cni": {"ips": [text]}}}));
        assert_eq!(args, (7, message("args.cni.ips[0]", text)));
    }
}

#[test]
fn special_ways_to_choose_an_address_are_passed_on() {
    let features =
        |gateway, index| Some(IpamFeatures { allocate_default_gateway: gateway, allocate_ip_with_index: index });
    let args = |args: Value| add(&json!({"args": {"cni": args}})).features;
    assert_eq!(args(json!({"allocateDefaultGateway": true})), features(true, None));
    assert_eq!(args(json!({"allocateIPWithIndex": 0})), features(false, Some(0)));
    assert_eq!(args(json!({"allocateIPWithIndex": i32::MAX})), features(false, Some(i32::MAX)));
    assert_eq!(args(json!({"allocateDefaultGateway": false, "allocateIPWithIndex": null})), None);
    for index in [json!(-1), json!(i64::from(i32::MAX) + 1), json!(1.5), json!("1")] {
        let (code, message) = refused(&json!({"args": {"cni": {"allocateIPWithIndex": index}}}));
        assert_eq!(
            (code, message),
            (
                7,
                format!(
                    "args.cni.allocateIPWithIndex: {index} is not what belongs here, want a whole number from 0 to 2147483647"
                )
            )
        );
    }
}

#[test]
fn the_special_ways_exclude_one_another() {
    let message = "args.cni: allocateDefaultGateway, allocateIPWithIndex and static addresses exclude one another";
    for args in [
        json!({"allocateDefaultGateway": true, "allocateIPWithIndex": 1}),
        json!({"allocateDefaultGateway": true, "ips": ["10.0.0.1"]}),
        json!({"allocateIPWithIndex": 0, "ips": ["10.0.0.1"]}),
    ] {
        assert_eq!(refused(&json!({"args": {"cni": args}})), (7, message.into()));
    }
}

#[test]
fn empty_sections_and_null_are_no_mistake() {
    for extra in [
        json!({"args": {}}),
        json!({"args": null}),
        json!({"args": {"cni": null}}),
        json!({"args": {"cni": {}}}),
        json!({"runtimeConfig": {}, "ipam": null, "deviceID": null}),
        json!({"ipam": {"poolName": null, "daemonCallTimeoutSeconds": null}}),
    ] {
        assert_eq!(add(&extra), parameters(&["net-a"]), "{extra}");
    }
}

#[test]
fn the_device_is_told_to_the_agent() {
    assert_eq!(add(&json!({"deviceID": "0000:03:00.2"})).metadata.unwrap().device_id, "0000:03:00.2");
}

#[test]
fn the_pod_must_be_named_for_add_only() {
    let nameless = |command| {
        let mut all = environment(command);
        all.retain(|(key, _)| *key != "CNI_ARGS");
        all
    };
    let agent = Agent::start(Script::default());
    let previous = json!({"prevResult": {"ips": [{"address": "10.0.0.2/24"}]}});
    let config = with(network("1.0.0", &json!({"poolName": "p1"})), &previous).to_string();
    let outcome = agent.run_with(&nameless("ADD"), config.as_bytes());
    let message = "CNI_ARGS.K8S_POD_NAME: required for ADD, but not set; \
                   CNI_ARGS.K8S_POD_NAMESPACE: required for ADD, but not set";
    assert_eq!(error(&outcome), (4, message.into()));
    assert_silent_success(&agent.run_with(&nameless("DEL"), config.as_bytes()));
    assert_silent_success(&agent.run_with(&nameless("CHECK"), config.as_bytes()));
    assert!(matches!(agent.asked().as_slice(), [Asked::Deallocate(_), Asked::IsAllocated(Some(_))]));
}

#[test]
fn del_names_pool_and_interface_and_overlooks_what_it_does_not_need() {
    let agent = Agent::start(Script::default());
    let careless = json!({
        "runtimeConfig": {"ips": ["nonsense"]}, "prevResult": 7, "deviceID": 7,
        "args": {"cni": {"ips": "nonsense", "allocateIPWithIndex": -1, "allocateDefaultGateway": 3, "poolNames": ["q1"]}}
    });
    let config = with(network("0.4.0", &json!({"poolType": "cidrpool"})), &careless).to_string();
    let mut all = environment("DEL");
    all.retain(|(key, _)| *key != "CNI_ARGS");
    all.push(("CNI_ARGS", "K8S_POD_NAME=pod;K8S_POD_NAMESPACE=ns;K8S_POD_UID=uid;nonsense;IgnoreUnknown=perhaps"));
    assert_silent_success(&agent.run_with(&all, config.as_bytes()));
    let expected = IpamParameters { pool_type: PoolType::Cidrpool.into(), ..parameters(&["q1"]) };
    assert_eq!(agent.asked_once(), Asked::Deallocate(expected));
    assert!(std::fs::read_to_string(agent.log()).unwrap().contains("overlooked"));
}

#[test]
fn check_sends_every_address_of_the_previous_result() {
    for (version, previous) in [
        (
            "0.4.0",
            json!({"ips": [{"version": "4", "address": "10.0.0.2/24"}, {"version": "6", "address": "fd00::2/64"}]}),
        ),
        (
            "1.1.0",
            json!({"ips": [{"address": "10.0.0.2/24", "interface": 0}, {"address": "fd00::2/64", "gateway": "fd00::1"}], "interfaces": [{"name": "net1"}]}),
        ),
        ("1.0.0", json!({"ip4": {"ip": "10.0.0.2/24"}, "ip6": {"ip": "fd00::2/64"}})),
    ] {
        let agent = Agent::start(Script::default());
        let config = with(network(version, &json!({"poolName": "a,b"})), &json!({"prevResult": previous}));
        assert_silent_success(&agent.run("CHECK", &config));
        let requested_ips = vec!["10.0.0.2".to_owned(), "fd00::2".to_owned()];
        let expected = IpamParameters { requested_ips, ..parameters(&["a", "b"]) };
        assert_eq!(agent.asked_once(), Asked::IsAllocated(Some(expected)));
    }
}

#[test]
fn check_without_a_usable_previous_result_is_an_invalid_configuration() {
    let agent = Agent::start(Script::default());
    for (previous, message) in [
        (json!(null), "prevResult: missing, CHECK compares it with what is reserved"),
        (json!({}), "prevResult.ips: no address, but ADD gave at least one"),
        (json!({"ips": []}), "prevResult.ips: no address, but ADD gave at least one"),
        (json!({"ips": [{}]}), "prevResult.ips[0].address: missing, want a non-empty string"),
        (
            json!([]),
            "prevResult: [] is not what belongs here, want an object; prevResult: missing, CHECK compares it with what is reserved",
        ),
    ] {
        let outcome = agent.run("CHECK", &with(network("0.4.0", &json!({})), &json!({"prevResult": previous})));
        assert_eq!(error(&outcome), (7, message.into()));
    }
    assert_eq!(agent.asked(), []);
}

#[test]
fn gc_sends_the_network_its_pools_and_the_pairs_that_are_still_there() {
    let agent = Agent::start(Script::default());
    let ipam = json!({"poolName": "a,b", "poolType": "cidrpool"});
    let valid = json!([{"containerID": "c1", "ifname": "net1"}, {"containerID": "a_b", "ifname": "c"}]);
    let config = with(network("1.1.0", &ipam), &json!({"cni.dev/valid-attachments": valid}));
    assert_silent_success(
        &agent.run_with(&[("CNI_COMMAND", "GC"), ("CNI_PATH", "/opt/cni/bin")], config.to_string().as_bytes()),
    );
    let attachment =
        |container_id: &str, if_name: &str| Attachment { container_id: container_id.into(), if_name: if_name.into() };
    let expected = ReleaseUnlistedRequest {
        network_name: "net-a".into(),
        pools: vec!["a".into(), "b".into()],
        pool_type: PoolType::Cidrpool.into(),
        valid_attachments: vec![attachment("c1", "net1"), attachment("a_b", "c")],
    };
    assert_eq!(agent.asked_once(), Asked::Release(expected));
}

#[test]
fn gc_takes_an_empty_list_for_what_it_says_and_refuses_an_absent_one() {
    let agent = Agent::start(Script::default());
    let gc = |extra: Value| agent.run("GC", &with(network("1.1.0", &json!({"poolName": "p1"})), &extra));
    let (code, message) = error(&gc(json!({})));
    assert_eq!(
        (code, message.as_str()),
        (7, "cni.dev/valid-attachments: missing, GC would have to take every attachment for gone")
    );
    let (code, message) = error(&gc(json!({"cni.dev/valid-attachments": [{"containerID": "c"}, 5]})));
    assert_eq!(code, 7);
    assert!(message.contains("cni.dev/valid-attachments[0].ifname: missing"), "{message}");
    assert!(message.contains("cni.dev/valid-attachments[1].containerID: missing"), "{message}");
    assert_eq!(agent.asked(), []);
    for extra in [
        json!({"cni.dev/valid-attachments": []}),
        json!({"cni.dev/valid-attachments": null}),
        json!({"cni.dev/attachments": []}),
    ] {
        assert_silent_success(&gc(extra));
    }
    assert!(agent.asked().iter().all(|asked| matches!(asked, Asked::Release(all) if all.valid_attachments.is_empty())));
    assert_eq!(agent.asked().len(), 3);
}

#[test]
fn an_agent_without_garbage_collection_makes_gc_a_success_that_does_nothing() {
    let agent = Agent::start(Script { release: None, ..Script::default() });
    let config = with(network("1.1.0", &json!({})), &json!({"cni.dev/valid-attachments": []}));
    assert_silent_success(&agent.run("GC", &config));
    assert!(std::fs::read_to_string(agent.log()).unwrap().contains("knows no GC"));
}

#[test]
fn status_asks_for_nothing_and_needs_no_interface() {
    let agent =
        Agent::start(Script { is_allocated: Err(tonic::Status::invalid_argument("parameters")), ..Script::default() });
    assert_silent_success(
        &agent.run_with(&[("CNI_COMMAND", "STATUS")], network("1.1.0", &json!({})).to_string().as_bytes()),
    );
    assert_eq!(agent.asked_once(), Asked::IsAllocated(None));
}
