//! The search for a seed that finds a mutant.
//!
//! A seed finds a mutant if its history breaks a law that the patch names, and breaks no law on the unpatched tree.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use anyhow::Result;

use super::SURVIVES;
use super::list::Found;

/// The search ends after this many seeds that break a law and do not find the mutant.
const MOST_MISSED: usize = 100;

/// Plays seeds and reports what they break.
pub(super) trait Player {
    /// The lowest of these seeds that breaks a law on the patched tree by a fault that is not known.
    fn patched(&mut self, seeds: Range<u64>) -> Result<Option<Found>>;

    /// Whether the seed breaks a law on the unpatched tree, by a known fault or another.
    fn unpatched_breaks(&mut self, seed: u64) -> Result<bool>;
}

/// Seeds that break a law on the patched tree and do not find the mutant.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Missed {
    /// By law: the patch does not name it.
    other_laws: BTreeMap<String, Vec<u64>>,
    /// The unpatched tree breaks a law, too.
    unpatched: Vec<u64>,
}

impl Missed {
    fn count(&self) -> usize {
        self.other_laws.values().map(Vec::len).sum::<usize>() + self.unpatched.len()
    }
}

/// The result of a mutant that no seed finds, on one line.
impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SURVIVES}")?;
        for (law, seeds) in &self.other_laws {
            write!(f, "; {law}, which it does not name, is broken by {}", few(seeds))?;
        }
        if !self.unpatched.is_empty() {
            write!(f, "; the unpatched tree breaks a law, too, with {}", few(&self.unpatched))?;
        }
        if self.count() >= MOST_MISSED {
            write!(f, "; the search ended after {MOST_MISSED} such seeds")?;
        }
        Ok(())
    }
}

fn few(seeds: &[u64]) -> String {
    let first: Vec<String> = seeds.iter().take(3).map(u64::to_string).collect();
    format!("{} seeds ({}{})", seeds.len(), first.join(", "), if seeds.len() > first.len() { ", …" } else { "" })
}

/// Looks for the lowest of `seeds` that finds a mutant which `laws` may find. `first` is tried before: it found the mutant in an
/// earlier run.
///
/// # Errors
/// The player cannot play a seed.
pub(super) fn search(
    player: &mut impl Player,
    laws: &[String],
    first: Option<u64>,
    seeds: Range<u64>,
) -> Result<Result<Found, Missed>> {
    if let Some(seed) = first
        && let Ok(found) = among(player, laws, seed..seed.saturating_add(1))?
    {
        return Ok(Ok(found));
    }
    among(player, laws, seeds)
}

fn among(player: &mut impl Player, laws: &[String], mut seeds: Range<u64>) -> Result<Result<Found, Missed>> {
    let mut missed = Missed::default();
    while !seeds.is_empty() && missed.count() < MOST_MISSED {
        let Some(found) = player.patched(seeds.clone())? else { break };
        seeds.start = found.seed.saturating_add(1);
        if !laws.contains(&found.law) {
            missed.other_laws.entry(found.law).or_default().push(found.seed);
        } else if player.unpatched_breaks(found.seed)? {
            missed.unpatched.push(found.seed);
        } else {
            return Ok(Ok(found));
        }
    }
    Ok(Err(missed))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks these laws with these seeds, and some seeds also without the patch.
    struct Played {
        patched: BTreeMap<u64, &'static str>,
        unpatched: Vec<u64>,
        asked: Vec<Range<u64>>,
    }

    impl Player for Played {
        fn patched(&mut self, seeds: Range<u64>) -> Result<Option<Found>> {
            self.asked.push(seeds.clone());
            let found = |(seed, law): (&u64, &&str)| Found { seed: *seed, law: (*law).to_owned(), what: String::new() };
            Ok(self.patched.range(seeds).next().map(found))
        }

        fn unpatched_breaks(&mut self, seed: u64) -> Result<bool> {
            Ok(self.unpatched.contains(&seed))
        }
    }

    fn played(patched: &[(u64, &'static str)], unpatched: &[u64]) -> Played {
        Played { patched: patched.iter().copied().collect(), unpatched: unpatched.to_vec(), asked: Vec::new() }
    }

    fn one_holder(player: &mut Played, first: Option<u64>) -> Result<u64, String> {
        let laws = ["one-holder".to_owned(), "held-is-recorded".to_owned()];
        let result = search(player, &laws, first, 0..5_000).unwrap();
        result.map(|found| found.seed).map_err(|missed| missed.to_string())
    }

    #[test]
    fn another_law_does_not_find_a_mutant() {
        let mut player = played(&[(3, "no-panic"), (4, "one-leader"), (9, "held-is-recorded")], &[]);
        assert_eq!(one_holder(&mut player, None), Ok(9));
        assert_eq!(player.asked, [0..5_000, 4..5_000, 5..5_000]);
        let survives = one_holder(&mut played(&[(3, "no-panic"), (4, "no-panic")], &[]), None);
        assert_eq!(survives.unwrap_err(), "survives; no-panic, which it does not name, is broken by 2 seeds (3, 4)");
    }

    #[test]
    fn a_seed_that_fails_unpatched_does_not_find_a_mutant() {
        let mut player = played(&[(3, "one-holder"), (7, "one-holder")], &[3]);
        assert_eq!(one_holder(&mut player, None), Ok(7));
        let survives = one_holder(&mut played(&[(3, "one-holder")], &[3]), None);
        assert_eq!(survives.unwrap_err(), "survives; the unpatched tree breaks a law, too, with 1 seeds (3)");
    }

    #[test]
    fn the_seed_of_an_earlier_run_is_tried_first_and_judged_alike() {
        let mut player = played(&[(2, "one-holder"), (9, "one-holder")], &[]);
        assert_eq!(one_holder(&mut player, Some(9)), Ok(9));
        assert_eq!(player.asked, vec![9..10]);
        for first in [1, 8, 9] {
            let mut player = played(&[(2, "one-holder"), (8, "no-panic"), (9, "one-holder")], &[9]);
            assert_eq!(one_holder(&mut player, Some(first)), Ok(2), "{first}");
        }
    }

    #[test]
    fn a_search_with_many_misses_ends() {
        let many: Vec<(u64, &'static str)> = (0..4_000).map(|seed| (seed, "no-panic")).collect();
        let mut player = played(&many, &[]);
        let survives = one_holder(&mut player, None).unwrap_err();
        assert!(survives.ends_with("100 seeds (0, 1, 2, …); the search ended after 100 such seeds"), "{survives}");
        assert_eq!(player.asked.len(), MOST_MISSED);
    }
}
