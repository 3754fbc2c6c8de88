//! The memory of the real program, whatever the bytes are: it must end well where it may have no more than a share of the
//! input's size and what the program takes by itself.

use std::fmt::Write as _;
use std::fs;

use assert_cmd::Command;

use crate::{ip_pool, output};

/// KiB of address space that the program takes for an input of a few bytes: text, libraries, first heap, stack.
const PROGRAM: usize = 48 << 10;
/// KiB of address space for each KiB of input.
const EACH: usize = 110;

/// The exit status where the program may have `limit` KiB of address space.
fn judged_within(limit: usize, file: &str) -> Option<i32> {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v {limit} && exec \"$@\""), "sh", env!("CARGO_BIN_EXE_ipam-controller")]);
    output(command.args(["validate", file, "-o", "json"])).status.code()
}

fn hostile() -> Vec<(&'static str, String)> {
    let size = 1_500_000;
    let exclusions = |one: &str| {
        let list = vec![one; size / one.len()].join(",");
        ip_pool("p", &format!("{{subnet: 10.0.0.0/8, perNodeBlockSize: 100, exclusions: [{list}]}}"))
    };
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..30 {
        let previous = level - 1;
        writeln!(bomb, "a{level}: &a{level} [{}]", vec![format!("*a{previous}"); 10].join(", ")).unwrap();
    }
    let pool = ip_pool("p", "{subnet: 10.0.0.0/8, perNodeBlockSize: 100}\n---");
    vec![
        ("exclusions", exclusions("{startIP: 10.0.0.1, endIP: 10.0.0.9}")),
        ("exclusions that are wrong", exclusions("{startIP: a, endIP: b}")),
        ("very many values", exclusions("1")),
        ("pools", pool.repeat(size / pool.len())),
        ("deep nesting", "[".repeat(size)),
        ("a long text", ip_pool(&"x".repeat(size), "{}")),
        ("a bomb of aliases", bomb),
    ]
}

#[test]
fn memory_stays_in_proportion_to_the_bytes() {
    let folder = tempfile::tempdir().unwrap();
    for (what, text) in hostile() {
        let file = folder.path().join("p.yaml");
        fs::write(&file, &text).unwrap();
        let limit = PROGRAM + EACH * text.len().div_ceil(1024);
        assert_eq!(judged_within(limit, file.to_str().unwrap()), Some(1), "{what}: {} bytes, {limit} KiB", text.len());
    }
}
