//! How each way a call can fail is told to the runtime.

mod support;

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Agent, Script, assert_silent_success, environment, error, network, with};
use tonic::{Code, Status};

/// A configuration every command accepts.
fn complete(version: &str) -> Value {
    let extra = json!({"prevResult": {"ips": [{"address": "10.0.0.2/24"}]}, "cni.dev/valid-attachments": []});
    with(network(version, &json!({"poolName": "pool1"})), &extra)
}

fn failing(status: &Status) -> Agent {
    Agent::start(Script {
        allocate: Err(status.clone()),
        is_allocated: Err(status.clone()),
        deallocate: Err(status.clone()),
        release: Some(Err(status.clone())),
    })
}

#[test]
fn an_agent_that_is_away_is_try_again_later_and_for_status_not_available() {
    let agent = Agent::away();
    for (command, expected) in [("ADD", 11), ("DEL", 11), ("CHECK", 11), ("GC", 11), ("STATUS", 50)] {
        let (code, message) = error(&agent.run(command, &complete("1.1.0")));
        assert_eq!(code, expected, "{command}: {message}");
        assert!(message.contains(&agent.socket()), "{message}");
    }
}

#[test]
fn each_refusal_of_the_agent_has_its_code_for_each_command() {
    for (status, expected) in [
        (Code::InvalidArgument, [7, 7, 7, 7, 0]),
        (Code::NotFound, [101, 0, 102, 101, 0]),
        (Code::ResourceExhausted, [11, 11, 11, 11, 0]),
        (Code::AlreadyExists, [103, 103, 103, 103, 0]),
        (Code::Unavailable, [11, 11, 11, 11, 50]),
        (Code::Internal, [100, 100, 100, 100, 50]),
    ] {
        let agent = failing(&Status::new(status, "because of this"));
        for (command, expected) in ["ADD", "DEL", "CHECK", "GC", "STATUS"].into_iter().zip(expected) {
            let outcome = agent.run(command, &complete("1.1.0"));
            if expected == 0 {
                assert_silent_success(&outcome);
            } else {
                let (code, message) = error(&outcome);
                assert_eq!(code, expected, "{command} {status:?}: {message}");
                assert!(message.contains("because of this"), "{message}");
            }
        }
    }
}

#[test]
fn a_mute_agent_costs_the_timeout_of_the_configuration_and_no_more() {
    let agent = Agent::away();
    let _mute = UnixListener::bind(agent.dir.path().join("daemon.sock")).unwrap();
    let started = Instant::now();
    let config = network("1.0.0", &json!({"poolName": "p1", "daemonCallTimeoutSeconds": 1}));
    let (code, message) = error(&agent.run("DEL", &config));
    assert_eq!(code, 11, "{message}");
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_version_that_is_not_spoken_is_code_1_and_answered_in_the_callers_words() {
    let agent = Agent::start(Script::default());
    let outcome = agent.run("ADD", &complete("1.2.0"));
    assert_eq!(
        outcome.stdout,
        "{\"cniVersion\":\"1.2.0\",\"code\":1,\"msg\":\"cniVersion: \\\"1.2.0\\\" is not supported, want one of 0.1.0, \
         0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\"}\n"
    );
    assert_eq!(agent.asked(), []);
}

#[test]
fn commands_that_a_version_does_not_have_are_code_1() {
    let agent = Agent::start(Script::default());
    for (command, version, first) in
        [("CHECK", "0.3.1", "0.4.0"), ("CHECK", "", "0.4.0"), ("STATUS", "1.0.0", "1.1.0"), ("GC", "1.0.0", "1.1.0")]
    {
        let (code, message) = error(&agent.run(command, &complete(version)));
        assert_eq!(code, 1);
        assert!(message.ends_with(&format!("want at least {first}")), "{message}");
    }
    assert_eq!(agent.asked(), []);
    for (command, version) in [("CHECK", "0.4.0"), ("STATUS", "1.1.0"), ("GC", "1.1.0"), ("DEL", "0.1.0")] {
        assert_silent_success(&agent.run(command, &complete(version)));
    }
}

#[test]
fn errors_carry_the_version_of_the_request() {
    let agent = Agent::away();
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let outcome = agent.run("ADD", &complete(version));
        assert!(outcome.stdout.starts_with(&format!("{{\"cniVersion\":\"{version}\",\"code\":11,")), "{outcome:?}");
        assert!(outcome.stdout.ends_with("}\n"));
    }
}

