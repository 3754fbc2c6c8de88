//! The command itself: files, folders, standard input, exit status.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

use crate::{ip_pool, network, output, retold};

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn run(folder: &Path, args: &[&str], input: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipam-controller"));
    let output = output(command.current_dir(folder).arg("validate").args(args).write_stdin(input));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

pub(crate) fn good(name: &str, net: u8) -> String {
    ip_pool(name, &format!("{{subnet: 10.{net}.0.0/24, perNodeBlockSize: 4}}"))
}

#[test]
fn the_exit_status_tells_fine_from_refused_from_unreadable() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("good.yaml"), good("a", 1)).unwrap();
    fs::write(folder.path().join("bad.yaml"), ip_pool("b", "{}")).unwrap();
    let code = |args: &[&str]| run(folder.path(), args, "").code;
    assert_eq!(code(&["good.yaml"]), Some(0));
    assert_eq!(code(&["good.yaml", "bad.yaml"]), Some(1));
    assert_eq!(code(&["good.yaml", "none.yaml", "bad.yaml"]), Some(2));
    assert_eq!(code(&["--no-such-flag", "good.yaml"]), Some(2));
    assert_eq!(code(&[]), Some(2));
    assert_eq!(code(&["--help"]), Some(0));
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_judged() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("bad.yaml"), ip_pool("b", "{}")).unwrap();
    let ran = run(folder.path(), &["none.yaml", "bad.yaml"], "");
    assert!(ran.err.contains("none.yaml: cannot be read: "), "{}", ran.err);
    assert!(ran.out.contains("bad.yaml:4:1") && ran.out.contains("spec.subnet"), "{}", ran.out);
}

#[test]
fn folders_are_read_as_kubectl_reads_them() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("deep")).unwrap();
    for (file, text) in
        [("a.yaml", good("a", 1)), ("b.yml", good("b", 2)), ("c.txt", "[".to_owned()), ("deep/d.json", "{}".to_owned())]
    {
        fs::write(folder.path().join(file), text).unwrap();
    }
    std::os::unix::fs::symlink(".", folder.path().join("deep/loop")).unwrap();
    let flat = run(folder.path(), &["."], "");
    assert_eq!((flat.code, flat.out.lines().last()), (Some(0), Some("2 pools: 2 valid, 0 invalid")));
    let deep = run(folder.path(), &["-R", "."], "");
    assert_eq!(deep.code, Some(1));
    assert!(deep.out.contains("./deep/d.json:1:1: document 1: kind: is required"), "{}", deep.out);
    let empty = TempDir::new().unwrap();
    let nothing = run(empty.path(), &["."], "");
    assert_eq!(nothing.code, Some(2));
    assert!(nothing.err.contains("no .yaml, .yml or .json file"), "{}", nothing.err);
}

#[test]
fn standard_input_is_a_file_that_can_be_named_once() {
    let folder = TempDir::new().unwrap();
    assert_eq!(run(folder.path(), &["-"], &good("a", 1)).code, Some(0));
    assert!(run(folder.path(), &["-"], "[").out.starts_with("-:1:1: "));
    assert_eq!(run(folder.path(), &["-", "-"], "").code, Some(2));
}

#[test]
fn what_is_named_and_holds_nothing_is_told_unless_it_says_so_itself() {
    let folder = TempDir::new().unwrap();
    let other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n";
    let list = "{apiVersion: v1, kind: List, items: []}";
    for (file, text) in [
        ("good.yaml", &*good("a", 1)),
        ("none.yaml", ""),
        ("notes.yaml", "# none\n---\n\n---\n"),
        ("other.yaml", other),
    ] {
        fs::write(folder.path().join(file), text).unwrap();
    }
    for (args, input, lacking) in [
        (&["none.yaml"][..], "", &["none.yaml"][..]),
        (&["-"], " \n", &["-"]),
        (&["notes.yaml", "good.yaml", "none.yaml"], "", &["notes.yaml", "none.yaml"]),
        (&["other.yaml"], "", &[]),
        (&["-"], list, &[]),
        // Of a folder it is enough that something is in it.
        (&["."], "", &[]),
    ] {
        let ran = run(folder.path(), args, input);
        let told: Vec<_> = ran.err.lines().filter_map(|line| line.strip_suffix(": has no document")).collect();
        let told: Vec<&str> =
            told.into_iter().filter_map(|line| line.rsplit_once(": ")).map(|(_, file)| file).collect();
        assert_eq!((told, ran.code), (lacking.to_vec(), Some(if lacking.is_empty() { 0 } else { 2 })), "{args:?}");
    }
}

