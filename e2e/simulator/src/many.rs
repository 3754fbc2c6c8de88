//! Many seeds side by side. What is found does not depend on how many threads look.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::activity::Activity;
use super::known::{FAULTS, Fault, MOST, class};
use super::{Failure, Simulator, history, shrink};

/// A seed whose history breaks a law.
#[derive(Clone, Debug)]
pub struct Found {
    /// The seed.
    pub seed: u64,
    /// The shortest history that still breaks the law.
    pub shortest: Failure,
    /// The known fault that it shows, if it is one.
    pub known: Option<&'static Fault>,
}

/// What was played.
#[derive(Default, Debug)]
pub struct Played {
    /// Seeds that were played.
    pub seeds: u64,
    /// Steps of those that broke no law, those in which all was left to settle not counted.
    pub steps: u64,
    /// What happened in them.
    pub activity: Activity,
    /// In how many histories each reason allowed a violation.
    pub allowed_in: BTreeMap<&'static str, u64>,
    /// The seeds that broke a law, in rising order.
    pub found: Vec<Found>,
}

impl Played {
    /// The share of histories, in percent, in which each reason allowed a violation.
    pub fn shares(&self) -> String {
        let share = |(reason, histories): (&&'static str, &u64)| {
            format!("{:>11} %  of histories, {reason}\n", histories * 100 / self.seeds.max(1))
        };
        self.allowed_in.iter().map(share).collect()
    }

    /// The known faults that more histories show than may, with the number of these.
    pub fn too_frequent(&self) -> Vec<(&'static str, u64)> {
        let hits = |fault: &Fault| {
            let shows = |found: &&Found| found.known.is_some_and(|known| known.name == fault.name);
            u64::try_from(self.found.iter().filter(shows).count()).unwrap_or(u64::MAX)
        };
        let all = FAULTS.iter().map(|fault| (fault.name, hits(fault)));
        all.filter(|(_, hits)| hits * 10_000 > self.seeds * MOST).collect()
    }

    /// The lowest seed that shows a fault which is not known.
    pub fn failure(&self) -> Option<&Found> {
        self.found.iter().find(|found| found.known.is_none())
    }
}

/// When playing ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// With the first seed that shows a fault which is not known.
    AtFirstFailure,
    /// With the last seed.
    AtLastSeed,
}

/// Plays the history of each seed, on as many threads as there are cores.
///
/// # Errors
/// A simulator cannot be made.
pub fn play_many(seeds: Range<u64>, steps: usize, end: End) -> std::io::Result<Played> {
    let next = AtomicU64::new(seeds.start);
    // Seeds are handed out in rising order, so all below the lowest that failed have been played, too.
    let last = AtomicU64::new(seeds.end);
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let parts: std::io::Result<Vec<Played>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| work(&next, &last, steps, end))).collect();
        let joined =
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect()
    });
    let mut all = Played::default();
    for part in parts? {
        all.seeds += part.seeds;
        all.steps += part.steps;
        all.activity.join(&part.activity);
        for (reason, histories) in part.allowed_in {
            *all.allowed_in.entry(reason).or_default() += histories;
        }
        all.found.extend(part.found);
    }
    all.found.sort_by_key(|found| found.seed);
    Ok(all)
}

fn work(next: &AtomicU64, last: &AtomicU64, steps: usize, end: End) -> std::io::Result<Played> {
    let simulator = Simulator::new()?;
    let mut played = Played::default();
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= last.load(Ordering::Relaxed) {
            return Ok(played);
        }
        let history = history(seed, steps);
        played.seeds += 1;
        match simulator.play(&history) {
            Ok(world) => {
                let activity = world.activity();
                for reason in activity.reasons() {
                    *played.allowed_in.entry(reason).or_default() += 1;
                }
                played.activity.join(&activity);
                played.steps += u64::try_from(history.len()).unwrap_or(u64::MAX);
            }
            Err(failure) => {
                let shortest = shrink(&simulator, failure);
                let known = class(&shortest);
                played.found.push(Found { seed, shortest, known });
                if end == End::AtFirstFailure && known.is_none() {
                    last.fetch_min(seed, Ordering::Relaxed);
                    return Ok(played);
                }
            }
        }
    }
}
