//! A set of numbers, stored as runs: disjoint intervals that never touch.
//!
//! It represents exclusions (which may overlap as written), addresses in use on a node, and assigned blocks of a pool.
//! The cost depends on the number of runs, never on the number of members.

use std::collections::BTreeMap;

/// A set of `u128`, stored as maximal runs of consecutive members.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RangeSet {
    /// First member of a run → last member. Neighbouring runs are apart by at least one number.
    runs: BTreeMap<u128, u128>,
}

impl RangeSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self { runs: BTreeMap::new() }
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Number of runs (not of members).
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// The runs in rising order, as (first, last), both included.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = (u128, u128)> + '_ {
        self.runs.iter().map(|(&first, &last)| (first, last))
    }

    /// Number of members, saturating.
    pub fn size(&self) -> u128 {
        self.runs().fold(0, |sum: u128, (first, last)| sum.saturating_add((last - first).saturating_add(1)))
    }

    /// The run that contains `value`.
    pub fn run_of(&self, value: u128) -> Option<(u128, u128)> {
        let (&first, &last) = self.runs.range(..=value).next_back()?;
        (value <= last).then_some((first, last))
    }

    /// Whether `value` is a member.
    pub fn contains(&self, value: u128) -> bool {
        self.run_of(value).is_some()
    }

    /// Whether all of `first..=last` are members; the bounds must be in order.
    pub fn covers(&self, first: u128, last: u128) -> bool {
        self.run_of(first).is_some_and(|(_, end)| last <= end)
    }

    /// Whether any of `first..=last` is a member.
    pub fn intersects(&self, first: u128, last: u128) -> bool {
        first <= last && self.runs.range(..=last).next_back().is_some_and(|(_, &end)| first <= end)
    }

    /// Adds all of `first..=last`; does nothing if `first > last`.
    pub fn insert(&mut self, first: u128, last: u128) {
        if first > last {
            return;
        }
        let (mut first, mut last) = (first, last);
        // Runs that overlap or touch the new one become part of it; they start no later than one past its end.
        while let Some((&start, &end)) = self.runs.range(..=last.saturating_add(1)).next_back() {
            if end.saturating_add(1) < first {
                break;
            }
            self.runs.remove(&start);
            first = first.min(start);
            last = last.max(end);
        }
        self.runs.insert(first, last);
    }

    /// Removes `value`; does nothing if it is not a member.
    pub fn remove(&mut self, value: u128) {
        let Some((first, last)) = self.run_of(value) else { return };
        self.runs.remove(&first);
        if first < value {
            self.runs.insert(first, value - 1);
        }
        if value < last {
            self.runs.insert(value + 1, last);
        }
    }

    /// The lowest number in `from..=to` that is not a member.
    pub fn first_gap(&self, from: u128, to: u128) -> Option<u128> {
        if from > to {
            return None;
        }
        match self.run_of(from) {
            None => Some(from),
            Some((_, last)) if last < to => Some(last + 1),
            Some(_) => None,
        }
    }

    /// The highest number in `from..=to` that is not a member.
    pub fn last_gap(&self, from: u128, to: u128) -> Option<u128> {
        if from > to {
            return None;
        }
        match self.run_of(to) {
            None => Some(to),
            Some((first, _)) if from < first => Some(first - 1),
            Some(_) => None,
        }
    }

    /// Members of this set in `first..=last`.
    #[must_use]
    pub fn clipped(&self, first: u128, last: u128) -> Self {
        Self { runs: self.runs_in(first, last).collect() }
    }

    /// Members of this set that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut rest = Self::new();
        for (first, last) in self.runs() {
            let mut from = first;
            while let Some(gap) = other.first_gap(from, last) {
                let next = other.runs.range(gap..=last).next().map(|(&start, _)| start);
                let end = next.map_or(last, |start| start - 1);
                rest.insert(gap, end);
                let Some(next) = next else { break };
                from = next;
            }
        }
        rest
    }

    /// How many of `first..=last` are not members, saturating.
    pub fn gaps_in(&self, first: u128, last: u128) -> u128 {
        if first > last {
            return 0;
        }
        let mut open: u128 = 0;
        let mut next = Some(first);
        for (start, end) in self.runs_in(first, last) {
            open = open.saturating_add(next.map_or(0, |next| start - next));
            next = end.checked_add(1);
        }
        let rest = next.filter(|next| *next <= last).map_or(0, |next| (last - next).saturating_add(1));
        open.saturating_add(rest)
    }

    /// The runs, clipped to `first..=last`, in rising order.
    fn runs_in(&self, first: u128, last: u128) -> impl Iterator<Item = (u128, u128)> + '_ {
        let from = self.run_of(first).map_or(first, |(start, _)| start);
        // `from > last` only if the bounds are in the wrong order; a range like that would panic.
        self.runs
            .range(from..=last.max(from))
            .map(move |(&start, &end)| (start.max(first), end.min(last)))
            .filter(|(start, end)| start <= end)
    }
}

impl FromIterator<(u128, u128)> for RangeSet {
    fn from_iter<T: IntoIterator<Item = (u128, u128)>>(iter: T) -> Self {
        let mut set = Self::new();
        set.extend(iter);
        set
    }
}

impl Extend<(u128, u128)> for RangeSet {
    fn extend<T: IntoIterator<Item = (u128, u128)>>(&mut self, iter: T) {
        for (first, last) in iter {
            self.insert(first, last);
        }
    }
}