#[test]
fn a_list_of_nodes_may_come_by_a_pipe() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("good.yaml"), good("a", 1)).unwrap();
    let ran = run(folder.path(), &["good.yaml", "--node-list", "/dev/stdin", "--explain"], "node/x\nnode/y\n");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains("2 of 2 nodes fit") && ran.out.contains("  x  10.1.0.1-10.1.0.4"), "{}", ran.out);
}

#[test]
fn the_operators_own_help_names_the_subcommand() {
    let help = output(Command::new(env!("CARGO_BIN_EXE_ipam-controller")).arg("--help"));
    assert!(String::from_utf8_lossy(&help.stdout).contains("validate FILE"));
}

/// Pools of every fate: valid, surprising, wrong, wrong in very many places, in a list, without room for all nodes; an object
/// of another kind; two networks, one of which names a pool that does not exist; and a document that is no object.
fn every_fate() -> String {
    let wrong = vec!["{startIP: a, endIP: b}"; 600].join(", ");
    [
        good("valid", 1),
        ip_pool("surprising", "{subnet: 10.2.0.0/24, perNodeBlockSize: 4, colour: red}"),
        ip_pool("wrong", "{}"),
        ip_pool("very-wrong", &format!("{{subnet: 10.3.0.0/24, perNodeBlockSize: 4, exclusions: [{wrong}]}}")),
        format!("apiVersion: v1\nkind: List\nitems:\n- {}\n", ip_pool("listed", "{}").trim_end().replace('\n', "\n  ")),
        crate::cidr_pool("routed", "{cidr: 10.4.0.0/24, perNodeNetworkPrefix: 24, gatewayIndex: 1}"),
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n".to_owned(),
        network("typo", r#"{"ipam": {"type": "nv-ipam", "poolName": "vaild"}}"#),
        network("broken", r#"{"ipam": {"type": "nv-ipam", "poolType": "pool"}}"#),
        "7\n".to_owned(),
    ]
    .join("---\n")
}

#[test]
fn json_says_all_that_the_text_says() {
    let folder = TempDir::new().unwrap();
    let args = ["-", "--nodes", "2", "--explain"];
    let text = run(folder.path(), &args, &every_fate());
    let json = run(folder.path(), &[&args[..], &["-o", "json"]].concat(), &every_fate());
    assert_eq!((text.code, json.code), (Some(1), Some(1)));
    let report: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(report["valid"], false);
    let retold = retold::lines(&report);
    let lines: Vec<&str> = text.out.lines().collect();
    assert_eq!(lines, retold.iter().map(String::as_str).collect::<Vec<_>>());
    for part in ["item 0", "warning: ", "more errors", "no block is left", "gateway 10.4.0.1", "not recognized"] {
        assert!(text.out.contains(part), "{part:?} is not in the text: {}", text.out);
    }
}

#[test]
fn wrong_flags_are_all_named_at_once() {
    let folder = TempDir::new().unwrap();
    let ran = run(folder.path(), &["-", "--node-list", "A", "--ippools-namespace", "B"], "");
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("--node-list \"A\"") && ran.err.contains("--ippools-namespace \"B\""), "{}", ran.err);
    let ran = run(folder.path(), &["-", "--explain", "--node-list", "no/file"], "");
    assert!(ran.err.contains("there is no file of this name"), "{}", ran.err);
    assert!(run(folder.path(), &["-", "--explain"], "").err.contains("--explain needs --nodes"));
}
