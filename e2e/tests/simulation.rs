//! Histories of a simulated cluster, from seeds: no address is ever held twice, and everything comes to rest.
//!
//! `cargo run -p ipam-e2e --bin simulate -- --seeds 10000..100000` plays more of them, and one that fails is printed shrunk.

use ipam_e2e::sim::{Simulator, history, play_many, shrink};

/// Histories played here, and steps of each.
const SEEDS: u64 = 10_000;
const STEPS: usize = 100;

#[test]
fn no_simulated_history_gives_an_address_twice_or_leaves_anything_waiting_for_ever() {
    let played = play_many(0..SEEDS, STEPS).unwrap();
    if let Some((seed, failure)) = played.failure {
        let shortest = shrink(&Simulator::new().unwrap(), failure);
        panic!("seed {seed}: {}\n{:#?}", shortest.law, shortest.history);
    }
    assert_eq!((played.seeds, played.steps), (SEEDS, SEEDS * u64::try_from(STEPS).unwrap()));
}

#[test]
fn the_same_seed_gives_the_same_history_and_the_same_end() {
    let simulator = Simulator::new().unwrap();
    let end = || match simulator.run(7, STEPS) {
        Ok(world) => world.summary(),
        Err(failure) => failure.law,
    };
    assert_eq!(end(), end());
    assert_ne!(history(7, STEPS), history(8, STEPS));
}
