//! Many seeds side by side. What is found does not depend on how many threads look: it is the lowest seed that breaks a law.

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::{Failure, Simulator, history};

/// What was played.
#[derive(Debug)]
pub struct Played {
    /// Seeds that broke no law.
    pub seeds: u64,
    /// Steps of their histories, those in which all was left to settle not counted.
    pub steps: u64,
    /// The lowest seed that broke one.
    pub failure: Option<(u64, Failure)>,
}

/// Plays the history of each seed, on as many threads as there are cores, until one breaks a law.
///
/// # Errors
/// A simulator cannot be made.
pub fn play_many(seeds: Range<u64>, steps: usize) -> std::io::Result<Played> {
    let next = AtomicU64::new(seeds.start);
    // Seeds are handed out in rising order, so all below the lowest that failed have been played, too.
    let last = AtomicU64::new(seeds.end);
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let parts: std::io::Result<Vec<Played>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| work(&next, &last, steps))).collect();
        let joined =
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect()
    });
    let mut all = Played { seeds: 0, steps: 0, failure: None };
    for part in parts? {
        all.seeds += part.seeds;
        all.steps += part.steps;
        all.failure = all.failure.into_iter().chain(part.failure).min_by_key(|(seed, _)| *seed);
    }
    Ok(all)
}

fn work(next: &AtomicU64, last: &AtomicU64, steps: usize) -> std::io::Result<Played> {
    let simulator = Simulator::new()?;
    let mut played = Played { seeds: 0, steps: 0, failure: None };
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= last.load(Ordering::Relaxed) {
            return Ok(played);
        }
        let history = history(seed, steps);
        match simulator.play(&history) {
            Ok(_) => {
                played.seeds += 1;
                played.steps += u64::try_from(history.len()).unwrap_or(u64::MAX);
            }
            Err(failure) => {
                last.fetch_min(seed, Ordering::Relaxed);
                played.failure = Some((seed, failure));
                return Ok(played);
            }
        }
    }
}
