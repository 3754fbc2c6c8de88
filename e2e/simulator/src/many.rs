//! Plays many seeds in parallel. The result does not depend on the number of threads.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde::{Deserialize, Serialize};

use super::activity::Activity;
use super::known::{FAULTS, Fault, at_most, class, most_together};
use super::{Failure, Order, Simulator, history, shrink};

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

/// A run of fewer histories is too small to check what never happens and which share of its checks a reason leaves out.
pub const ENOUGH: u64 = 30_000;

/// Maximum share of the checks of a law that one reason may leave out, in percent.
const MOST_ALLOWED: u64 = 5;
/// The same for all its reasons together. Longer histories have more of them.
const MOST_TOGETHER: u64 = 6;

/// How many of a million histories of 200 steps really assigned an address twice for each reason, rounded up. A shorter history has fewer.
const TWICE_PER_MILLION: [(&str, u64); 5] = [
    ("force-release", 6_000),
    ("grace", 32_000),
    ("no report can show it", 1_200),
    ("pools share addresses", 13_000),
    ("store and report lost", 1_700),
];

/// What was played.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Totals {
    /// Seeds that were played.
    pub seeds: u64,
    /// Steps of all histories together.
    pub steps: u64,
    /// What happened in histories that broke no law.
    pub activity: Activity,
    /// Reason → number of histories in which it allowed a violation.
    pub allowed_in: BTreeMap<String, u64>,
    /// Reason → number of histories in which two really had an address for this reason.
    pub happened_in: BTreeMap<String, u64>,
}

impl Totals {
    /// Adds the totals of another run.
    pub fn join(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.activity.join(&other.activity);
        for (sum, other) in [(&mut self.allowed_in, &other.allowed_in), (&mut self.happened_in, &other.happened_in)] {
            for (reason, histories) in other {
                *sum.entry(reason.clone()).or_default() += histories;
            }
        }
    }

    /// The errors of a run that showed these known faults. An error is a fault that shows too often, a reason for which an address was
    /// assigned twice too often, something that never happened, or a reason that left out too many checks of a law. In a run of fewer than
    /// [`ENOUGH`] histories only the faults and the addresses assigned twice are checked.
    pub fn wrong<'a>(&self, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let mut hits = BTreeMap::<&str, u64>::new();
        known.into_iter().for_each(|name| *hits.entry(name).or_default() += 1);
        let most = |name: &str| FAULTS.iter().find(|fault| fault.name == name).map_or(0, |it| it.most(self.steps));
        let frequent = hits.iter().map(|(name, hits)| (*name, *hits, most(name))).filter(|(_, hits, most)| hits > most);
        let frequent = frequent.map(|(name, hits, most)| {
            format!("{hits} of {} histories show {name}, at most {most} may: is it that fault in each?", self.seeds)
        });
        let all: u64 = hits.values().sum();
        let together = (all > most_together(self.steps)).then(|| {
            let most = most_together(self.steps);
            format!("{all} of {} histories show known faults, at most {most} may", self.seeds)
        });
        let mut wrong: Vec<String> = frequent.chain(together).chain(self.twice_too_often()).collect();
        if self.seeds >= ENOUGH {
            wrong.extend(self.activity.missing().into_iter().map(|what| format!("{what}: never")));
            let shares = self.activity.shares();
            let wide = shares.iter().filter(|share| share.is_above(MOST_ALLOWED));
            wrong.extend(
                wide.map(|share| format!("{}, at most {MOST_ALLOWED} % may be", share.to_string().trim_start())),
            );
            for (law, uses, checks) in self.activity.left_out() {
                if uses * 100 > checks * MOST_TOGETHER {
                    wrong.push(format!(
                        "{law}: {uses} of {checks} checks are left out, at most {MOST_TOGETHER} % may be"
                    ));
                }
            }
        }
        wrong
    }

    /// The reasons for which more than twice as many histories assigned an address twice as in the last long run, and two.
    fn twice_too_often(&self) -> impl Iterator<Item = String> {
        let of = |reason: &str| TWICE_PER_MILLION.iter().find(|(of, _)| *of == reason).map(|(_, often)| often);
        let most = move |reason: &str| of(reason).map_or(0, |often| at_most(*often, self.steps));
        let wide = self.happened_in.iter().filter(move |(reason, histories)| **histories > most(reason));
        wide.map(move |(reason, histories)| {
            format!(
                "{histories} of {} histories assigned an address twice, as {reason} allows; at most {} may",
                self.seeds,
                most(reason)
            )
        })
    }
}

impl Display for Totals {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.activity, f)?;
        self.allowed_in.iter().try_for_each(|(reason, histories)| {
            let hundredths = histories * 10_000 / self.seeds.max(1);
            writeln!(f, "{:>9}.{:02} %  of histories, {reason}", hundredths / 100, hundredths % 100)
        })?;
        self.happened_in.iter().try_for_each(|(reason, histories)| {
            writeln!(f, "{histories:>12}  histories assigned an address twice, as {reason} allows")
        })
    }
}

/// What was played, and what was found.
#[derive(Default, Debug)]
pub struct Played {
    /// How many seeds were played, and what happened.
    pub totals: Totals,
    /// The seeds that broke a law, in rising order.
    pub found: Vec<Found>,
}

