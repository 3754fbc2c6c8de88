//! Every fuzzing target, over its corpus and a bounded number of seeded mutations. Long runs are libFuzzer's: e2e/fuzz.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ipam_e2e::fuzz::mutate::Mutator;
use ipam_e2e::fuzz::{TARGETS, seeds, target};

/// Longest input. The wide inputs have tests of their own.
const LONGEST: usize = 4_096;

/// Runs the target over the corpus, and then over `count` mutations of it.
fn run(name: &str, count: usize) {
    let corpus = seeds::corpus(name).unwrap();
    let mut mutator = Mutator::new(0x5eed);
    let mutated = (0..count).map(|_| mutator.input(&corpus, LONGEST));
    for (number, input) in corpus.iter().cloned().chain(mutated).enumerate() {
        let ended = catch_unwind(AssertUnwindSafe(|| (target(name).run)(&input)));
        assert!(ended.is_ok(), "{name}: input {number} fails, which is\n{}", input.escape_ascii());
    }
}

#[test]
fn manifests() {
    run("manifest", 5_000);
}

#[test]
fn pem_files() {
    run("pem", 5_000);
}

#[test]
fn node_selectors() {
    run("selector", 100_000);
}

#[test]
fn reviews() {
    run("review", 10_000);
}

#[test]
fn specs() {
    run("spec", 20_000);
}

#[test]
fn every_target_is_run_here_and_built_for_libfuzzer() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/fuzz_targets");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let built: BTreeSet<String> = files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    let known: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(built, known);
    let own = include_str!("fuzz.rs");
    for name in known {
        assert!(own.contains(&format!("run(\"{name}\"")), "{name} is not run here");
        assert!(seeds::corpus_folder(&name).is_dir(), "{name} has no corpus");
    }
}

#[test]
fn mutations_differ_from_one_another_and_are_the_same_each_time() {
    let corpus = seeds::seeds("manifest").unwrap();
    let inputs = |seed| {
        let mut mutator = Mutator::new(seed);
        (0..200).map(|_| mutator.input(&corpus, LONGEST)).collect::<Vec<_>>()
    };
    assert_eq!(inputs(7), inputs(7));
    assert!(inputs(7).into_iter().collect::<BTreeSet<_>>().len() > 190);
}

#[test]
fn the_seeds_get_past_the_first_door() {
    use ipam_core::{PoolKind, Reason};
    use ipam_e2e::fuzz::review::known;
    use ipam_operator::webhook::{judge::judge, review::read};
    let reviews = seeds::seeds("review").unwrap();
    assert!(reviews.len() >= 400);
    let mut refused = BTreeSet::new();
    for review in &reviews {
        let read = [PoolKind::IpPool, PoolKind::CidrPool].into_iter().find_map(|kind| read(kind, review).ok());
        let verdict = judge(&read.unwrap(), known());
        refused.extend(verdict.refusal.into_iter().flat_map(|refusal| refusal.violations).map(|one| one.reason));
    }
    let never: Vec<Reason> = Reason::ALL.into_iter().filter(|reason| !refused.contains(reason)).collect();
    assert_eq!(never, [], "no seed is refused for these");
    let pairs = seeds::seeds("pem").unwrap();
    let read = pairs.iter().filter(|pair| {
        let at = pair.iter().position(|byte| *byte == 0).unwrap_or(0);
        ipam_webhook_certs::Pair::parse(&pair[..at], pair.get(at + 1..).unwrap_or_default()).is_ok()
    });
    assert!(read.count() >= 6);
}
