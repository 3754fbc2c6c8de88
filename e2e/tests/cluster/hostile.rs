//! Specs and statuses that no schema has looked at: what an administrator with other CRDs, or none of the rules, may push.

use ipam_e2e::cluster::{Agent, Operator, install_crds};
use ipam_e2e::netns::{Node, Sandbox};
use ipam_e2e::{ControlPlane, eventually_blocking};
use serde_json::{Value, json};

use crate::api::{Api, CIDRPOOLS, IPAMNODES, IPPOOLS, SOON};
use crate::last_mile::{ips, refusal};
use crate::stage::{GROUP, selecting};

/// Takes every rule out of our CRDs: any JSON object is a spec then, and any a status.
fn relax(api: &Api) {
    for kind in [IPPOOLS, CIDRPOOLS, IPAMNODES] {
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}.nv-ipam.nvidia.com");
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let place = "/spec/versions/0/schema/openAPIV3Schema";
        api.json_patch(&path, &json!([{"op": "replace", "path": place, "value": schema}]));
        eventually_blocking(&format!("the server takes any {kind}"), SOON, || {
            let taken = api.try_create(kind, "probe", &json!("nonsense"));
            taken.map_err(|status| status.message)
        })
        .unwrap();
        api.delete(kind, "probe");
    }
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!({}), |inner, _| json!({ "a": inner }))
}

fn garbage_for_both() -> Vec<Value> {
    let long = "9".repeat(10_000);
    vec![Value::Null, json!("text"), json!(7), json!([1, 2]), json!({}), nested(60), json!({ long.clone(): long })]
}

