//! Histories of a simulated cluster, from seeds: no address is ever held twice, and everything comes to rest.
//!
//! `cargo run -p ipam-e2e --bin simulate -- --seeds 0..10000` plays more of them, and one that fails is printed shrunk.

use ipam_e2e::sim::{Simulator, history, shrink};

/// Histories played here; enough that each kind of trouble comes many times.
const SEEDS: u64 = 200;
const STEPS: usize = 150;

#[test]
fn no_simulated_history_gives_an_address_twice_or_leaves_anything_waiting_for_ever() {
    let simulator = Simulator::new().unwrap();
    for seed in 0..SEEDS {
        if let Err(failure) = simulator.play(&history(seed, STEPS)) {
            let shortest = shrink(&simulator, failure);
            panic!("seed {seed}: {}\n{:#?}", shortest.law, shortest.history);
        }
    }
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
