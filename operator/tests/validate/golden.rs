//! The output for people, word by word. After a change that is meant: `INSTA_UPDATE=always cargo test -p ipam-operator`.

use ipam_validate::{Nodes, Options, validate};

use crate::words;

const MIXED: &str = include_str!("mixed.yaml");
const PLANNED: &str = include_str!("planned.yaml");

#[test]
fn a_file_with_every_kind_of_mistake() {
    insta::assert_snapshot!(words(&validate([("mixed.yaml", MIXED.as_bytes())], &Options::default())));
}

#[test]
fn the_same_file_judged_strictly() {
    let options = Options { strict: true, ..Options::default() };
    insta::assert_snapshot!(words(&validate([("mixed.yaml", MIXED.as_bytes())], &options)));
}

#[test]
fn a_plan_for_nodes() {
    let options = Options { nodes: Some(Nodes::numbered(4).unwrap()), explain: true, ..Options::default() };
    insta::assert_snapshot!(words(&validate([("planned.yaml", PLANNED.as_bytes())], &options)));
}
