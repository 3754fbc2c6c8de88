//! Which of the places a setting can stand in wins, and what is said about places that cannot be read.

#![expect(clippy::unwrap_used, reason = "a failed precondition of a test is a failed test")]

mod support;

use std::os::unix::net::UnixListener;

use ipam_node_api::v1::IpamParameters;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use support::{Agent, Asked, Script, assert_silent_success, error, network, with};

fn write_conf(agent: &Agent, conf: &Value) {
    std::fs::write(agent.dir.path().join("nv-ipam.conf"), conf.to_string()).unwrap();
}

/// The last ADD.
fn last_add(agent: &Agent) -> IpamParameters {
    let add = |asked| if let Asked::Allocate(parameters) = asked { Some(parameters) } else { None };
    agent.asked().into_iter().rev().find_map(add).unwrap()
}

fn pools_asked(agent: &Agent) -> Vec<String> {
    last_add(agent).pools
}

#[test]
fn standard_input_wins_over_the_conf_file_and_that_over_the_default_for_each_key() {
    let agent = Agent::start(Script::default());
    write_conf(&agent, &json!({"poolName": "from-file", "poolType": "cidrpool"}));
    agent.run("ADD", &network("1.0.0", &json!({})));
    assert_eq!(pools_asked(&agent), ["from-file"]);
    agent.run("ADD", &network("1.0.0", &json!({"poolName": "from-stdin"})));
    assert_eq!(pools_asked(&agent), ["from-stdin"]);
    // The other key still comes from the file.
    assert_eq!(last_add(&agent).pool_type().as_str_name(), "POOL_TYPE_CIDRPOOL");
}

#[test]
fn the_timeout_comes_from_standard_input_then_the_conf_file_then_the_default() {
    let agent = Agent::away();
    // Connections are queued by the kernel, and nobody ever takes one.
    let _mute = UnixListener::bind(agent.dir.path().join("daemon.sock")).unwrap();
    write_conf(&agent, &json!({"daemonCallTimeoutSeconds": 1}));
    let limit = |ipam: &Value| {
        let (code, message) = error(&agent.run("DEL", &network("1.0.0", ipam)));
        assert_eq!(code, 11, "{message}");
        message.rsplit_once("; ").unwrap().1.to_owned()
    };
    // The default of these tests is 20 seconds, so it was not that one that ran out.
    assert_eq!(limit(&json!({"poolName": "p1"})), "gave up after the 1 s of daemonCallTimeoutSeconds");
    write_conf(&agent, &json!({"daemonCallTimeoutSeconds": 86_400}));
    let by_stdin = json!({"poolName": "p1", "daemonCallTimeoutSeconds": 2});
    assert_eq!(limit(&by_stdin), "gave up after the 2 s of daemonCallTimeoutSeconds");
}

/// Mistakes in what only ADD, CHECK and STATUS need to be right.
fn careless() -> Value {
    json!({
        "poolName": "p1", "logLevel": 3, "logFile": 5, "daemonCallTimeoutSeconds": -1, "forcePoolName": "yes",
    })
}

