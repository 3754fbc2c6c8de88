//! The outputs for programs: JSON, SARIF, and commands of GitHub Actions.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::{Ran, good, run};
use crate::{ip_pool, network};

/// A valid pool with a warning, an invalid pool, a network with a mistyped pool, a file that cannot be read.
fn ran(output: &str) -> Ran {
    let folder = TempDir::new().unwrap();
    let warned = ip_pool("warned", "{subnet: 10.2.0.0/24, perNodeBlockSize: 4, colour: red}");
    let typo = network("net", r#"{"ipam": {"type": "nv-ipam", "poolName": "wraned"}}"#);
    fs::write(folder.path().join("a,b %.yaml"), [warned, ip_pool("bad", "{}"), typo, "7\n".to_owned()].join("---\n"))
        .unwrap();
    run(folder.path(), &["-o", output, "./a,b %.yaml", "none.yaml"], "")
}

fn parsed(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn json_has_the_version_and_the_files_that_cannot_be_read() {
    let ran = ran("json");
    let report = parsed(&ran);
    assert_eq!(
        (ran.code, &report["valid"], &report["version"]),
        (Some(2), &json!(false), &json!(env!("CARGO_PKG_VERSION")))
    );
    assert_eq!(report["errors"][0]["file"], "none.yaml");
    assert!(report["errors"][0]["message"].as_str().unwrap().starts_with("cannot be read: No such file"));
    assert_eq!(report["networks"][0]["warnings"][0]["code"], "UnknownPool");
}

#[test]
fn json_is_invalid_when_nothing_but_a_file_is_missing() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("good.yaml"), good("a", 1)).unwrap();
    let ran = run(folder.path(), &["-o", "json", "good.yaml", "none.yaml"], "");
    assert_eq!((ran.code, &parsed(&ran)["valid"]), (Some(2), &json!(false)));
}

#[test]
fn sarif_has_each_finding_with_rule_level_and_place() {
    let ran = ran("sarif");
    let log = parsed(&ran);
    let run = &log["runs"][0];
    assert_eq!((ran.code, &log["version"]), (Some(2), &json!("2.1.0")));
    let results: Vec<[&Value; 4]> = run["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let region = &one["locations"][0]["physicalLocation"]["region"];
            [&one["ruleId"], &one["level"], &region["startLine"], &region["startColumn"]]
        })
        .collect();
    let expected = json!([
        ["Malformed", "error", 16, 1],
        ["UnknownField", "warning", 4, 50],
        ["Required", "error", 9, 1],
        ["Required", "error", 9, 1],
        ["UnknownPool", "warning", 14, 16],
    ]);
    assert_eq!(json!(results), expected, "{}", ran.out);
    let first = &run["results"][2];
    assert_eq!(first["locations"][0]["physicalLocation"]["artifactLocation"]["uri"], "a%2Cb%20%25.yaml");
    let text = first["message"]["text"].as_str().unwrap();
    assert!(text.starts_with("IPPool kube-system/bad: spec."), "{text}");
    let rules: Vec<&str> =
        run["tool"]["driver"]["rules"].as_array().unwrap().iter().map(|rule| rule["id"].as_str().unwrap()).collect();
    assert_eq!(rules, ["Malformed", "Required", "UnknownField", "UnknownPool"]);
    let invocation = &run["invocations"][0];
    let notification = &invocation["toolExecutionNotifications"][0];
    assert_eq!((&invocation["executionSuccessful"], &notification["level"]), (&json!(false), &json!("error")));
}

#[test]
fn github_shows_each_finding_beside_its_line() {
    let ran = ran("github");
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!((ran.code, lines.len()), (Some(2), 7), "{}", ran.out);
    assert!(lines[0].starts_with("::error file=none.yaml::cannot be read: "), "{}", lines[0]);
    let warning = "::warning file=./a%2Cb %25.yaml,line=4,col=50,title=IPPool kube-system/warned::spec.colour: ";
    assert!(lines[2].starts_with(warning), "{}", lines[2]);
    let error = "::error file=./a%2Cb %25.yaml,line=9,col=1,title=IPPool kube-system/bad::spec.";
    assert!(lines[3].starts_with(error), "{}", lines[3]);
    assert!(lines[6].starts_with("2 pools: 1 valid, 1 invalid"), "{}", lines[6]);
}

#[test]
fn a_line_end_in_a_manifest_makes_no_command() {
    let folder = TempDir::new().unwrap();
    let hostile = ip_pool("\"a\\n::error::x\"", "{subnet: \"10.0.0.0/24\\n::stop-commands::t\", perNodeBlockSize: 4}");
    let ran = run(folder.path(), &["-o", "github", "-"], &hostile);
    let commands: Vec<&str> = ran.out.lines().filter(|line| line.starts_with("::")).collect();
    assert!(
        !commands.is_empty() && commands.iter().all(|line| line.starts_with("::error file=-,line=")),
        "{}",
        ran.out
    );
}