#[test]
fn input_that_is_no_json_object_is_a_decoding_error() {
    let agent = Agent::start(Script::default());
    for stdin in ["", "{", "[]", "null", "\"x\"", "{\"a\":1}}", "\u{feff}{}"] {
        let (code, message) = error(&agent.run_with(&environment("ADD"), stdin.as_bytes()));
        assert_eq!(code, 6, "{stdin}");
        assert!(message.starts_with("standard input: "), "{message}");
    }
    assert_eq!(error(&agent.run_with(&environment("ADD"), &[0xFF, 0xFE])).0, 6);
}

#[test]
fn a_command_that_does_not_exist_is_told_whatever_stands_on_standard_input() {
    let agent = Agent::start(Script::default());
    let config = network("0.4.0", &json!({"poolName": "p1"})).to_string();
    for (stdin, version) in [("", "1.1.0"), ("[", "1.1.0"), ("{}", "0.1.0"), (config.as_str(), "0.4.0")] {
        for command in ["FOO", "add", "ADD "] {
            let outcome = agent.run_with(&environment(command), stdin.as_bytes());
            let (code, message) = error(&outcome);
            assert_eq!(code, 4, "{stdin}: {message}");
            let wanted = format!("CNI_COMMAND: {command:?} is unknown, want ADD, DEL, CHECK, STATUS, GC or VERSION");
            assert_eq!(message, wanted);
            assert!(outcome.stdout.starts_with(&format!("{{\"cniVersion\":\"{version}\"")), "{outcome:?}");
        }
    }
    assert_eq!(agent.asked(), []);
}

#[test]
fn too_much_input_is_refused_before_it_fills_the_memory() {
    let agent = Agent::start(Script::default());
    let environment = environment("ADD").into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    let invocation = ipam_cni::Invocation { environment, stdin: std::io::repeat(b' ') };
    let (code, message) = error(&ipam_cni::run(invocation, &agent.defaults()));
    assert_eq!((code, message.as_str()), (6, "standard input: more than 16777216 bytes"));
}

#[test]
fn a_network_without_a_name_is_refused() {
    let agent = Agent::start(Script::default());
    for name in [json!(null), json!("")] {
        let (code, message) = error(&agent.run("DEL", &with(complete("1.0.0"), &json!({"name": name}))));
        assert_eq!((code, message.as_str()), (7, "name: missing, want a non-empty string"));
    }
    let (_, message) = error(&agent.run("DEL", &with(complete("1.0.0"), &json!({"name": 5}))));
    assert_eq!(message, "name: 5 is not what belongs here, want a string");
}

#[test]
fn a_log_file_that_cannot_be_written_fails_no_call_and_is_noted_once() {
    let agent = Agent::start(Script::default());
    let ipam = json!({"poolName": "pool1", "logFile": "/proc/nonexistent/x.log", "logLevel": "verbose"});
    let outcome = agent.run("ADD", &network("1.0.0", &ipam));
    assert_eq!(outcome.status, 0);
    assert!(outcome.stdout.starts_with("{\"cniVersion\":\"1.0.0\",\"ips\":"));
    assert!(outcome.stderr.starts_with("nv-ipam: cannot write the log file /proc/nonexistent/x.log: "), "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1);
}

#[test]
fn each_call_leaves_one_line_with_its_fields_in_the_log() {
    let agent = Agent::start(Script::default());
    agent.run("ADD", &complete("1.0.0"));
    agent.run("DEL", &complete("1.0.0"));
    agent.run("DEL", &with(complete("1.0.0"), &json!({"name": null})));
    let text = std::fs::read_to_string(agent.log()).unwrap();
    let lines = text.lines().collect::<Vec<_>>();
    assert_eq!(lines.len(), 3, "{text}");
    for (line, level, command) in
        [(lines[0], "[info] done", "ADD"), (lines[1], "[info] done", "DEL"), (lines[2], "[error] failed", "DEL")]
    {
        assert!(line.contains(level), "{line}");
        assert!(line.contains(" duration="), "{line}");
        let context = format!(" command={command} container=c0ffee ifname=net1 netns=/var/run/netns/x");
        assert!(line.contains(&context), "{line}");
    }
    assert!(lines[0].contains("192.168.0.2/24") && lines[0].contains("pools=pool1"), "{text}");
    assert!(lines[2].contains("name: missing"), "{text}");
}

#[test]
fn an_ipam_section_that_is_no_object_is_named_and_asks_for_nothing() {
    let agent = Agent::start(Script::default());
    for ipam in [json!("a"), json!([1]), json!(7), json!(true)] {
        let (code, message) = error(&agent.run("ADD", &with(network("1.0.0", &json!({})), &json!({"ipam": ipam}))));
        assert_eq!(code, 7, "{message}");
        assert!(message.contains("ipam") && message.contains("want an object"), "{message}");
    }
    assert!(agent.asked().is_empty());
}
