//! What stands on standard output for each version of the specification, byte for byte.

mod support;

use serde_json::json;
use support::{Agent, Asked, Script, allocation, error, network};

const POOLS: &str = "v4, v6";

fn dual_stack() -> Script {
    let v4 = allocation("v4", "192.168.0.2/24", "192.168.0.1", &["0.0.0.0/0", "10.9.8.7/8"]);
    let v6 = allocation("v6", "fd00::2/64", "", &[]);
    Script { allocate: Ok(vec![v4, v6]), ..Script::default() }
}

#[test]
fn add_answers_in_the_form_of_each_version() {
    let per_family = |version| {
        format!(
            r#"{{"cniVersion":"{version}","ip4":{{"ip":"192.168.0.2/24","gateway":"192.168.0.1","routes":[{{"dst":"0.0.0.0/0","gw":"192.168.0.1"}},{{"dst":"10.0.0.0/8","gw":"192.168.0.1"}}]}},"ip6":{{"ip":"fd00::2/64"}},"dns":{{}}}}"#
        )
    };
    let with_version = |version| {
        format!(
            r#"{{"cniVersion":"{version}","ips":[{{"version":"4","address":"192.168.0.2/24","gateway":"192.168.0.1"}},{{"version":"6","address":"fd00::2/64"}}],"routes":[{{"dst":"0.0.0.0/0","gw":"192.168.0.1"}},{{"dst":"10.0.0.0/8","gw":"192.168.0.1"}}],"dns":{{}}}}"#
        )
    };
    let without_version = |version| {
        format!(
            r#"{{"cniVersion":"{version}","ips":[{{"address":"192.168.0.2/24","gateway":"192.168.0.1"}},{{"address":"fd00::2/64"}}],"routes":[{{"dst":"0.0.0.0/0","gw":"192.168.0.1"}},{{"dst":"10.0.0.0/8","gw":"192.168.0.1"}}],"dns":{{}}}}"#
        )
    };
    let agent = Agent::start(dual_stack());
    for (version, golden) in [
        ("0.1.0", per_family("0.1.0")),
        ("0.2.0", per_family("0.2.0")),
        ("0.3.0", with_version("0.3.0")),
        ("0.3.1", with_version("0.3.1")),
        ("0.4.0", with_version("0.4.0")),
        ("1.0.0", without_version("1.0.0")),
        ("1.1.0", without_version("1.1.0")),
    ] {
        let outcome = agent.run("ADD", &network(version, &json!({"poolName": POOLS})));
        assert_eq!(outcome.stdout, golden + "\n");
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""));
    }
}

#[test]
fn no_version_at_all_means_the_oldest_form() {
    let agent = Agent::start(Script::default());
    for version in [json!(null), json!("")] {
        let mut config = network("", &json!({"poolName": "pool1"}));
        config["cniVersion"] = version;
        assert!(agent.run("ADD", &config).stdout.starts_with(r#"{"cniVersion":"0.1.0","ip4":{"ip":"192.168.0.2/24""#));
    }
    let config = json!({"name": "n", "ipam": {"poolName": "pool1"}});
    assert!(agent.run("ADD", &config).stdout.starts_with(r#"{"cniVersion":"0.1.0","ip4":{"ip":"192.168.0.2/24""#));
    let config = json!({"name": "n", "ipam": {"poolName": 7}});
    assert!(agent.run("ADD", &config).stdout.starts_with(r#"{"cniVersion":"0.1.0","code":7,"#));
}

#[test]
fn version_lists_what_is_spoken_and_answers_in_the_callers_version() {
    let all = r#""supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#;
    let agent = Agent::away();
    for (stdin, version) in [
        (r#"{"cniVersion":"0.4.0"}"#, "0.4.0"),
        (r#"{"cniVersion":"1.1.0"}"#, "1.1.0"),
        (r#"{"cniVersion":"9.9.9"}"#, "9.9.9"),
        ("", "1.1.0"),
        ("[", "1.1.0"),
    ] {
        let outcome = agent.run_with(&[("CNI_COMMAND", "VERSION")], stdin.as_bytes());
        assert_eq!(outcome.stdout, format!("{{\"cniVersion\":\"{version}\",{all}\n"));
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""));
    }
}

#[test]
fn the_oldest_form_has_the_first_address_of_each_family() {
    let pools = vec![allocation("a", "10.0.0.2/24", "", &[]), allocation("b", "10.0.1.2/24", "", &[])];
    let agent = Agent::start(Script { allocate: Ok(pools), ..Script::default() });
    let mut config = network("0.2.0", &json!({"poolName": "a,b"}));
    config["runtimeConfig"] = json!({"ips": ["10.0.0.2", "10.0.1.2"]});
    let outcome = agent.run("ADD", &config);
    assert_eq!(outcome.stdout, "{\"cniVersion\":\"0.2.0\",\"ip4\":{\"ip\":\"10.0.0.2/24\"},\"dns\":{}}\n");
}

#[test]
fn an_answer_that_makes_no_sense_is_an_error_and_releases_nothing() {
    for (answer, what) in [
        (vec![], "asked for pools [\"pool1\"], got []"),
        (vec![allocation("other", "10.0.0.2/24", "", &[])], "asked for pools [\"pool1\"], got [\"other\"]"),
        (vec![allocation("pool1", "10.0.0.2", "", &[])], "ip \"10.0.0.2\" is not an address with a prefix length"),
        (vec![allocation("pool1", "10.0.0.2/24", "x", &[])], "gateway \"x\" is not an address"),
        (vec![allocation("pool1", "10.0.0.2/24", "", &["x"])], "route \"x\" is not an address with a prefix length"),
        (vec![allocation("pool1", "10.0.0.2/24", "fd00::1", &[])], "gateway or route of the other family"),
        (vec![allocation("pool1", "10.0.0.2/24", "10.0.0.1", &["::/0"])], "gateway or route of the other family"),
    ] {
        let agent = Agent::start(Script { allocate: Ok(answer), ..Script::default() });
        let (code, message) = error(&agent.run("ADD", &network("1.0.0", &json!({"poolName": "pool1"}))));
        assert_eq!(code, 100, "{message}");
        assert!(message.contains(what), "{message}");
        assert!(matches!(agent.asked_once(), Asked::Allocate(_)));
    }
}