#[test]
fn what_the_reference_takes_is_taken() {
    let agent = Agent::start(Script::default());
    let ipam = json!({"PoolName": "pool1", "loglevel": "warn", "daemonCallTimeoutSeconds": 0});
    assert_eq!(
        agent
            .run("ADD", &with(network("1.0.0", &ipam), &json!({"RuntimeConfig": {"IPs": ["::ffff:10.0.0.5/24"]}})))
            .status,
        0
    );
    let asked = agent.asked();
    let [Asked::Allocate(parameters)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(
        (&parameters.pools[..], &parameters.requested_ips[..]),
        (&["pool1".to_owned()][..], &["10.0.0.5".to_owned()][..])
    );
    let log = std::fs::read_to_string(agent.log()).unwrap();
    assert!(log.contains("logLevel: \\\"warn\\\" is no level"), "{log}");
}

#[test]
fn a_wrong_comfort_of_the_settings_keeps_no_pod_from_going_away() {
    let agent = Agent::start(Script::default());
    let garbage = json!({"cni.dev/valid-attachments": []});
    let config = |ipam: &Value| with(network("1.1.0", ipam), &garbage);
    for command in ["DEL", "GC"] {
        for conf_dir in [json!(null), json!(7)] {
            let ipam = with(careless(), &json!({"confDir": conf_dir}));
            assert_silent_success(&agent.run(command, &config(&ipam)));
        }
        // The same in the conf file.
        write_conf(&agent, &careless());
        assert_silent_success(&agent.run(command, &config(&json!({"poolName": "p1"}))));
        std::fs::remove_file(agent.dir.path().join("nv-ipam.conf")).unwrap();
    }
    let asked = agent.asked();
    assert!(matches!(&asked[..3], [Asked::Deallocate(_), Asked::Deallocate(_), Asked::Deallocate(_)]), "{asked:?}");
    assert!(matches!(&asked[3..], [Asked::Release(_), Asked::Release(_), Asked::Release(_)]), "{asked:?}");
    let log = std::fs::read_to_string(agent.log()).unwrap();
    let overlooked = log.lines().filter(|line| line.contains(" [warning] overlooked ")).collect::<Vec<_>>();
    assert_eq!(overlooked.len(), 6, "{log}");
    for line in overlooked {
        for key in ["logLevel: ", "logFile: 5", "daemonCallTimeoutSeconds: -1", "forcePoolName: "] {
            assert!(line.contains(key), "{line} lacks {key}");
        }
    }
    assert!(log.contains("ipam.confDir: 7"), "{log}");
}

#[test]
fn what_del_overlooks_is_refused_where_a_pod_is_to_come_or_is_asked_about() {
    let agent = Agent::start(Script::default());
    let previous = json!({"prevResult": {"ips": [{"address": "10.0.0.2/24"}]}});
    let config = with(network("1.1.0", &with(careless(), &json!({"confDir": 7}))), &previous);
    for command in ["ADD", "CHECK", "STATUS"] {
        let (code, message) = error(&agent.run(command, &config));
        assert_eq!(code, 7, "{command}: {message}");
        for key in ["logLevel: 3", "logFile: 5", "daemonCallTimeoutSeconds: -1", "confDir: 7"] {
            assert_eq!(message.matches(key).count(), 1, "{command}: {key} in {message}");
        }
    }
    assert_eq!(agent.asked(), []);
}

#[test]
fn a_mistake_in_what_names_the_agent_or_the_pools_fails_del_too() {
    let agent = Agent::start(Script::default());
    for ipam in [
        json!({"poolName": "p1", "daemonSocket": "/run/x"}),
        json!({"poolName": 5}),
        json!({"poolName": "p1", "poolType": "x"}),
        json!({"forcePoolName": true}),
    ] {
        let (code, message) = error(&agent.run("DEL", &network("1.0.0", &ipam)));
        assert_eq!(code, 7, "{message}");
    }
    assert_eq!(agent.asked(), []);
}

#[test]
fn the_conf_file_can_force_pool_names_and_standard_input_can_lift_that() {
    let agent = Agent::start(Script::default());
    write_conf(&agent, &json!({"forcePoolName": true}));
    assert_eq!(error(&agent.run("ADD", &network("1.0.0", &json!({})))).0, 7);
    agent.run("ADD", &network("1.0.0", &json!({"forcePoolName": false})));
    assert_eq!(pools_asked(&agent), ["net-a"]);
}

#[test]
fn the_socket_and_the_log_file_can_come_from_any_layer() {
    let agent = Agent::start(Script::default());
    let elsewhere = Agent::away();
    let log = elsewhere.dir.path().join("other.log");
    write_conf(&elsewhere, &json!({"daemonSocket": agent.socket(), "logFile": log, "logLevel": "debug"}));
    elsewhere.run("ADD", &network("1.0.0", &json!({"poolName": "p1"})));
    assert_eq!(pools_asked(&agent), ["p1"]);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains(" [debug] asked "), "{text}");
    assert!(!elsewhere.log().exists());
    // `confDir` on standard input names another directory.
    agent.run(
        "ADD",
        &network("1.0.0", &json!({"confDir": elsewhere.dir.path(), "logLevel": "panic", "poolName": "p2"})),
    );
    assert_eq!(pools_asked(&agent), ["p2"]);
    assert_eq!(std::fs::read_to_string(&log).unwrap(), text);
}

