//! The mutants' patches fit the sources, and their list is complete. That each is found by the simulator is for
//! `cargo run -p ipam-e2e --bin mutants` to show.

use ipam_e2e::binaries::workspace;
use ipam_e2e::mutants::{all, applies, folder, stale};

/// As many as there are: with fewer, a rule is left without a mutant.
const FEWEST: usize = 47;

#[test]
fn every_mutant_fits_the_sources() {
    let broken: Vec<String> = all()
        .unwrap()
        .iter()
        .filter_map(|mutant| applies(mutant, &workspace()).err())
        .map(|why| why.to_string())
        .collect();
    assert!(broken.is_empty(), "write these patches anew, the code around them has changed:\n{}", broken.join("\n"));
}

#[test]
fn the_list_has_the_seed_that_finds_each_mutant() {
    let (page, mutants) = (std::fs::read_to_string(folder().join("README.md")).unwrap(), all().unwrap());
    assert!(mutants.len() >= FEWEST, "{} mutants", mutants.len());
    let wrong = stale(&page, &mutants);
    assert!(wrong.is_empty(), "run `cargo run -p ipam-e2e --bin mutants -- --all`:\n{}", wrong.join("\n"));
}
