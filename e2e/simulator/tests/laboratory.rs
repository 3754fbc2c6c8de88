//! Histories of the crash laboratory. `cargo laboratory` plays more of them.

use std::io::Write as _;

use ipam_simulator::laboratory::{Played, play};

/// Histories of the fixed range.
const HISTORIES: u64 = 300;

#[test]
fn an_agent_finds_after_each_cut_what_it_had_answered() {
    let mut all = Played::default();
    for seed in 0..HISTORIES {
        match play(seed) {
            Ok(played) => all.join(played),
            Err(finding) => panic!("{finding}"),
        }
    }
    drop(writeln!(std::io::stderr(), "{all}"));
    let Played { cuts, lost, refused, waiting } = all;
    assert!(cuts > 10_000 && lost > 0 && refused > 0 && waiting > 0, "{all}");
}