#[test]
fn a_conf_file_that_is_malformed_is_an_error_that_names_it() {
    let agent = Agent::start(Script::default());
    let path = agent.dir.path().join("nv-ipam.conf");
    for (content, code, problem) in
        [("{", 6, "not JSON"), ("[]", 6, "want a JSON object, found []"), ("", 6, "not JSON"), ("\u{0}", 6, "not JSON")]
    {
        std::fs::write(&path, content).unwrap();
        let (got, message) = error(&agent.run("ADD", &network("1.0.0", &json!({}))));
        assert_eq!(got, code);
        assert!(message.contains(&format!("{}: {problem}", path.display())), "{message}");
    }
    assert_eq!(agent.asked(), []);
}

#[test]
fn a_conf_file_that_cannot_be_read_is_an_error_and_an_absent_one_is_not() {
    let agent = Agent::start(Script::default());
    std::fs::create_dir(agent.dir.path().join("nv-ipam.conf")).unwrap();
    let (code, message) = error(&agent.run("ADD", &network("1.0.0", &json!({}))));
    assert_eq!(code, 5);
    assert!(message.starts_with("cannot read ") && message.contains("nv-ipam.conf"), "{message}");
    let absent = network("1.0.0", &json!({"poolName": "pool1", "confDir": "/nonexistent"}));
    assert_eq!(agent.run("ADD", &absent).status, 0);
}

#[test]
fn a_conf_file_that_is_no_file_or_endless_is_an_error_and_holds_nobody_up() {
    let agent = Agent::start(Script::default());
    let path = agent.dir.path().join("nv-ipam.conf");
    // A pipe whose other end nobody has, a device without end, and a file that is all holes.
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let refused = |why: &str| {
        let (code, message) = error(&agent.run("ADD", &network("1.0.0", &json!({}))));
        assert_eq!(code, 5);
        assert!(message.starts_with("cannot read ") && message.ends_with(why), "{message}");
        std::fs::remove_file(&path).unwrap();
    };
    refused("it is no regular file");
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    refused("it is no regular file");
    std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    refused("it has more than 16777216 bytes");
}

#[test]
fn wrong_values_in_the_conf_file_are_named_with_the_file() {
    let agent = Agent::start(Script::default());
    let path = agent.dir.path().join("nv-ipam.conf");
    write_conf(
        &agent,
        &json!({"daemonSocket": "/run/x", "daemonCallTimeoutSeconds": -1, "logLevel": 3, "poolType": 3}),
    );
    let (code, message) = error(&agent.run("ADD", &network("1.0.0", &json!({"poolName": "p1"}))));
    assert_eq!(code, 7);
    let at = |field: &str| format!("{}: {field}: ", path.display());
    for expected in [
        format!("{}3 is not what belongs here, want a string", at("logLevel")),
        format!("{}-1 is not what belongs here, want a whole number from 0 to 86400", at("daemonCallTimeoutSeconds")),
        format!("{}\"/run/x\" has no known scheme", at("daemonSocket")),
        format!("{}3 is not what belongs here, want a string", at("poolType")),
    ] {
        assert!(message.contains(&expected), "{message}\nlacks\n{expected}");
    }
}

#[test]
fn every_mistake_is_named_at_once_and_the_environment_gives_the_code() {
    let agent = Agent::start(Script::default());
    let config = with(
        network(
            "1.0.0",
            &json!({"poolName": 5, "poolType": "x", "daemonCallTimeoutSeconds": "5", "forcePoolName": "yes"}),
        ),
        &json!({"name": "../x", "deviceID": [], "runtimeConfig": {"ips": "10.0.0.1"}, "args": {"cni": []}}),
    );
    let environment =
        [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "../x"), ("CNI_IFNAME", "a/b"), ("CNI_ARGS", "IP=1")];
    let (code, message) = error(&agent.run_with(&environment, config.to_string().as_bytes()));
    assert_eq!(code, 4);
    for field in [
        "CNI_CONTAINERID: ",
        "CNI_IFNAME: ",
        "CNI_ARGS.K8S_POD_NAME: ",
        "CNI_ARGS.K8S_POD_NAMESPACE: ",
        "CNI_ARGS.IP: \"1\"",
        "name: \"../x\"",
        "ipam.poolName: 5",
        "ipam.poolType: \"x\"",
        "ipam.daemonCallTimeoutSeconds: \"5\"",
        "ipam.forcePoolName: \"yes\"",
        "deviceID: []",
        "runtimeConfig.ips: \"10.0.0.1\"",
        "args.cni: []",
    ] {
        assert_eq!(message.matches(field).count(), 1, "{field} in {message}");
    }
}
