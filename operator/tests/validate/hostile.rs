//! Input that is broken, or made to break: whatever it is, the answer is an error with a place.

use std::fmt::Write as _;

use ipam_validate::{MAX_BYTES, Options, validate};

use crate::{has, ip_pool, judged, words};

const GOOD: &str = "{subnet: 192.168.0.0/16, perNodeBlockSize: 4}";

fn refused(bytes: &[u8], message: &str) {
    let report = validate([("p.yaml", bytes)], &Options::default());
    assert!(!report.is_valid());
    assert!(words(&report).contains(message), "{:.300} lacks {message:?}", words(&report));
}

#[test]
fn aliases_of_aliases_end_before_they_are_built() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..30 {
        let previous = level - 1;
        writeln!(text, "a{level}: &a{level} [{}]", vec![format!("*a{previous}"); 10].join(", ")).unwrap();
    }
    refused(text.as_bytes(), "more than 1000000 values, aliases resolved");
}

#[test]
fn aliases_do_not_nest_deeper_than_text_may() {
    let mut text = "a0: &a0 [x]\n".to_owned();
    for level in 1..5_000 {
        writeln!(text, "a{level}: &a{level} [*a{}]", level - 1).unwrap();
    }
    refused(text.as_bytes(), "lists and objects stand in each other");
}

#[test]
fn an_alias_inside_of_what_it_names_is_an_error() {
    refused(b"a: &a [*a]\n", "inside of what it names");
    refused(b"a: *nobody\n", "does not read as YAML");
}

#[test]
fn a_field_without_a_name_is_named_all_the_same() {
    let text = format!("{}\n\"\": 1\n", ip_pool("p", GOOD));
    let report = validate([("p.yaml", text.as_bytes())], &Options::default());
    assert!(words(&report).contains("\"\": is no field of a pool"), "{}", words(&report));
}

#[test]
fn a_directive_is_refused_where_kubectl_would_take_it_for_a_document() {
    refused(b"# A pool\n\n%YAML 1.2\n---\na: 1\n", "is a directive, which kubectl does not read");
}

#[test]
fn aliases_and_merges_that_mean_well_are_read_as_kubectl_does() {
    let text = "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IPPool\nmetadata: {name: &n p, labels: {a: *n}}\n\
        spec: {<<: {subnet: 10.0.0.0/24, perNodeBlockSize: 0}, perNodeBlockSize: 4}\n";
    let report = judged(text);
    assert!(report.is_valid() && report.pools[0].name == "p", "{}", words(&report));
}

#[test]
fn deep_nesting_is_an_error_in_yaml_and_json() {
    for open in ["[", "{a: ", "{\"a\":", "- ", "? "] {
        refused(open.repeat(200_000).as_bytes(), "");
    }
    let closed = format!("{}{}", "{\"a\":[".repeat(40), "]}".repeat(40));
    refused(closed.as_bytes(), "lists and objects stand in each other");
}

#[test]
fn what_is_no_text_is_an_error_with_a_place() {
    refused(b"a: b\nc: \xff\n", "p.yaml:2:4: document 1: is no text: here is a byte that UTF-8 does not have");
    refused(b"\x7fELF\x02\x01\x00\x00", "1:5: document 1: is no text: here is a control character");
    refused(b"\xff\xfea\0:\0", "is UTF-16; write UTF-8");
    refused(&vec![b' '; MAX_BYTES + 1], "is larger than 16 MiB");
}

#[test]
fn a_byte_order_mark_and_carriage_returns_change_nothing() {
    let text = ip_pool("p", "{\n  subnet: 192.168.0.0/16,\n  perNodeBlockSize: 0}");
    for changed in [format!("\u{feff}{text}"), text.replace('\n', "\r\n")] {
        let report = judged(&changed);
        has(&report, &[("spec.perNodeBlockSize", "OutOfRange")]);
        assert_eq!(report.pools[0].problems[0].place.line, 6, "{changed:?}");
    }
}

#[test]
fn nothing_at_all_is_no_pool_and_no_error() {
    for text in ["", "\n", "---\n", "# nothing\n---\n...\n", "null\n", "\u{feff}"] {
        let report = judged(text);
        assert!(report.is_valid() && report.pools.is_empty() && report.skipped == 0, "{text:?}: {}", words(&report));
    }
}

#[test]
fn no_control_character_of_a_manifest_reaches_the_terminal() {
    let text = ip_pool("\"a\\e[31m\\nb\"", "{subnet: \"\\e[2J\", perNodeBlockSize: 4, \"\\ex\": 1}");
    let words = words(&judged(&text));
    assert!(words.contains("metadata.name") && words.contains("spec.subnet"), "{words}");
    assert!(!words.chars().any(|c| c.is_control() && c != '\n'), "{words:?}");
}

#[test]
fn what_is_said_stays_short_however_long_the_values_are() {
    let long = "1".repeat(500_000);
    let spec = format!(
        "{{subnet: '{long}', perNodeBlockSize: '{long}', gateway: '{long}', '{}': 1, exclusions: '{long}'}}",
        "k".repeat(1_000)
    );
    let report = judged(&ip_pool(&format!("'{long}_'"), &spec));
    assert!(report.pools[0].problems.len() >= 5);
    let told: usize = report.pools[0].problems.iter().map(|problem| problem.field.len() + problem.message.len()).sum();
    assert!(told < 20_000, "{told} bytes");
}

#[test]
fn of_very_many_mistakes_the_first_are_told_and_the_others_counted() {
    let spec = format!(
        "{{subnet: 10.0.0.0/24, perNodeBlockSize: 4, exclusions: [{}]}}",
        vec!["{startIP: a, endIP: b}"; 2_000].join(", ")
    );
    let report = judged(&ip_pool("p", &spec));
    assert_eq!((report.pools[0].problems.len(), report.pools[0].untold), (1_000, 3_000));
    assert!(words(&report).lines().count() < 100);
}

#[test]
fn yaml_in_braces_is_read_and_broken_json_is_told_as_json() {
    let braces =
        format!("{{apiVersion: nv-ipam.nvidia.com/v1alpha1, kind: IPPool, metadata: {{name: p}}, spec: {GOOD}}}");
    assert!(judged(&braces).is_valid());
    let report = validate([("p.json", b"{\"a\": 1,\n  \"b\": }".as_slice())], &Options::default());
    assert!(
        words(&report).starts_with("p.json:2:8: document 1: does not read as JSON: expected value"),
        "{}",
        words(&report)
    );
}

#[test]
fn objects_of_json_may_stand_one_behind_the_other() {
    let pool = |name: &str| {
        format!(
            "{{\"apiVersion\": \"nv-ipam.nvidia.com/v1alpha1\", \"kind\": \"IPPool\", \"metadata\": {{\"name\": \"{name}\"}},\n\t\"spec\": {{\"subnet\": \"10.0.0.0/24\"}}}}\n"
        )
    };
    let report = judged(&(pool("a") + &pool("b")));
    let lines: Vec<_> = report.pools.iter().map(|pool| pool.problems[0].place.line).collect();
    assert_eq!(lines, [2, 4]);
}
