//! Histories of the crash laboratory: a fixed range of seeds, and another range for each commit. `cargo laboratory` plays more of them.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail the test")]

use std::io::Write as _;
use std::path::Path;

use ipam_simulator::laboratory::{Played, play};

/// Histories of each range.
const HISTORIES: u64 = 300;

#[test]
fn an_agent_finds_after_each_cut_what_it_had_answered() {
    for first in [0, fresh_start()] {
        let mut all = Played::default();
        let last = first.checked_add(HISTORIES).unwrap();
        for seed in first..last {
            match play(seed) {
                Ok(played) => all.join(played),
                Err(finding) => panic!("{finding}"),
            }
        }
        drop(writeln!(std::io::stderr(), "seeds {first}..{last}: {all}"));
        let Played { cuts, lost, refused, waiting } = all;
        assert!(cuts > 10_000 && lost > 0 && refused > 0 && waiting > 0, "{all}");
    }
}

/// Where the seeds of this commit begin.
fn fresh_start() -> u64 {
    ipam_simulator::fresh::seed(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap()
}