fn ip_pool_garbage() -> Vec<Value> {
    let with = |extra: Value| {
        let mut spec = json!({"subnet": "10.80.0.0/24", "perNodeBlockSize": 4});
        for (key, value) in extra.as_object().unwrap() {
            spec[key] = value.clone();
        }
        spec
    };
    let mut all = vec![
        json!({"subnet": "10.80.0.0/24"}),
        json!({"perNodeBlockSize": 4}),
        with(json!({"subnet": {"a": 1}})),
        with(json!({"subnet": ""})),
        with(json!({"subnet": "10.80.0.0/99"})),
        with(json!({"subnet": "\u{0}\u{feff}10.80.0.0/24"})),
        with(json!({"perNodeBlockSize": "4"})),
        with(json!({"perNodeBlockSize": 0})),
        with(json!({"perNodeBlockSize": -1})),
        with(json!({"perNodeBlockSize": 9_223_372_036_854_775_807_i64})),
        with(json!({"perNodeBlockSize": 1e300})),
        with(json!({"perNodeBlockSize": 4.5})),
        with(json!({"gateway": 1})),
        with(json!({"gateway": "fe80::1%eth0"})),
        with(json!({"exclusions": {"startIP": "10.80.0.1"}})),
        with(json!({"exclusions": [{"startIP": "10.80.0.9", "endIP": "10.80.0.1"}, null, 7]})),
        with(json!({"exclusions": [{"startIP": "10.80.0.1"}]})),
        with(json!({"perNodeExclusions": [{"startIndex": -5, "endIndex": 2_147_483_647}]})),
        with(json!({"perNodeExclusions": [{"startIndex": 0, "endIndex": 4_294_967_296_i64}]})),
        with(json!({"routes": [{"dst": "0.0.0.0/0"}], "defaultGateway": "yes"})),
        with(json!({"nodeSelector": {"nodeSelectorTerms": []}})),
        with(
            json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a b", "operator": "Maybe"}]}]}}),
        ),
        with(
            json!({"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "spec", "operator": "In", "values": []}]}]}}),
        ),
        with(json!({"nodeSelector": "all"})),
    ];
    all.extend(garbage_for_both());
    all
}

fn cidr_pool_garbage() -> Vec<Value> {
    let with = |extra: Value| {
        let mut spec = json!({"cidr": "10.81.0.0/16", "perNodeNetworkPrefix": 24});
        for (key, value) in extra.as_object().unwrap() {
            spec[key] = value.clone();
        }
        spec
    };
    let mut all = vec![
        json!({"cidr": "10.81.0.0/16"}),
        json!({"perNodeNetworkPrefix": 24}),
        with(json!({"cidr": "::/0", "perNodeNetworkPrefix": 129})),
        with(json!({"cidr": "10.81.0.1/16"})),
        with(json!({"perNodeNetworkPrefix": 0})),
        with(json!({"perNodeNetworkPrefix": -2_147_483_648_i64})),
        with(json!({"perNodeNetworkPrefix": 4_294_967_320_i64})),
        with(json!({"gatewayIndex": -1})),
        with(json!({"gatewayIndex": 2_147_483_647})),
        with(json!({"gatewayIndex": "1"})),
        with(json!({"staticAllocations": "10.81.0.0/24"})),
        with(json!({"staticAllocations": [{"prefix": "10.81.0.0/25"}, {"prefix": "fd00::/64"}, {"nodeName": "a"}]})),
        with(
            json!({"staticAllocations": [{"nodeName": "a", "prefix": "10.81.0.0/24"}, {"nodeName": "a", "prefix": "10.81.1.0/24"}]}),
        ),
        with(json!({"staticAllocations": [{"prefix": "10.81.0.0/24", "gateway": "10.82.0.1"}]})),
        with(json!({"perNodeExclusions": [{"startIndex": 5, "endIndex": 1}]})),
    ];
    all.extend(garbage_for_both());
    all
}

fn garbage_statuses() -> Vec<Value> {
    vec![
        json!("text"),
        json!([]),
        json!({"allocations": "all"}),
        json!({"allocations": [7, null, {"nodeName": 7, "startIP": [], "endIP": {}}]}),
        json!({"allocations": [
            {"nodeName": "steady", "startIP": "10.83.0.1", "endIP": "10.83.0.4"},
            {"nodeName": "steady", "startIP": "10.83.0.5", "endIP": "10.83.0.8"},
            {"nodeName": "zombie", "startIP": "10.83.0.1", "endIP": "10.83.0.4"},
        ]}),
        json!({"allocations": [{"nodeName": "steady", "startIP": "10.83.0.4", "endIP": "10.83.0.1"}], "conditions": "fine"}),
        json!({"nodes": {"served": 1e99}, "observedGeneration": "first", "conditions": [{"type": "Ready"}]}),
    ]
}

/// The specs are pushed under names that sort before and after the good pool's.
fn push(api: &Api, kind: &str, specs: &[Value]) -> Vec<String> {
    let name = |index: usize| format!("{}-garbage-{index}", if index.is_multiple_of(2) { "a" } else { "z" });
    let pushed = specs.iter().enumerate().map(|(index, spec)| {
        api.create(kind, &name(index), spec);
        name(index)
    });
    pushed.collect()
}

#[test]
fn specs_and_statuses_that_no_schema_has_seen_are_said_to_be_invalid_and_stop_nobody() {
    let plane = ControlPlane::start().unwrap();
    install_crds(&plane).unwrap();
    let namespace = plane.namespace("hostile").unwrap();
    let api = Api::new(&plane, &namespace);
    relax(&api);
    let mut operator = Operator::start(&plane, &namespace, &[]).unwrap();
    let join = |name: &str| api.create_node(name, &json!({GROUP: namespace}));
    join("steady");
    api.create(IPPOOLS, "good", &selecting(json!({"subnet": "10.83.0.0/24", "perNodeBlockSize": 4}), &namespace));
    let first = ("steady", "10.83.0.1-10.83.0.4");
    api.await_blocks(IPPOOLS, "good", &[first]);
    for (kind, specs) in [(IPPOOLS, ip_pool_garbage()), (CIDRPOOLS, cidr_pool_garbage())] {
        for (name, spec) in push(&api, kind, &specs).iter().zip(&specs) {
            let judged = api.await_condition(kind, name, ("Ready", "False", "InvalidSpec"));
            let message = judged["message"].as_str().unwrap();
            assert!(message.contains("spec"), "{kind} {spec:.200}: {message}");
            assert!(api.blocks(kind, name).is_empty(), "{kind} {spec:.200} was served");
        }
    }
    for status in garbage_statuses() {
        let path = format!("{}/good", api.path(IPPOOLS));
        let mut object = api.get(IPPOOLS, "good");
        object["status"] = status.clone();
        api.send("PUT", &format!("{path}/status"), "application/json", &object).unwrap();
        api.await_condition(IPPOOLS, "good", ("Ready", "True", "Valid"));
        api.await_blocks(IPPOOLS, "good", &[first]);
    }
    operator.process().ensure_running().unwrap();
    join("tardy");
    api.await_blocks(IPPOOLS, "good", &[first, ("tardy", "10.83.0.5-10.83.0.8")]);
    drop(operator);
    let mut again = Operator::start(&plane, &namespace, &[]).unwrap();
    join("very-tardy");
    api.await_count(IPPOOLS, "good", 3);
    again.process().ensure_running().unwrap();
    drop(again);
    records_that_nobody_has_looked_at(&plane, &api, &namespace);
}

/// What an agent does by a spec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    /// It says that it cannot read the object, and goes by the one before.
    Keeps,
    /// It reads that it has no block.
    HasNone,
    /// It goes by what reads of it.
    Serves,
}

/// Specs that no operator writes, in this order, and what the agent does by each. A block that comes back has another grant, as the
/// operator would give it.
fn garbage_specs(good: &Value) -> Vec<(Value, Does)> {
    let again = |grant: &str| {
        let mut again = good.clone();
        again["grant"] = json!(grant);
        again
    };
    let mut backwards = good.clone();
    backwards["startIP"] = json!("10.83.0.9");
    let mut strange = good.clone();
    strange["name"] = json!("strange");
    strange["subnet"] = json!("nowhere");
    vec![
        (json!("text"), Does::Keeps),
        (json!([]), Does::HasNone),
        (json!({"pools": [again("fffffffe00000001")]}), Does::Serves),
        (json!(null), Does::Keeps),
        (json!({"pools": "all"}), Does::Keeps),
        (json!({"pools": [7, {"name": []}]}), Does::Keeps),
        (nested(60), Does::HasNone),
        (json!({"pools": [backwards]}), Does::HasNone),
        (json!({"pools": [backwards, strange, {"name": "x", "poolType": "Lake", "state": "Liquid"}]}), Does::Keeps),
        (json!({"pools": [strange, again("fffffffe00000002")]}), Does::Serves),
    ]
}

/// The same for the agent: garbage in its IPAMNode neither ends it nor keeps it from serving what reads.
fn records_that_nobody_has_looked_at(plane: &ControlPlane, api: &Api, namespace: &str) {
    let sandbox = Sandbox::start(plane).unwrap();
    let node = Node::start(&sandbox, "steady", 1).unwrap();
    let mut agent = Agent::start(plane, &node, namespace, &[]).unwrap();
    api.await_used("steady", "good", 0);
    let good = api.get(IPAMNODES, "steady")["spec"]["pools"][0].clone();
    let network = json!({"cniVersion": "1.0.0", "name": "good", "type": "nv-ipam", "ipam": {"type": "nv-ipam"}});
    let pod = node.pod("default", "p", "uid-p").unwrap();
    let unread = |agent: &mut Agent| agent.process().output().matches("cannot be read, serving what is known").count();
    let mut serves = true;
    for (spec, does) in garbage_specs(&good) {
        let before = unread(&mut agent);
        let path = format!("{}/steady", api.path(IPAMNODES));
        api.json_patch(&path, &json!([{"op": "replace", "path": "/spec", "value": spec}]));
        eventually_blocking(&format!("the agent has seen {spec:.200}"), SOON, || {
            agent.process().ensure_running().map_err(|ended| ended.to_string())?;
            let object = api.get(IPAMNODES, "steady");
            let is_read = object["status"]["observedGeneration"] == object["metadata"]["generation"];
            let seen = if does == Does::Keeps { unread(&mut agent) > before } else { is_read };
            if seen { Ok(()) } else { Err(object["status"].to_string()) }
        })
        .unwrap();
        serves = if does == Does::Keeps { serves } else { does == Does::Serves };
        match pod.add("net1", &network) {
            Ok(result) if serves => assert!(ips(&result)[0].0.starts_with("10.83.0."), "{spec:.200}: {result}"),
            refused if !serves => {
                let (code, message) = refusal(refused);
                let unknown = "the agent of this node does not know the pool: no IPPool \"good\" on this node: ";
                assert!(code == 101 && message.starts_with(unknown), "{spec:.200}: {code} {message}");
            }
            other => panic!("{spec:.200}: {other:?}"),
        }
        pod.del("net1", &network).unwrap();
    }
    assert!(serves, "the last one serves");
}
