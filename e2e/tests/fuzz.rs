//! Every fuzzing target, over its corpus and for a bounded time over seeded mutations of it, other ones in each run. Long runs
//! are libFuzzer's: e2e/fuzz.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use ipam_e2e::fuzz::mutate::Mutator;
use ipam_e2e::fuzz::{TARGETS, seeds, target};
use ipam_e2e::progress::say;

/// Longest input. The wide inputs have tests of their own.
const LONGEST: usize = 4_096;
/// For how long each target is tried, its corpus included, where the environment does not say otherwise.
const SECONDS: u64 = 15;
/// Mutated inputs that each target gets, however slow the machine is.
const FEWEST: usize = 100;
/// Environment: the seed of the mutations, for a run that is to be had again.
const SEED: &str = "NV_IPAM_FUZZ_SEED";
/// Environment: seconds for each target.
const TIME: &str = "NV_IPAM_FUZZ_SECONDS";

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// The seed of this run: another each time, unless the environment names one.
fn seed() -> u64 {
    static SEED_OF_THIS_RUN: LazyLock<u64> =
        LazyLock::new(|| number(SEED).unwrap_or_else(|| RandomState::new().hash_one(std::process::id())));
    *SEED_OF_THIS_RUN
}

/// Runs the target over the corpus, and then over mutations of it until the time is over.
fn run(name: &str) {
    let (seed, until) = (seed(), Instant::now() + Duration::from_secs(number(TIME).unwrap_or(SECONDS)));
    say(&format!("fuzz {name}: {SEED}={seed}"));
    let corpus = seeds::corpus(name).unwrap();
    let mut mutator = Mutator::new(seed);
    let mutated = (0..).map_while(|count| {
        let goes_on = count < FEWEST || Instant::now() < until;
        goes_on.then(|| mutator.input(&corpus, LONGEST))
    });
    let mut count = 0;
    for input in corpus.iter().cloned().chain(mutated) {
        let ended = catch_unwind(AssertUnwindSafe(|| (target(name).run)(&input)));
        assert!(ended.is_ok(), "{name}: input {count} of {SEED}={seed} fails, which is\n{}", input.escape_ascii());
        count += 1;
    }
    say(&format!("fuzz {name}: {} inputs of the corpus, {} mutated", corpus.len(), count - corpus.len()));
}

#[test]
fn clusters_as_an_operator_reads_them() {
    run("cluster");
}

#[test]
fn cni_input() {
    run("cni");
}

#[test]
fn files_beside_the_journal() {
    run("files");
}

#[test]
fn calls_at_the_agent() {
    run("grpc");
}

#[test]
fn leases() {
    run("lease");
}

#[test]
fn manifests() {
    run("manifest");
}

#[test]
fn ipam_nodes_as_an_agent_reads_them() {
    run("node");
}

#[test]
fn pem_files() {
    run("pem");
}

#[test]
fn reviews() {
    run("review");
}

#[test]
fn node_selectors() {
    run("selector");
}

#[test]
fn specs() {
    run("spec");
}

#[test]
fn journals() {
    run("store");
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
        assert!(own.contains(&format!("run(\"{name}\")")), "{name} is not run here");
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
    use ipam_webhook::{judge::judge, review::read};
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