impl Played {
    /// The errors of the run, without unknown faults.
    pub fn wrong(&self) -> Vec<String> {
        self.totals.wrong(self.found.iter().filter_map(|found| Some(found.known?.name)))
    }

    /// The lowest seed that shows an unknown fault.
    pub fn failure(&self) -> Option<&Found> {
        self.found.iter().find(|found| found.known.is_none())
    }
}

/// When a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// With the first seed that shows an unknown fault.
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
        all.totals.join(&part.totals);
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
        played.totals.seeds += 1;
        played.totals.steps += u64::try_from(steps).unwrap_or(u64::MAX);
        match simulator.play(&history) {
            Ok(world) => {
                let activity = world.activity();
                for reason in activity.reasons() {
                    *played.totals.allowed_in.entry(reason.to_owned()).or_default() += 1;
                }
                for reason in activity.happened() {
                    *played.totals.happened_in.entry(reason.to_owned()).or_default() += 1;
                }
                played.totals.activity.join(&activity);
            }
            Err(failure) => {
                let (shortest, known) = explain(&simulator, &failure);
                played.found.push(Found { seed, shortest, known });
                if end == End::AtFirstFailure && known.is_none() {
                    last.fetch_min(seed, Ordering::Relaxed);
                    return Ok(played);
                }
            }
        }
    }
}

/// A shortest history that breaks the law, and the known fault that it shows. Shrinking can end at a known fault although another one
/// broke the law, too. So it is done in both orders, and a history that shows no known fault comes first.
fn explain(simulator: &Simulator, failure: &Failure) -> (Failure, Option<&'static Fault>) {
    let shortest = shrink(simulator, failure.clone(), Order::Forwards);
    let known = class(&shortest);
    if known.is_none() {
        return (shortest, known);
    }
    let other = shrink(simulator, failure.clone(), Order::Backwards);
    if class(&other).is_none() { (other, None) } else { (shortest, known) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(seeds: u64) -> Totals {
        Totals { seeds, steps: seeds * 200, ..Totals::default() }
    }

    #[test]
    fn a_known_fault_may_show_in_twice_as_many_histories_as_it_did_and_in_three() {
        let wrong = |seeds, name, hits| totals(seeds).wrong(vec![name; hits]).len();
        let frequent = "never-used-grant-of-a-backup";
        // The third is also one too many of all faults together.
        assert_eq!((wrong(100, frequent, 2), wrong(100, frequent, 3)), (0, 2));
        assert_eq!((wrong(20_000, frequent, 3), wrong(20_000, frequent, 4)), (0, 1));
        let rare = "store-lost-beside-a-restore";
        assert_eq!((wrong(20_000, rare, 2), wrong(20_000, rare, 3)), (0, 1));
        assert_eq!(wrong(20_000, "gone", 1), 1, "no fault has this name");
    }

    #[test]
    fn all_known_faults_together_have_a_limit() {
        let twice: Vec<&str> = FAULTS.iter().flat_map(|fault| [fault.name; 2]).collect();
        assert_eq!(totals(20_000).wrong(twice[..8].iter().copied()), Vec::<String>::new());
        let wrong = totals(20_000).wrong(twice[..9].iter().copied());
        assert!(matches!(&wrong[..], [what] if what.contains("at most 8 may")), "{wrong:?}");
    }

    #[test]
    fn a_reason_for_which_an_address_is_assigned_twice_has_a_limit() {
        let mut all = totals(10_000);
        all.happened_in.insert("no report can show it".to_owned(), 26);
        assert_eq!(all.wrong([]), Vec::<String>::new());
        all.happened_in.insert("no report can show it".to_owned(), 27);
        all.happened_in.insert("of no rule".to_owned(), 1);
        let wrong = all.wrong([]);
        assert!(
            matches!(&wrong[..], [one, other] if one.contains("at most 26 may") && other.contains("at most 0 may"))
        );
    }

    #[test]
    fn a_long_run_tells_what_never_happened_and_which_reason_is_too_wide() {
        let mut all = totals(ENOUGH);
        all.activity.check("one-holder", 100);
        all.activity.allow("one-holder", "grace", 5);
        let never = all.wrong([]);
        assert!(!never.is_empty() && never.iter().all(|what| what.ends_with(": never")), "{never:?}");
        all.activity.allow("one-holder", "grace", 1);
        let wide: Vec<String> = all.wrong([]).into_iter().filter(|what| !never.contains(what)).collect();
        assert!(matches!(wide.as_slice(), [reason] if reason.contains("one-holder are left out: grace")), "{wide:?}");
        let mut halves = totals(ENOUGH);
        halves.activity.check("one-holder", 100);
        for reason in ["grace", "force-release"] {
            halves.activity.allow("one-holder", reason, 4);
        }
        let wide: Vec<String> = halves.wrong([]).into_iter().filter(|what| !never.contains(what)).collect();
        let expected = "one-holder: 8 of 100 checks are left out, at most 6 % may be";
        assert!(matches!(wide.as_slice(), [what] if what == expected), "{wide:?}");
        all.seeds = ENOUGH - 1;
        assert_eq!(all.wrong([]), Vec::<String>::new());
    }
}
