//! Whatever comes in, exactly one protocol answer comes out, and nothing panics.

#![expect(clippy::unwrap_used, reason = "a failed precondition of a test is a failed test")]

mod support;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use ipam_cni::{Invocation, Outcome, run};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use support::{Agent, network};

const COMMANDS: [&str; 6] = ["ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION"];

fn any_json() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        Just("10.0.0.1/24"),
        Just("ippool"),
        Just("a,b"),
        Just("1.1.0"),
        Just("unix:///nonexistent"),
        Just("\u{0}"),
        Just("")
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any_key(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Mostly keys that mean something, so that arbitrary values end up where they are read.
fn any_key() -> impl Strategy<Value = String> {
    const KEYS: [&str; 28] = [
        "cniVersion",
        "name",
        "ipam",
        "args",
        "cni",
        "runtimeConfig",
        "ips",
        "prevResult",
        "deviceID",
        "poolName",
        "poolType",
        "daemonSocket",
        "daemonCallTimeoutSeconds",
        "confDir",
        "logLevel",
        "forcePoolName",
        "poolNames",
        "allocateDefaultGateway",
        "allocateIPWithIndex",
        "address",
        "ip4",
        "ip6",
        "ip",
        "containerID",
        "ifname",
        "cni.dev/valid-attachments",
        "cni.dev/attachments",
        "type",
    ];
    prop_oneof![9 => prop::sample::select(&KEYS[..]).prop_map(str::to_owned), 1 => ".{0,4}"]
}

/// A good configuration with one member after another replaced by anything.
fn any_config() -> impl Strategy<Value = Value> {
    prop::collection::vec((any_key(), any_json(), 0..3_u8), 0..6).prop_map(|changes| {
        let mut config = network("1.1.0", &json!({"poolName": "p1"}));
        config["args"] = json!({"cni": {}});
        for (key, value, place) in changes {
            let target = match place {
                0 => Some(&mut config),
                1 => config.get_mut("ipam"),
                _ => config.get_mut("args").and_then(|args| args.get_mut("cni")),
            };
            if let Some(Value::Object(members)) = target {
                let members: &mut Map<String, Value> = members;
                members.insert(key, value);
            }
        }
        config
    })
}

fn assert_protocol(command: &str, outcome: &Outcome) {
    if outcome.stdout.is_empty() {
        assert_eq!(outcome.status, 0, "{outcome:?}");
        return;
    }
    assert!(outcome.stdout.ends_with('\n') && outcome.stdout.lines().count() == 1, "{outcome:?}");
    let answer: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert!(answer["cniVersion"].is_string(), "{answer}");
    if outcome.status == 0 {
        assert_eq!(command, "VERSION", "{answer}");
    } else {
        let code = answer["code"].as_u64().unwrap();
        assert!([1, 4, 5, 6, 7, 11, 50, 100].contains(&code), "{answer}");
        assert!(!answer["msg"].as_str().unwrap().is_empty(), "{answer}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_get_one_answer(command in prop::sample::select(&COMMANDS[..]), stdin: Vec<u8>) {
        let agent = Agent::away();
        assert_protocol(command, &agent.run_with(&support::environment(command), &stdin));
    }

    #[test]
    fn arbitrary_values_anywhere_in_the_configuration_get_one_answer(
        command in prop::sample::select(&COMMANDS[..]),
        config in any_config(),
    ) {
        let agent = Agent::away();
        assert_protocol(command, &agent.run(command, &config));
    }

    #[test]
    fn arbitrary_conf_files_get_one_answer(
        command in prop::sample::select(&COMMANDS[..]),
        conf in prop_oneof![any_json().prop_map(|json| json.to_string().into_bytes()), any::<Vec<u8>>()],
    ) {
        let agent = Agent::away();
        std::fs::write(agent.dir.path().join("nv-ipam.conf"), conf).unwrap();
        assert_protocol(command, &agent.run(command, &network("1.1.0", &json!({}))));
    }

    #[test]
    fn arbitrary_environments_get_one_answer(
        command in prop_oneof![
            9 => prop::sample::select(&COMMANDS[..]).prop_map(|command| command.as_bytes().to_vec()),
            1 => prop::collection::vec(1..=255_u8, 1..9),
        ],
        values: [Vec<u8>; 5],
    ) {
        let agent = Agent::away();
        let names = ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_ARGS", "CNI_NETNS", "CNI_PATH"];
        let mut environment = names
            .into_iter()
            .zip(values)
            .map(|(name, value)| (OsString::from(name), OsString::from_vec(value)))
            .collect::<Vec<_>>();
        let text = String::from_utf8_lossy(&command).into_owned();
        environment.push((OsString::from("CNI_COMMAND"), OsString::from_vec(command)));
        let stdin = network("1.1.0", &json!({})).to_string();
        assert_protocol(&text, &run(Invocation { environment, stdin: stdin.as_bytes() }, &agent.defaults()));
    }
}
