//! Histories of a simulated cluster, from seeds: a law breaks only by a known fault, or where it allows that by name. A fixed range
//! of seeds, and another range for each commit; `NV_IPAM_SEED` sets its start.
//!
//! `cargo sim --seeds 10000..100000` plays more of them, and one that fails is printed shrunk.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of a test fail the test, and a failing test shows what was played"
)]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use ipam_simulator::differential::agents_agree;
use ipam_simulator::known::{FAULTS, class};
use ipam_simulator::many::ENOUGH;
use ipam_simulator::recorded::fault_of;
use ipam_simulator::{End, Order, Simulator, Totals, history, play_many, recorded, shrink};

/// Steps of each history.
const STEPS: usize = 100;
/// Histories of the fixed range.
const FIXED: u64 = 10_000;
/// Histories of the range of the commit.
const FRESH: u64 = 20_000;
/// Histories of each range of the agent's watch alone.
const AGENTS: u64 = 200;

#[test]
fn no_history_breaks_a_law_but_by_a_known_fault() {
    let (mut all, known) = play(0, FIXED);
    // The seeds of this range never change, so a known fault that a change of the product adds to it is news.
    assert_eq!(known, [(986, "agent-is-down-before-a-restore")]);
    all.join(&play(fresh_start(), FRESH).0);
    show(&all.to_string());
    assert!(all.seeds >= ENOUGH, "{} histories are too few to judge what never happened", all.seeds);
    assert_eq!(all.wrong([]), Vec::<String>::new(), "{all}");
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/known-faults/README.md")).unwrap();
    let (_, allowed) = page.split_once("## What the laws allow").unwrap();
    let unlisted: Vec<&String> =
        all.allowed_in.keys().filter(|reason| !allowed.contains(&format!("| {reason} |"))).collect();
    assert!(unlisted.is_empty(), "known-faults/README.md does not list these reasons: {unlisted:?}");
    // About one history in 2,000 shows it. When the operator does so no longer, the excuse goes.
    let twice = all.activity.happened();
    assert!(twice.contains("no report can show it"), "no history needs this excuse of allowed.rs: {twice:?}");
}

/// Shows what was played in the log of a run that succeeds, too: the harness captures `println!`, and not this.
fn show(text: &str) {
    std::io::stderr().write_all(format!("{}\n", text.trim_end()).as_bytes()).unwrap();
}

/// What was played, and the seeds that showed a known fault.
fn play(first: u64, seeds: u64) -> (Totals, Vec<(u64, &'static str)>) {
    let last = first.checked_add(seeds).unwrap();
    let began = Instant::now();
    let played = play_many(first..last, STEPS, End::AtFirstFailure).unwrap();
    let known: Vec<_> = played.found.iter().filter_map(|found| Some((found.seed, found.known?.name))).collect();
    let seconds = began.elapsed().as_secs_f64();
    show(&format!("seeds {first}..{last}, {STEPS} steps each, in {seconds:.1} s; known faults: {known:?}"));
    if let Some(found) = played.failure() {
        let history = serde_json::to_string(&found.shortest.history).unwrap();
        panic!("seed {}: {}\n{:#?}\n{history}", found.seed, found.shortest.law, found.shortest.history);
    }
    assert_eq!(played.totals.seeds, seeds);
    assert_eq!(played.wrong(), Vec::<String>::new());
    (played.totals, known)
}

#[test]
fn each_known_fault_still_breaks_its_law() {
    let simulator = Simulator::new().unwrap();
    let recorded = recorded::known_faults().unwrap();
    let names: BTreeSet<&str> = recorded.iter().map(|(name, _)| fault_of(name)).collect();
    let faults: BTreeSet<&str> = FAULTS.iter().map(|fault| fault.name).collect();
    assert_eq!(names, faults, "each known fault has a recogniser, and each recogniser a history");
    for (name, recorded) in &recorded {
        let failure = simulator.play(&recorded.history).err();
        let failure = failure.unwrap_or_else(|| panic!("{name} breaks no law any more: take it off the list"));
        assert_eq!(failure.law.law, recorded.law, "{name}: {}", failure.law);
        assert_eq!(class(&failure).map(|fault| fault.name), Some(fault_of(name)), "{name} is not recognised");
        let shrunk = class(&shrink(&simulator, failure, Order::Forwards)).map(|fault| fault.name);
        // A history that was changed by hand can shrink to another known fault.
        let is_it = shrunk == Some(fault_of(name)) || (recorded.found.contains("changed by hand") && shrunk.is_some());
        assert!(is_it, "{name}, shrunk, is recognised as {shrunk:?}");
    }
}

#[test]
fn each_history_that_failed_once_breaks_no_law_now() {
    let simulator = Simulator::new().unwrap();
    let recorded = recorded::regressions().unwrap();
    assert!(!recorded.is_empty(), "e2e/simulator/regressions must hold histories");
    for (name, recorded) in &recorded {
        if let Err(failure) = simulator.play(&recorded.history) {
            panic!("e2e/simulator/regressions/{name}.json breaks a law again: {}", failure.law);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_end() {
    let simulator = Simulator::new().unwrap();
    let end = |seed| match simulator.run(seed, STEPS) {
        Ok(world) => world.summary(),
        Err(failure) => failure.law.to_string(),
    };
    for seed in 0..50 {
        assert_eq!(end(seed), end(seed), "seed {seed}");
        assert_ne!(history(seed, STEPS), history(seed + 1, STEPS));
    }
}

#[test]
fn the_model_of_the_agents_watch_does_what_the_original_does() {
    for first in [0, fresh_start()] {
        let last = first.checked_add(AGENTS).unwrap();
        let began = Instant::now();
        for seed in first..last {
            agents_agree(seed).unwrap_or_else(|difference| panic!("seed {seed}: {difference}"));
        }
        show(&format!("agents, seeds {first}..{last}, in {:.1} s", began.elapsed().as_secs_f64()));
    }
}

/// Where the seeds of this commit begin.
fn fresh_start() -> u64 {
    ipam_simulator::fresh::seed(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap()
}
